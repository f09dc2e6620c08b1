"""Progress and signals: the line itself, and on a real terminal, which is left as it was found."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
from tests.app.conftest import left_of
from tests.soundness import assert_sound

from tunegym.cli import run
from tunegym.tuning.model.summary import Progress
from tunegym.tuning.reports.results import find_run

HIDE = "\x1b[?25l"

# Trial 1 fails, 2 is measured, 3 is the same again; the next one waits until there is a folder `go`.
WAIT = "while test {x} -gt 1 -a ! -d {scenario_dir}/go; do sleep 0.02; done"
SHOWN = {"agent": "mine:Agent", "agent_steps": 6, "agent_reward_function": None}
VALUE = {"value": {"regex": "value=([0-9]+)", "goal": "max"}}
AGENT = """
import tunegym
class Agent(tunegym.BaseAgent):
    def select_action(self, observation):
        return {"x": [0, 1, 1, 2, 3, 4][observation.number - 1]}
"""


@pytest.fixture
def waiting(write: Callable[..., Path], scenario: Callable[..., Path]) -> Callable[..., Path]:
    """Write the scenario, with more in its ``cmd_args``."""
    write("mine.py", AGENT)
    args = {"command": f"{WAIT}; test {{x}} -gt 0 && echo value={{x}}5", "x": [0, 1, 2, 3, 4]}
    return lambda **more: scenario(args=args | more, metrics=VALUE, **SHOWN)


@pytest.fixture
def shown(
    waiting: Callable[..., Path], command_line: list[str], request: pytest.FixtureRequest
) -> Iterator[pexpect.spawn]:
    """`tunegym run` on a terminal, which waits in its fourth trial; also in its teardown, if asked for.

    The terminal is left as it was found.
    """
    program, *arguments = [*command_line, "run", str(waiting(**getattr(request, "param", {})))]
    child = pexpect.spawn(program, arguments, encoding="utf-8", timeout=60, dimensions=(24, 200))
    before = termios.tcgetattr(child.child_fd)
    with open("seen.txt", "w", newline="") as child.logfile_read:
        yield child
        after = termios.tcgetattr(child.child_fd)
        child.close(force=True)
    assert HIDE not in seen(), "a display that is killed can't show the cursor again"
    assert after == before


def seen() -> str:
    with open("seen.txt", newline="") as file:
        return file.read()


@pytest.mark.slow
def test_the_line_and_one_interrupt(
    shown: pexpect.spawn, tunegym: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    shown.expect(r"e  3/6  failed 1 \(latest: ex(…|ited with 1\))  cached 1  best value \(max\) 15 \(x=1\)  left 0:00")
    shown.sendintr()
    shown.expect("stopping: running trials are ended and stay open for a resume; once more to stop at once")
    shown.expect("e: Nothing can be recommended: 3 trials gave 1 measurement")
    shown.expect("results: results/s/")
    shown.expect(r"interrupted; to continue: tunegym resume (results/s/\S+)\r\n")
    folder = shown.match[1]
    shown.expect(pexpect.EOF)
    shown.wait()
    assert shown.exitstatus == 130
    assert "Traceback" not in seen()
    Path("go").mkdir()
    tunegym("resume", folder, code=0)
    (results,) = assert_sound(folder).values()
    assert [trial.status for trial in results.trials] == ["failed", *["measured"] * 5]


@pytest.mark.slow
@pytest.mark.parametrize("shown", [{"teardown": WAIT}], indirect=True)
def test_two_interrupts(shown: pexpect.spawn) -> None:
    shown.expect(r"e  3/6 ")
    shown.sendintr()
    shown.expect("stopping: ")
    shown.sendintr()
    shown.expect(pexpect.EOF)
    shown.wait()
    assert shown.exitstatus == 130
    assert "to continue" not in seen(), "the second one was not heard"


@pytest.mark.slow
def test_a_terminal_that_is_closed(
    waiting: Callable[..., Path],
    command_line: list[str],
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    """The window goes away: SIGHUP, and writing to it fails from then on. The run stops in good order."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command_line, "run", str(waiting())],
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
    assert left_of(results.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_poor_terminals(waiting: Callable[..., Path], command_line: list[str], environment: dict[str, str]) -> None:
    Path("go").mkdir()
    program, *arguments = [*command_line, "run", str(waiting())]
    env = {**os.environ, **environment}
    child = pexpect.spawn(program, arguments, encoding="utf-8", timeout=60, env=env, dimensions=(24, 40))
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


@pytest.mark.parametrize(
    ("total", "unit", "most_s", "first", "now", "parts"),
    [
        (1000, "step", None, (0, 0.0), (0, 0.0), ["0/1,000 steps", "after 0:00:00"]),
        (1000, "step", None, (0, 0.0), (500, 2.0), ["500/1,000 steps", "250 steps/s", "left 0:00:02"]),
        (None, "step", None, (400, 7.0), (500, 9.0), ["500 steps", "50 steps/s", "after 0:00:09"]),
        (None, "step", 60.0, (0, 0.0), (1, 50.0), ["1 step", "0.02 steps/s", "left 0:00:10"]),
        (6, "", None, (0, 0.0), (3, 60.0), ["3/6", "left 0:01:00"]),
        (None, "", None, (0, 0.0), (2, 4.0), ["2 done", "after 0:00:04"]),
    ],
)
def test_the_line(total: Any, unit: str, most_s: Any, first: Any, now: Any, parts: list[str]) -> None:
    """Counts, the pace of this session, and the time that is left by the budgets."""
    one = session(total, unit, most_s, done=first[0], elapsed_s=first[1])
    line = run.Line(one)
    one.done, one.elapsed_s = now
    assert line.parts() == ["pole", *parts]
    one.shown = {"failed": "3"}
    assert line.parts() == ["pole", *parts[:-1], "failed 3", parts[-1]]
    line.over = True
    assert line.parts()[-1].startswith("took 0:0")


def test_counts_that_are_just_being_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = session(done=5)
    line = run.Line(now)
    before = line.parts()

    def changed(_: Any) -> Progress:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(Session, "progress", changed)
    assert line.parts() == before
