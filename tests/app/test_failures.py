"""What a failing agent, report or disk does to a run, and what it never does."""

from __future__ import annotations

import json
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, document, embedded, experiment, left_of
from tests.conftest import Cli
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.reports.results import find_run

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
    code = 1

    def run(self):
        super().run()
        return self.code

class ReturnsNone(ReturnsOne):
    code = None

class ReturnsText(ReturnsOne):
    code = "done"

class ReturnsTrue(ReturnsOne):
    code = True

class ReturnsSeven(ReturnsOne):
    code, failure = 7, "out of ideas\\udcff"

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
def scenario(write: Write, write_scenario: Write) -> Callable[[str], Path]:
    def make(agent: str) -> Path:
        write("work.py", "def value(x): return x")
        write("mine.py", AGENTS)
        args = {"callable": "work:value", "x": [1, 2, 3, 4, 5, 6]}
        first = experiment("first", agent=f"mine:{agent}", agent_steps=5, args=args)
        return write_scenario(first, experiment("second", agent="mine:Good", args=args), name="trouble")

    return make


def closed(agent: str) -> bool:
    return Path(f"closed-{agent}").exists()


@pytest.mark.parametrize(
    ("agent", "code", "told"),
    [
        ("ReturnsNone", 1, "run() of mine:ReturnsNone returned None, expected an integer"),
        ("ReturnsText", 1, "run() of mine:ReturnsText returned 'done', expected an integer"),
        ("ReturnsTrue", 1, "run() of mine:ReturnsTrue returned True, expected an integer"),
        ("ReturnsOne", 1, "the agent ended"),
        ("ReturnsSeven", 7, r"out of ideas\udcff"),
    ],
)
def test_codes_of_agents_are_kept_and_shown(
    agent: str, code: int, told: str, cli: Cli, scenario: Callable[[str], Path]
) -> None:
    done = cli("run", scenario(agent))
    reason = "" if agent == "ReturnsOne" else f": {told}"
    assert (done.returncode, f"the agent of first returned {code}{reason}\n" in done.stderr) == (1, True)
    assert ("hint: end run() with `return 0`" in done.stderr) == ("expected an integer" in told)
    assert [len(one.trials) for one in assert_sound("results").values()] == [2, 2]
    assert not (find_run(Path("results")) / "dse_failure.txt").exists()
    assert closed(agent)
    assert closed("Good")
    assert f"first: it ended with code {code} ({told})" in cli("status").stdout
    assert json.loads(cli("list", "runs", "--json").stdout)[0]["state"] == "failed"
    for command in ("status", "report"):
        first, second = json.loads(cli(command, "--json").stdout)["experiments"]
        assert (first["state"], first["code"], first["ended"]) == ("failed", code, told)
        assert (second["state"], second["code"], second["problem"]) == ("finished", 0, None)


def test_an_exception_ends_the_run_and_a_resume_finishes_it(
    cli: Cli, scenario: Callable[[str], Path], write: Write
) -> None:
    done = cli("run", scenario("Raises"), code=1)
    assert "error: LookupError: the agent's own mistake\n  raised in " in done.stderr
    line = 1 + AGENTS.partition("raise LookupError")[0].count("\n")
    assert f'mine.py, line {line}, in select_action: raise LookupError("the agent\'s own mistake")' in done.stderr
    assert "/dse_failure.txt has the whole traceback" in done.stderr
    assert "Traceback" not in done.stderr
    assert "results: " in done.stdout
    assert "tunegym resume" in done.stderr
    run = find_run(Path("results"))
    assert not (run / "second").exists()
    told = (run / "dse_failure.txt").read_text()
    assert "experiment first was ended by LookupError: the agent's own mistake" in told.splitlines()[0]
    assert 'mine.py", line' in told
    assert "in select_action" in told
    page = embedded(run)
    assert told == page["failure"]
    assert page["experiments"][0]["trials"]["done"] == 2
    assert tomllib.loads((run / "first" / "best.toml").read_text())["best"]["settings"] == {"x": 2}
    assert (run / "first" / "trajectory.csv").read_text().splitlines()[-1].startswith("2,measured,false,2")
    assert closed("Raises")
    assert "the agent's own mistake" in cli("status", run).stdout
    write("mine.py", AGENTS.replace("observation.number == 3", "False"))
    assert cli("resume", "results").returncode == 0
    assert [len(one.trials) for one in assert_sound("results").values()] == [5, 2]
    assert not (run / "dse_failure.txt").exists()


