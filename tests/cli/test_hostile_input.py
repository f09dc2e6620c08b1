"""Wrong files and odd texts: a message with a hint instead of a traceback, and only printable characters."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, experiment
from tests.conftest import raising

import tunegym as library
from tunegym.app import run as module
from tunegym.cli.run import ProgressDisplay
from tunegym.tuning.reports.results import load

Scenario = Callable[..., Path]
MINIMAL = 'name = "m"\n[[experiments]]\nname = "e"\nworkload = "command"\ncmd_args.command = "true"\n'


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """A folder of things that are neither a scenario nor a run."""
    folder = tmp_path / "things"
    files = {
        "empty.toml": b"",
        "binary.toml": b"\x93\x12\xff\x00\xfe",
        "zeros.toml": bytes(100),
        "words.toml": b"these are just words\n",
        "run with a broken copy/scenario.toml": b"name = \n",
        "run with an odd copy/scenario.toml": b'scenario_dir = "/"\nexperiments = 3\n',
        "run without names/scenario.toml": b'scenario_dir = "/"\n[[experiments]]\nx = 1\n',
        "run of a broken journal/scenario.toml": f'scenario_dir = "{folder}"\n{MINIMAL}'.encode(),
        "run of a broken journal/e/journal.jsonl": b"\x00\xff\nnot\na\njournal\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "empty folder").mkdir()
    return folder


def assert_told(done: subprocess.CompletedProcess[str], codes: set[int]) -> None:
    assert done.returncode in codes, done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


SCENARIOS = ["missing.toml", "empty folder", "empty.toml", "binary.toml", "zeros.toml", "words.toml", "a\nb"]
RUNS = ["missing", "empty folder", "words.toml", "run with a broken copy", "run with an odd copy"]
RUNS += ["run without names"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_scenario(name: str, things: Path, cli: Cli) -> None:
    for command in ("verify", "run"):
        assert_told(cli(command, things / name), {2})
    assert not Path("results").exists()


@pytest.mark.parametrize("name", RUNS)
def test_no_run(name: str, things: Path, cli: Cli) -> None:
    for command in ("status", "resume", "report", "compare"):
        assert_told(cli(command, things / name), {1, 2})


def test_a_run_whose_only_journal_is_garbage(things: Path, cli: Cli) -> None:
    """It is shown as ``unreadable``, so that the run's other experiments are shown, too; it can't be resumed."""
    run = things / "run of a broken journal"
    assert "unreadable" in cli("status", run, code=0).stdout
    for command in ("report", "compare"):
        assert cli(command, run).returncode == 0
    assert_told(cli("resume", run), {1})


def test_nowhere_to_write(
    things: Path, cli: Cli, scenario: Scenario, tmp_path: Path, mount: Callable[[Path, str], Path]
) -> None:
    path = scenario()
    for output in (things / "words.toml", things / "words.toml" / "below", Path("/proc/nowhere")):
        done = cli("run", path, "--output", output)
        assert_told(done, {1})
        assert str(output) in done.stderr
    assert_told(cli("init", things / "words.toml" / "below.toml"), {1})
    assert_told(cli("init", "/proc/nowhere/scenario.toml"), {1})
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):  # root may write anywhere but on a file system that is read-only
        mount(closed, "ro")
    assert_told(cli("run", path, "--output", closed), {1})


def test_a_run_that_can_not_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    (tmp_path / "scenario.toml").write_text(f'scenario_dir = "{tmp_path}"\n{MINIMAL}')
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "journal.jsonl").touch()
    monkeypatch.setattr(module, "WriterLock", raising(OSError, errno.EROFS, os.strerror(errno.EROFS)))
    done = cli("resume", tmp_path)
    assert_told(done, {1})
    what = f"error: {tmp_path} can't be written: {os.strerror(errno.EROFS)}"
    assert f"{what}\nhint: recorded data is safe: fix the cause" in done.stderr


# text that is not printable -------------------------------------------------------------------------------

EVIL = "\x1b[31mred\x9b\x7f\u202etxt\U000e0001"
ESCAPED = "\\x1b[31mred\\x9b\\x7f\\u202etxt\\U000e0001"
WORDS = [EVIL, "[red]bold[/red] :smile:", "two\nlines"]
SHOWN = ["\\u001b[31mred", "[red]bold[/red] :smile:", '"two\\nlines"']
WORK = """
def value(word, n):
    if n == 2:
        raise ValueError("reason " + word)
    return float(word == WORD)
def reward(metrics):
    raise ValueError(EVIL)
"""


def assert_printable(done: subprocess.CompletedProcess[str], code: int = 0) -> None:
    assert done.returncode == code, done.stderr
    for text in (done.stdout, done.stderr):
        assert text.replace("\n", "").isprintable(), [char for char in text if not char.isprintable() and char != "\n"]


def strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    for value in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from strings(value)


@pytest.mark.parametrize(("word", "shown"), list(zip(WORDS, SHOWN, strict=True)), ids=["escape", "markup", "lines"])
def test_knobs_of_any_text(word: str, shown: str, cli: Cli, scenario: Scenario, write: Callable[..., Path]) -> None:
    write("work.py", WORK.replace("WORD", ascii(word)).replace("EVIL", ascii(EVIL)))
    args = {"callable": "work:value", "word": WORDS, "n": [1, 2]}
    path = scenario(workload="python", isolate=False, metrics=None, cmd_args=args)
    done = cli("run", path, "--output", "out")
    assert_printable(done)
    assert shown in done.stdout
    assert f"reason {ESCAPED}" in done.stdout
    best = tomllib.loads((load("out").folder / "e" / "best.toml").read_text(encoding="utf-8"))["best"]
    assert best["settings"]["word"] == word
    for command in ("status", "recommend", "compare", "report"):
        done = cli(command, "out")
        assert_printable(done)
        assert command == "report" or shown.strip('"') in done.stdout
        done = cli(command, "out", "--json")
        assert_printable(done)
        assert word in strings(json.loads(done.stdout))
    done = cli("recommend", "out", "--toml")
    assert_printable(done)
    assert tomllib.loads(done.stdout)["best"]["settings"]["word"] == word
    assert_printable(cli("dry-run", path))
    assert_printable(cli("dry-run", path, "--json"))
    assert_printable(cli("resume", "out", "--agent-steps", 99))


def test_log_lines_and_errors_of_any_text(
    cli: Cli, scenario: Scenario, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write("work.py", WORK.replace("WORD", "'a'").replace("EVIL", ascii(EVIL)))
    args = {"callable": "work:value", "word": ["a"], "n": [1]}
    keys = {"workload": "python", "isolate": False, "metrics": None, "agent_reward_function": "work:reward"}
    done = cli("run", scenario(experiment(**keys, cmd_args={**args, "word": ["a", "b"]})), "--output", "out")
    assert_printable(done, 1)
    assert "\\x1b[31mred" in done.stdout
    (load("out").folder / "dse_failure.txt").write_text(f"ended by {EVIL}\n", encoding="utf-8")
    assert_printable(cli("status", "out"))
    assert_printable(cli("status", "missing\x1b[31m"), 1)
    assert_printable(cli("verify", "missing\x1b[31m.toml"), 2)
    reason = library.load("out").experiments["e"].trials[0].reason
    assert reason.endswith(EVIL), "the recorded text is unchanged"
    with ProgressDisplay():
        logging.getLogger("tunegym.test").warning("%s\n  more", EVIL)
    assert capsys.readouterr().err == f"warning: {ESCAPED}\n  more\n"
