"""On a real terminal: the moving line, Ctrl-C, and a terminal that is left as it was found."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from tests.soundness import assert_sound

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
def terminal(scenario: Path, command_line: list[str], request: pytest.FixtureRequest) -> Iterator[pexpect.spawn]:
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
    terminal: pexpect.spawn, tunegym: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    before = termios.tcgetattr(terminal.child_fd)
    terminal.expect(r"e  3/6  failed 1  cached 1  best 15 \(x=1\)  left 0:00:0\d")
    terminal.sendintr()
    terminal.expect("stopping: running trials are ended and stay open for a resume; once more to stop at once")
    terminal.expect("e: best settings")
    terminal.expect("results: results/shown/")
    terminal.expect(r"interrupted; to continue: tunegym resume (results/shown/\S+)\r\n")
    folder = terminal.match[1]
    terminal.expect(pexpect.EOF)
    assert_usable(terminal, before)
    terminal.wait()
    assert terminal.exitstatus == 130
    assert "Traceback" not in seen()
    Path("go").mkdir()
    done = tunegym("resume", folder)
    assert done.returncode == 0, done.stderr
    (results,) = assert_sound(folder).values()
    assert [trial.status for trial in results.trials] == ["failed", *["measured"] * 5]


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True], indirect=True)
def test_two_interrupts(terminal: pexpect.spawn) -> None:
    before = termios.tcgetattr(terminal.child_fd)
    terminal.expect(r"e  3/6 ")
    terminal.sendintr()
    terminal.expect("stopping: ")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    assert_usable(terminal, before)
    terminal.wait()
    assert terminal.exitstatus == 130
    assert "to continue" not in seen(), "the second one was not heard"


@pytest.mark.slow
def test_to_the_end(terminal: pexpect.spawn) -> None:
    Path("go").mkdir()
    terminal.expect(r"e  6/6  failed 1  cached 1  best 45 \(x=4\)  took 0:00:0\d")
    terminal.expect("e: best settings")
    terminal.expect(r"results: results/shown/\S+\r\n")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
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