def test_the_exception_is_raised_with_its_own_traceback(scenario: Callable[[str], Path]) -> None:
    with pytest.raises(LookupError, match="own mistake") as caught:
        library.run(scenario("Raises"))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].name, Path(frames[-1].filename).name) == ("select_action", "mine.py")
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.parametrize(
    ("agent", "error", "logged"),
    [
        ("RaisesWithoutReports", "LookupError", ["best.toml could not be", "dse_failure.txt could not be"]),
        ("RaisesUnsayable", "Unsayable", []),
        ("BothRaise", "LookupError", ["the agent's close() failed"]),
        ("ConstructorRaises", "LookupError", []),
    ],
)
def test_nothing_masks_the_exception(
    agent: str, error: str, logged: list[str], scenario: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        library.run(scenario(agent))
    assert type(caught.value).__name__ == error
    for text in logged:
        assert text in caplog.text
    run = find_run(Path("results"))
    assert (run / "dse_failure.txt").is_file() == (agent in ("BothRaise", "ConstructorRaises"))
    assert not (run / "first" / "writer.lock").exists()


def test_an_error_of_close_fails_the_run(cli: Cli, scenario: Callable[[str], Path]) -> None:
    done = cli("run", scenario("CloseRaises"), code=1)
    assert "the agent's close() failed" in done.stderr
    assert "the agent can't let go" in done.stderr
    assert [len(one.trials) for one in assert_sound("results").values()] == [2, 2]


def test_an_agent_that_exits_is_no_success(cli: Cli, scenario: Callable[[str], Path]) -> None:
    done = cli("run", scenario("Exits"))
    assert (done.returncode, "sys.exit(0)" in done.stderr) == (1, True)
    run = find_run(Path("results"))
    assert not (run / "second").exists()
    assert "SystemExit" in (run / "dse_failure.txt").read_text()


WIDE = """
import tunegym
class Agent(tunegym.BaseAgent):
    def select_action(self, observation):
        if observation.number == 4:
            raise LookupError("enough")
        return {"x": observation.number}
"""


def command(text: str, **keys: Any) -> dict[str, Any]:
    keys |= {"agent_metrics": ["duration_s"], "agent_reward_function": None, "metrics": None}
    return document(args={"command": text, "x": [1, 2, 3, 4]}, **keys)


def test_a_failure_while_others_run_ends_them(write: Write) -> None:
    """Three commands run for ever when the agent gives up: nothing of them is left."""
    write("mine.py", WIDE)
    with pytest.raises(LookupError, match="enough"):
        library.run(command("sleep 1000 & sleep 100{x}", agent="mine:Agent", agent_steps=9, slots=4))
    assert left_of(find_run(Path("results")) / "e") == []
    (results,) = assert_sound("results", complete=False).values()
    assert sorted(results.journal.open) == [1, 2, 3]


LOOP = """
import tunegym

class Loop(tunegym.BaseAgent):
    def run(self):
        for _ in range(60 - self.env.tally.done):
            self.env.begin({"x": 1})
            self.env.next_finished()
        return 0
"""


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    "agent",
    [
        "random_search",
        "optuna",
        "bayes",
        "mine:Loop",
        pytest.param("ppo", marks=pytest.mark.slow),
        pytest.param("dqn", marks=pytest.mark.slow),
    ],
)
def test_an_experiment_that_only_fails_ends_early(
    cli: Cli, write: Write, write_scenario: Write, agent: str, slots: int
) -> None:
    """With the reason, and the next one runs; fixed and resumed, it goes on."""
    write("mine.py", LOOP)
    keys: dict[str, Any] = {"agent": agent, "agent_steps": 60, "cache": "off", "agent_metrics": ["value"]}
    typo = experiment("typo", args={"command": "{scenario_dir}/work.sh {x}", "x": [1, 2, 3]}, **keys)
    fine = experiment("fine", args={"command": "echo value={x}", "x": [1, 2]}, stop_after_failures=1)
    path = write_scenario(typo, fine, slots=slots)
    done = cli("run", path)
    reason = "work.sh: No such file or directory"
    assert done.returncode == 1
    assert "typo: ended, all of the first 10 failed: exited with 127: bash: line 1: " in done.stderr
    assert " (latest: exited with 127: bash: line 1: " in done.stderr
    assert reason in cli("status", "results").stdout
    results = assert_sound("results")
    assert 10 <= len(results["typo"].trials) < 10 + slots
    assert reason in results["typo"].ended
    assert results["typo"].journal.ended.code == 1
    assert len(results["fine"].trials) == 2
    script = path.with_name("work.sh")
    script.write_text("#!/bin/sh\necho value=$1\n")
    script.chmod(0o755)
    assert cli("resume", "results").returncode == 0
    typo = assert_sound("results")["typo"]
    assert len(typo.trials) == 60 or typo.ended == "every setting was tried"
    assert {trial.status for trial in typo.trials[12:]} == {"measured"}


def test_a_failing_command_never_wins(write_scenario: Write, cli: Cli) -> None:
    """Also where a later command, or the rest of a pipe, hides its exit code; with a flag and a raw knob."""
    args = {
        "setup": "seq 100 > data.txt",
        "command": "sort {order:raw} {stable:--stable} --parallel={parallel} data.txt | wc -l; echo value={parallel}",
        "order": ["-n", "-n -r", ""],
        "stable": [True, False],
        "parallel": [1, 0, 2],
    }
    done = cli("run", write_scenario(args=args, agent_reward_function="negative"), code=0)
    (results,) = assert_sound("results").values()
    assert {trial.action["parallel"] for trial in results.trials if not trial.measured} == {0}
    assert results.best.action["parallel"] == 1
    assert "6 x failed: exited with 2: sort: number in parallel must be nonzero" in done.stdout
    printed = {trial.number: results.folder / f"trials/{trial.number:06d}" for trial in results.trials}
    kept = [trial.number for trial in results.trials if not trial.measured] + [results.best.trials[0]]
    assert [number for number, folder in printed.items() if folder.exists()] == sorted(kept)


def test_no_measurement_at_all_is_a_failure(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    assert library.run(command("exit {x}")) == 1
    assert "none of its trials was measured" in caplog.text
    done = cli("resume", "results", code=1)
    assert "e: no trial was measured" in done.stdout
    assert "1 x failed: exited with 2" in done.stdout
    assert_sound("results")
