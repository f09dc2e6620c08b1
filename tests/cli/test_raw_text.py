"""Whatever a trial says or a knob holds, nothing of it reaches a terminal that is not printable."""

from __future__ import annotations

import json
import logging
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import tunegym as library
from tunegym.cli.run import Progress
from tunegym.tuning.reports.results import load

Cli = Callable[..., subprocess.CompletedProcess[str]]

EVIL = "\x1b[31mred\x9b\x7f\u202etxt\U000e0001"
WORDS = [EVIL, "[red]bold[/red] :smile:", "two\nlines"]

SCENARIO = """
name = "raw"
[[experiments]]
name = "e"
workload = "python"
isolate = false
agent = "grid_search"
agent_metrics = ["value"]
  [experiments.cmd_args]
  callable = "work:value"
  word = WORDS
  n = [1, 2]
"""

WORK = """
def value(word, n):
    if n == 2:
        raise ValueError("reason " + word)
    return float(word == WORD)
"""


def assert_printable(done: subprocess.CompletedProcess[str], code: int = 0) -> None:
    assert done.returncode == code, done.stderr
    for text in (done.stdout, done.stderr):
        assert text.replace("\n", "").isprintable(), [char for char in text if not char.isprintable() and char != "\n"]


@pytest.fixture(
    params=[
        pytest.param(0, id="escape", marks=pytest.mark.slow),
        pytest.param(1, id="markup", marks=pytest.mark.slow),
        pytest.param(2, id="lines", marks=pytest.mark.slow),
    ]
)
def word(request: pytest.FixtureRequest) -> str:
    """The value of the knob that wins."""
    return WORDS[request.param]


@pytest.fixture
def scenario(write: Callable[..., Path], word: str) -> Path:
    write("work.py", WORK.replace("WORD", ascii(word)))
    return write("raw.toml", SCENARIO.replace("WORDS", json.dumps(WORDS).replace("\\udb40\\udc01", "\\U000e0001")))


def test_every_command(scenario: Path, word: str, tunegym: Cli) -> None:
    done = tunegym("run", scenario, "--output", "out")
    assert_printable(done)
    shown = {EVIL: "\\u001b[31mred", WORDS[1]: '"[red]bold[/red] :smile:"', WORDS[2]: '"two\\nlines"'}[word]
    assert shown in done.stdout
    assert "reason \\x1b[31mred\\x9b\\x7f\\u202etxt\\U000e0001" in done.stdout
    best = tomllib.loads((load("out").folder / "e" / "best.toml").read_text(encoding="utf-8"))["best"]
    assert best["settings"]["word"] == word
    for command in ("status", "recommend", "compare", "report"):
        done = tunegym(command, "out")
        assert_printable(done)
        assert command == "report" or shown.strip('"') in done.stdout
        done = tunegym(command, "out", "--json")
        assert_printable(done)
        assert word in _strings(json.loads(done.stdout))
    done = tunegym("recommend", "out", "--toml")
    assert_printable(done)
    assert tomllib.loads(done.stdout)["best"]["settings"]["word"] == word
    assert_printable(tunegym("dry-run", scenario))
    assert_printable(tunegym("dry-run", scenario, "--json"))
    assert_printable(tunegym("resume", "out", "--agent-steps", 99))


def _strings(document: object) -> list[str]:
    if isinstance(document, dict):
        return [text for value in document.values() for text in _strings(value)]
    if isinstance(document, list):
        return [text for value in document for text in _strings(value)]
    return [document] if isinstance(document, str) else []


@pytest.mark.slow
def test_log_lines_and_errors(write: Callable[..., Path], tunegym: Cli) -> None:
    write("mine.py", f"def reward(metrics):\n    raise ValueError({EVIL!a})\n")
    text = SCENARIO.replace("WORDS", '["a"]').replace("n = [1, 2]", "n = [1]")
    text = text.replace('agent_metrics = ["value"]', 'agent_metrics = ["value"]\nagent_reward_function = "mine:reward"')
    write("work.py", WORK.replace("WORD", "'a'"))
    done = tunegym("run", write("raw.toml", text), "--output", "out")
    assert_printable(done, 1)
    assert "\\x1b[31mred" in done.stdout
    folder = load("out").folder
    (folder / "dse_failure.txt").write_text(f"ended by {EVIL}\n", encoding="utf-8")
    assert_printable(tunegym("status", "out"))
    assert_printable(tunegym("status", "missing\x1b[31m"), 1)
    assert_printable(tunegym("verify", "missing\x1b[31m.toml"), 2)
    assert library.load("out").experiments["e"].trials[0].reason.endswith(EVIL), "what was recorded stays as it is"


def test_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress():
        logging.getLogger("tunegym.test").warning("%s\n  more", EVIL)
    assert capsys.readouterr().err == "warning: \\x1b[31mred\\x9b\\x7f\\u202etxt\\U000e0001\n  more\n"
