"""Progress and signals: the line itself, and on a real terminal, which is left as it was found."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
from tests.soundness import assert_sound

from tunegym.cli import run, terminal
from tunegym.core.stop import Stop
from tunegym.tuning.model.summary import Progress
from tunegym.tuning.reports.results import find_run

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

# Trial 1 fails, 2 is measured, 3 is the same again; the next one waits until there is a folder `go`.
SCENARIO = """
name = "shown"
[[experiments]]
name = "e"
workload = "command"
agent = "mine:Agent"
agent_steps = 6
agent_metrics = ["value"]
  [experiments.cmd_args]
  command = "while test {x} -gt 1 -a ! -d {scenario_dir}/go; do sleep 0.02; done; test {x} -gt 0 && echo value={x}5"
  x = [0, 1, 2, 3, 4]
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }
"""

AGENT = """
import tunegym
class Agent(tunegym.BaseAgent):
    def select_action(self, observation):
        return {"x": [0, 1, 1, 2, 3, 4][observation.number - 1]}
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Path:
    write("mine.py", AGENT)
    return write("scenario.toml", SCENARIO)


TEARDOWN = """
  teardown = "while test {x} -gt 1 -a ! -d {scenario_dir}/go; do sleep 0.02; done"
"""


@pytest.fixture
def shown(scenario: Path, command_line: list[str], request: pytest.FixtureRequest) -> Iterator[pexpect.spawn]:
    """`tunegym run` on a terminal, which waits in its fourth trial; also in its teardown, if asked for."""
    if getattr(request, "param", False):
        scenario.write_text(SCENARIO.replace("[experiments.cmd_args]", f"[experiments.cmd_args]{TEARDOWN}"))
    program, *arguments = [*command_line, "run", str(scenario)]
    child = pexpect.spawn(program, arguments, encoding="utf-8", timeout=60, dimensions=(24, 200))
    child.logfile_read = open("seen.txt", "w", newline="")  # noqa: SIM115
    yield child
    child.close(force=True)
    child.logfile_read.close()


def seen() -> str:
    with open("seen.txt", newline="") as file:
        return file.read()


def assert_usable(child: pexpect.spawn, before: list[object]) -> None:
    child.logfile_read.flush()
    assert seen().rfind(SHOW) > seen().rfind(HIDE) > 0, "the cursor stays hidden"
    assert termios.tcgetattr(child.child_fd) == before


@pytest.mark.slow
def test_the_line_and_one_interrupt(
    shown: pexpect.spawn, tunegym: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    before = termios.tcgetattr(shown.child_fd)
    shown.expect(r"e  3/6  failed 1  cached 1  best 15 \(x=1\)  left 0:00:0\d")
    shown.sendintr()
    shown.expect("stopping: running trials are ended and stay open for a resume; once more to stop at once")
    shown.expect("e: best settings")
    shown.expect("results: results/shown/")
    shown.expect(r"interrupted; to continue: tunegym resume (results/shown/\S+)\r\n")
    folder = shown.match[1]
    shown.expect(pexpect.EOF)
    assert_usable(shown, before)
    shown.wait()
    assert shown.exitstatus == 130
    assert "Traceback" not in seen()
    Path("go").mkdir()
    done = tunegym("resume", folder)
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(folder).values()
    assert [trial.status for trial in results.trials] == ["failed", *["measured"] * 5]


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True], indirect=True)
def test_two_interrupts(shown: pexpect.spawn) -> None:
    before = termios.tcgetattr(shown.child_fd)
    shown.expect(r"e  3/6 ")
    shown.sendintr()
    shown.expect("stopping: ")
    shown.sendintr()
    shown.expect(pexpect.EOF)
    assert_usable(shown, before)
    shown.wait()
    assert shown.exitstatus == 130
    assert "to continue" not in seen(), "the second one was not heard"


@pytest.mark.slow
def test_to_the_end(shown: pexpect.spawn) -> None:
    Path("go").mkdir()
    shown.expect(r"e  6/6  failed 1  cached 1  best 45 \(x=4\)  took 0:00:0\d")
    shown.expect("e: best settings")
    shown.expect(r"results: results/shown/\S+\r\n")
    shown.expect(pexpect.EOF)
    shown.wait()
    assert shown.exitstatus == 0
    assert seen().rfind(SHOW) > seen().rfind(HIDE)


