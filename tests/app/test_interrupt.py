"""Ctrl-C, SIGTERM and SIGHUP: once in good order, twice at once, and a resume that finishes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Start, document, left_of
from tests.conftest import COMMAND, Cli
from tests.soundness import assert_sound

import tunegym as library
from tunegym.core.errors import StoreError
from tunegym.core.files import dump_toml
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

# Trials 1 and 2 end by themselves; the others wait until there is a folder `go`, and say that they do.
WAITS = "while test {step} -gt 2 -a ! -d {scenario_dir}/go; do sleep 0.02; done"
BEGINS = "if test {step} -gt 2 -a ! -d {scenario_dir}/go; then (sleep 1000 &); mkdir began-{step}; fi"
WORK = """
import time
from pathlib import Path

def value(x, load, step, scenario_dir):
    folder = Path(scenario_dir)
    if step > 2:
        (folder / f"began-{step}").mkdir(exist_ok=True)
        while not (folder / "go").is_dir():
            time.sleep(0.02)
    return x * 10 + load
"""


def command(trap: str = "", teardown: str = "true") -> dict[str, Any]:
    line = f"{trap} {BEGINS}; {WAITS}; echo value={{x}}{{load}}"
    return {"args": {"command": line, "teardown": teardown}}


def python(isolate: bool) -> dict[str, Any]:
    return {"isolate": isolate, "args": {"callable": "work:value"}}


WORKLOADS = {
    "command": command(),
    "stubborn": command(trap="trap '' TERM;"),
    "slow teardown": command(teardown=WAITS),
    "isolated": python(isolate=True),
    "in process": python(isolate=False),
}


class Long:
    """A run that waits in its third trial."""

    def __init__(self, folder: Path, start: Start, wait_until: Callable[..., None]) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self._start = start
        self._wait_until = wait_until

    def write(self, kind: str, slots: int, agent: str = "random_search") -> Path:
        workload = WORKLOADS[kind]
        knobs = {"x": {"low": 1, "high": 1000000, "dtype": "int"}, "load": [1, 2, 3]}
        keys = {**workload, "args": {**workload["args"], **knobs}, "env_params": {"load": {"weights": [0.5, 0.3, 0.2]}}}
        path = self.folder / "scenario.toml"
        path.write_text(dump_toml(document(name="long", seed=3, slots=slots, agent=agent, agent_steps=6, **keys)))
        (self.folder / "work.py").write_text(WORK)
        return path

    def start(self, *arguments: Any, slots: int, **command: Any) -> subprocess.Popen[str]:
        """Start it, and wait until as many trials are in flight as there are slots."""
        process = self._start(*arguments, log=self.log, **command)

        def waiting() -> bool:
            assert process.poll() is None, self.log.read_text()
            try:
                return len([*self.folder.glob("began-*"), *self.folder.glob("results/**/began-*")]) == slots
            except FileNotFoundError:  # a folder went away while it was looked at
                return False

        self._wait_until(waiting, f"{slots} trials in flight")
        return process

    def await_text(self, text: str) -> None:
        self._wait_until(lambda: text in self.log.read_text(), text)

    def go(self) -> None:
        """Let waiting trials end."""
        (self.folder / "go").mkdir()

    @property
    def experiment(self) -> Path:
        return find_run(self.folder / "results") / "e"

    @property
    def journal(self) -> reader.Journal:
        return reader.scan(self.experiment / reader.JOURNAL)


@pytest.fixture
def long(tmp_path: Path, start_tunegym: Start, wait_until: Callable[..., None]) -> Long:
    return Long(tmp_path, start_tunegym, wait_until)


def finishes(tunegym: Cli, long: Long) -> TrialResults:
    """Resume to the end; returns sound results of every trial."""
    long.go()
    tunegym("resume", long.experiment.parent, code=0)
    (results,) = assert_sound(long.experiment.parent).values()
    assert [trial.number for trial in results.trials] == [1, 2, 3, 4, 5, 6]
    assert [trial.outcome for trial in results.trials if not trial.measured] == []
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slots", "number"),
    [
        ("command", 1, signal.SIGINT),
        ("command", 4, signal.SIGTERM),
        ("stubborn", 1, signal.SIGHUP),
        ("stubborn", 4, signal.SIGINT),
        ("isolated", 1, signal.SIGTERM),
        ("isolated", 4, signal.SIGHUP),
        ("isolated", 4, signal.SIGINT),
    ],
)
def test_once_stops_in_good_order(
    kind: str,
    slots: int,
    number: signal.Signals,
    long: Long,
    tunegym: Cli,
) -> None:
    process = long.start("run", long.write(kind, slots), slots=slots)
    before = dict(long.journal.open)
    assert len(before) == slots
    process.send_signal(number)
    assert process.wait(60) == 130, long.log.read_text()
    assert left_of(long.experiment) == []
    assert long.journal.open == before
    assert long.journal.used == {1, 2, *before}
    assert_sound(long.experiment, complete=False)
    best = tomllib.loads((long.experiment / "best.toml").read_text())["best"]
    assert best["trial"] in (1, 2)
    assert (long.experiment / "trajectory.csv").read_text().count("\n") == 3
    run = long.experiment.parent
    assert f"interrupted; to continue: tunegym resume {run.relative_to(long.folder)}\n" in long.log.read_text()
    assert not (run / "dse_failure.txt").exists()
    assert "interrupted" in tunegym("status", run).stdout
    opened = {trial.number: trial.action for trial in finishes(tunegym, long).trials}
    assert {number: opened[number] for number in before} == {n: trial.action for n, (trial, _) in before.items()}


OTHER_LOOP = """
import tunegym

