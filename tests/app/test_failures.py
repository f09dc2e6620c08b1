"""What a failing agent, reporter or disk does to a run, and what it never does."""

from __future__ import annotations

import subprocess
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.reports.results import find_run

pytestmark = pytest.mark.slow  # every test starts the command anew

Cli = Callable[..., subprocess.CompletedProcess[str]]

SCENARIO = """
name = "trouble"

[[experiments]]
name = "first"
workload = "python"
agent = "mine:{agent}"
agent_steps = 5
agent_metrics = ["value"]
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
  x = [1, 2, 3, 4, 5, 6]

[[experiments]]
name = "second"
workload = "python"
agent = "mine:Good"
agent_metrics = ["value"]
isolate = false
  [experiments.cmd_args]
  callable = "work:value"
  x = [1, 2]
"""

WORK = "def value(x): return x"

AGENTS = """
import sys
from pathlib import Path
import tunegym

class Good(tunegym.BaseAgent):
    finite = True

    def select_action(self, observation):
        return {"x": observation.number} if observation.number <= 2 else None

    def close(self):
        (Path.cwd() / f"closed-{type(self).__name__}").touch()

class ReturnsOne(Good):
    def run(self):
        super().run()
        return 1

class Raises(Good):
    def select_action(self, observation):
        if observation.number == 3:
            self.sabotage()
            raise LookupError("the agent's own mistake")
        return {"x": observation.number}

    def sabotage(self):
        pass

class RaisesWithoutReports(Raises):
    def sabotage(self):
        for run in Path("results").glob("trouble/*"):
            (run / "first" / "best.toml").mkdir(exist_ok=True)
            (run / "dse_failure.txt").mkdir(exist_ok=True)

class RaisesUnsayable(Raises):
    def sabotage(self):
        raise Unsayable("\\udc80")

class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("even its text fails")

class CloseRaises(Good):
    def close(self):
        super().close()
        raise OSError("the agent can't let go")

class BothRaise(Raises, CloseRaises):
    pass

class Exits(Raises):
    def sabotage(self):
        sys.exit(0)

class ConstructorRaises(Good):
    def __init__(self, *arguments):
        raise LookupError("not even built")
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[[str], Path]:
    def make(agent: str) -> Path:
        write("work.py", WORK)
        write("mine.py", AGENTS)
        return write("scenario.toml", SCENARIO.format(agent=agent))

    return make


def closed(agent: str) -> bool:
    return Path(f"closed-{agent}").exists()


def test_a_recoverable_failure_lets_the_next_experiment_run(tunegym: Cli, scenario: Callable[[str], Path]) -> None:
    done = tunegym("run", scenario("ReturnsOne"))
    assert done.returncode == 1
    assert "the agent of first returned 1" in done.stderr
    assert "Traceback" not in done.stderr
    results = assert_sound("results")
    assert [len(one.trials) for one in results.values()] == [2, 2]
    assert not (find_run(Path("results")) / "dse_failure.txt").exists()
    assert closed("ReturnsOne")
    assert closed("Good")


def test_an_exception_ends_the_run_and_is_written_down(tunegym: Cli, scenario: Callable[[str], Path]) -> None:
    done = tunegym("run", scenario("Raises"))
    assert done.returncode == 1
    assert "LookupError: the agent's own mistake" in done.stderr
    run = find_run(Path("results"))
    assert not (run / "second").exists()
    told = (run / "dse_failure.txt").read_text()
    assert "experiment first was ended by LookupError: the agent's own mistake" in told.splitlines()[0]
    assert 'mine.py", line' in told
    assert "in select_action" in told
    best = tomllib.loads((run / "first" / "best.toml").read_text())["best"]
    assert best["settings"] == {"x": 2}
    assert (run / "first" / "trajectory.csv").read_text().splitlines()[-1].startswith("2,measured,false,2")
    assert closed("Raises")
    assert "results: " in done.stdout
    assert "tunegym resume" in done.stderr
    assert "the agent's own mistake" in tunegym("status", run).stdout


def test_the_exception_is_raised_with_its_own_traceback(scenario: Callable[[str], Path]) -> None:
    with pytest.raises(LookupError, match="own mistake") as caught:
        library.run(scenario("Raises"))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "select_action"
    assert Path(frames[-1].filename).name == "mine.py"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_after_a_mended_agent_a_resume_finishes(
    tunegym: Cli, scenario: Callable[[str], Path], write: Callable[..., Path]
) -> None:
    assert tunegym("run", scenario("Raises")).returncode == 1
    write("mine.py", AGENTS.replace("observation.number == 3", "False"))
    done = tunegym("resume", "results")
    assert done.returncode == 0, done.stderr
    assert [len(one.trials) for one in assert_sound("results").values()] == [5, 2]
    assert not (find_run(Path("results")) / "dse_failure.txt").exists()


def test_neither_reporter_nor_failure_file_masks_it(tunegym: Cli, scenario: Callable[[str], Path]) -> None:
    done = tunegym("run", scenario("RaisesWithoutReports"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "LookupError: the agent's own mistake" in done.stderr
    assert "the report of first could not be written" in done.stderr
    assert "dse_failure.txt could not be written" in done.stderr
    with pytest.raises(LookupError, match="own mistake"):
        library.run(scenario("RaisesWithoutReports"))


def test_an_exception_without_a_text_is_raised_all_the_same(scenario: Callable[[str], Path]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        library.run(scenario("RaisesUnsayable"))
    assert type(caught.value).__name__ == "Unsayable"


def test_what_close_raises_is_logged_and_fails_the_run(tunegym: Cli, scenario: Callable[[str], Path]) -> None:
    done = tunegym("run", scenario("CloseRaises"))
    assert done.returncode == 1
    assert "the agent's close() failed" in done.stderr
    assert "the agent can't let go" in done.stderr
    assert [len(one.trials) for one in assert_sound("results").values()] == [2, 2]


def test_what_close_raises_masks_nothing(scenario: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LookupError, match="own mistake"):
        library.run(scenario("BothRaise"))
    assert closed("BothRaise")
    assert "the agent's close() failed" in caplog.text


def test_an_agent_that_exits_is_no_success(tunegym: Cli, scenario: Callable[[str], Path]) -> None:
    done = tunegym("run", scenario("Exits"))
    assert done.returncode == 1
    assert "sys.exit(0)" in done.stderr
    run = find_run(Path("results"))
    assert not (run / "second").exists()
    assert "SystemExit" in (run / "dse_failure.txt").read_text()


def test_an_agent_that_cannot_be_built(scenario: Callable[[str], Path]) -> None:
    with pytest.raises(LookupError, match="not even built"):
        library.run(scenario("ConstructorRaises"))
    run = find_run(Path("results"))
    assert "not even built" in (run / "dse_failure.txt").read_text()
    assert not (run / "first" / "writer.lock").exists()


def test_a_failure_while_others_run_ends_them(
    tunegym: Cli, write: Callable[..., Path], processes_of: Callable[[str], list[int]], token_of: Callable[[Path], str]
) -> None:
    """Three commands run for ever when the agent gives up: nothing of them is left."""
    write(
        "mine.py",
        """
        import tunegym
        class Agent(tunegym.BaseAgent):
            def select_action(self, observation):
                if observation.number == 4:
                    raise LookupError("enough")
                return {"x": observation.number}
        """,
    )
    scenario = write(
        "scenario.toml",
        """
        name = "wide"
        system = { slots = 4 }
        [[experiments]]
        name = "e"
        workload = "command"
        agent = "mine:Agent"
        agent_steps = 9
        agent_metrics = ["duration_s"]
          [experiments.cmd_args]
          command = "sleep 1000 & sleep 100{x}"
          x = [1, 2, 3, 4]
        """,
    )
    done = tunegym("run", scenario)
    assert done.returncode == 1
    assert "LookupError: enough" in done.stderr
    folder = find_run(Path("results")) / "e"
    assert processes_of(token_of(folder)) == []
    (results,) = assert_sound("results", complete=False).values()
    assert sorted(results.journal.open) == [1, 2, 3]


def test_no_measurement_at_all_is_a_failure(tunegym: Cli, write: Callable[..., Path]) -> None:
    text = """
        name = "barren"
        [[experiments]]
        name = "e"
        workload = "command"
        agent_metrics = ["duration_s"]
          [experiments.cmd_args]
          command = "exit {x}"
          x = [1, 2]
        """
    done = tunegym("run", write("scenario.toml", text))
    assert done.returncode == 1
    assert "none of its trials was measured" in done.stderr
    assert "e: no trial was measured" in done.stdout
    assert "1 x failed: exited with 2" in done.stdout
    assert_sound("results")
    assert tunegym("resume", "results").returncode == 1