@pytest.mark.slow
def test_a_terminal_that_is_closed(
    scenario: Path,
    command_line: list[str],
    tmp_path: Path,
    wait_until: Callable[..., None],
    processes_of: Callable[[str], list[int]],
) -> None:
    """The window goes away: SIGHUP, and writing to it fails from then on. The run stops in good order."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command_line, "run", str(scenario)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    try:
        os.close(theirs)
        wait_until(lambda: list(tmp_path.glob("results/*/*/e/trials/000004/*")), "the fourth trial")
        os.close(ours)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    run = find_run(Path("results"))
    (results,) = assert_sound(run, complete=False).values()
    assert sorted(results.journal.open) == [4]
    assert (run / "e" / "best.toml").is_file()
    assert not (run / "e" / "writer.lock").exists()
    assert results.journal.head is not None
    assert processes_of(results.journal.head["run"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_poor_terminals(scenario: Path, command_line: list[str], environment: dict[str, str]) -> None:
    Path("go").mkdir()
    program, *arguments = [*command_line, "run", str(scenario)]
    child = pexpect.spawn(
        program,
        arguments,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, **environment},
        dimensions=(24, 40),
    )
    printed = child.read()
    child.wait()
    assert child.exitstatus == 0
    assert "e  6/6" in printed
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in printed
    else:
        assert re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", printed) is None, "colours"
    child.close()


# the line -------------------------------------------------------------------------------------------------


class Session(SimpleNamespace):
    """A session whose progress a test sets."""

    def progress(self) -> Progress:
        return Progress(self.done, self.unit, self.done, self.elapsed_s, self.shown)


def session(total: int | None = 1000, unit: str = "step", max_time_s: float | None = None, **now: Any) -> Any:
    budget = SimpleNamespace(max_time_s=max_time_s)
    experiment = SimpleNamespace(name="pole", most_trials=total, budget=budget)
    return Session(**{"experiment": experiment, "unit": unit, "done": 0, "elapsed_s": 0.0, "shown": {}, **now})


def test_steps() -> None:
    now = session()
    line = run.Line(now)
    assert line.parts() == ["pole", "0/1,000 steps", "after 0:00:00"]
    now.done, now.elapsed_s, now.shown = 500, 2.0, {"episodes": "12", "failed": "3"}
    assert line.parts() == ["pole", "500/1,000 steps", "250 steps/s", "episodes 12", "failed 3", "left 0:00:02"]
    line.over = True
    assert line.parts()[-1] == "took 0:00:02"


def test_trials() -> None:
    now = session(6, unit="", shown={"failed": "0"})
    line = run.Line(now)
    now.done, now.elapsed_s = 3, 60.0
    assert line.parts() == ["pole", "3/6", "failed 0", "left 0:01:00"]


@pytest.mark.parametrize(
    ("total", "unit", "done", "text"),
    [(None, "step", 1, "1 step"), (None, "step", 2, "2 steps"), (1, "step", 0, "0/1 step"), (None, "", 2, "2 done")],
)
def test_counts(total: int | None, unit: str, done: int, text: str) -> None:
    assert run.Line(session(total, unit, done=done)).parts()[1] == text


def test_the_pace_is_that_of_this_session() -> None:
    now = session(None, done=400, elapsed_s=7.0)
    line = run.Line(now)
    now.done, now.elapsed_s = 500, 9.0
    assert line.parts()[1:3] == ["500 steps", "50 steps/s"]


def test_the_time_that_is_left_is_bounded_by_max_time() -> None:
    now = session(None, max_time_s=60.0)
    line = run.Line(now)
    now.done, now.elapsed_s = 10, 50.0
    assert line.parts()[-1] == "left 0:00:10"


def test_counts_that_are_just_being_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = session(done=5)
    line = run.Line(now)
    before = line.parts()

    def changed(_: Any) -> Progress:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(Session, "progress", changed)
    assert line.parts() == before


def test_a_ticker_ends_with_what_it_prints_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PLAIN_EVERY_S", 0.001)
    tried = threading.Event()

    class Gone:
        def print(self, *_: object, **__: object) -> None:
            tried.set()
            raise OSError("the pipe is gone")

    out: Any = Gone()
    ticker = run.Ticker(run.Line(session(done=5)), out)
    assert tried.wait(10)
    ticker.stop()
    assert not ticker._thread.is_alive()


def test_one_signal_asks_to_stop_and_says_what_that_means(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work(watch: Any, stop: Stop) -> int:
        watch.stopping = "the step in progress is finished"
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        return terminal.INTERRUPTED

    assert run.drive(work) == 130
    assert capfd.readouterr().err == "\nstopping: the step in progress is finished; once more to stop at once\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_signals_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(terminal.os, "_exit", codes.append)
    forced: list[bool] = []

    def work(watch: Any, stop: Stop) -> int:
        stop.subscribe(lambda: None, lambda: forced.append(True))
        signal.raise_signal(signal.SIGTERM)
        assert (codes, forced) == ([], [])
        signal.raise_signal(signal.SIGTERM)
        return 0

    run.drive(work)
    assert (codes, forced) == ([130], [True])


def test_nohup_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminal.heard(lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