class Agent(tunegym.BaseAgent):
    supports_variable_environment = True

    def run(self):
        while self.env.observe().number <= 6:
            self.env.begin({"x": self.env.observe().number})
            self.env.next_finished()
        return 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "slots"), [("random_search", 1), ("random_search", 4), ("mine:Agent", 1)])
def test_a_call_in_process_is_waited_for(agent: str, slots: int, long: Long, tunegym: Cli) -> None:
    """An agent with another loop hears of the stop by an error that is not a failure."""
    (long.folder / "mine.py").write_text(OTHER_LOOP)
    process = long.start("run", long.write("in process", slots, agent=agent), slots=slots)
    process.send_signal(signal.SIGINT)
    long.await_text("stopping: ")
    long.go()
    assert process.wait(60) == 130, long.log.read_text()
    assert not (long.experiment.parent / "dse_failure.txt").exists()
    assert long.journal.used == set(range(1, 3 + slots))
    (long.folder / "go").rmdir()
    finishes(tunegym, long)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slots", "number"),
    [
        ("in process", 1, signal.SIGINT),
        ("in process", 4, signal.SIGTERM),
        ("slow teardown", 1, signal.SIGINT),
        ("slow teardown", 4, signal.SIGHUP),
    ],
)
def test_twice_stops_at_once(
    kind: str,
    slots: int,
    number: signal.Signals,
    long: Long,
    tunegym: Cli,
) -> None:
    process = long.start("run", long.write(kind, slots), slots=slots)
    process.send_signal(number)
    long.await_text("stopping: ")
    process.send_signal(number)
    assert process.wait(60) == 130
    assert left_of(long.experiment) == []
    assert "to continue" not in long.log.read_text(), "the second signal was not waited for"
    assert len(long.journal.open) == slots
    finishes(tunegym, long)


@pytest.mark.slow
def test_nohup_means_what_it_says(long: Long) -> None:
    process = long.start("run", long.write("command", 1), slots=1, command=["nohup", *COMMAND])
    process.send_signal(signal.SIGHUP)
    long.go()
    assert process.wait(60) == 0, long.log.read_text()
    assert "stopping" not in long.log.read_text()
    (results,) = assert_sound(long.experiment).values()
    assert len(results.trials) == 6


def test_before_the_first_trial(long: Long, start_tunegym: Start, wait_until: Callable[..., None]) -> None:
    process = start_tunegym("run", long.write("command", 1), log=long.log)
    wait_until(lambda: list(long.folder.glob("results/long/*")), "the run's folder")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert "Traceback" not in long.log.read_text()


LIBRARY = """
import signal, tunegym
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
try:
    tunegym.run("scenario.toml")
except KeyboardInterrupt:
    print("was interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slots"), [("command", 1), ("command", 4), ("isolated", 1), ("isolated", 4), ("in process", 1)]
)
def test_as_a_library(
    kind: str,
    slots: int,
    long: Long,
    tunegym: Cli,
) -> None:
    """A KeyboardInterrupt comes out, nothing is left running, and the run can be resumed."""
    long.write(kind, slots)
    process = long.start(slots=slots, command=[sys.executable, "-c", LIBRARY])
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, long.log.read_text()
    assert long.log.read_text() == "was interrupted\n"
    assert left_of(long.experiment) == []
    assert len(long.journal.open) == slots
    assert (long.experiment / "best.toml").is_file()
    assert not (long.experiment.parent / "dse_failure.txt").exists()
    finishes(tunegym, long)


@pytest.mark.slow
def test_a_living_run_is_left_alone(long: Long, tunegym: Cli) -> None:
    process = long.start("run", long.write("command", 1), slots=1)
    run = long.experiment.parent
    copy = (run / "scenario.toml").read_bytes()
    done = tunegym("resume", run, "--slots", 2, "--agent-steps", 8)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is being written by process {process.pid} on " in done.stderr
    assert (run / "scenario.toml").read_bytes() == copy
    with pytest.raises(StoreError, match=f"process {process.pid}"):
        library.resume(run)
    long.go()
    assert process.wait(60) == 0
    (results,) = assert_sound(run).values()
    assert [trial.measured for trial in results.trials] == [True] * 6
