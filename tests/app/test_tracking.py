"""Trackers through whole runs: killed and resumed, with a server that is away, and in an environment."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app.conftest import Write, closed, document
from tests.conftest import Cli
from tests.soundness import assert_sound
from tests.tuning.trackers.test_sinks import runs, scalars

import tunegym as library
from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.trackers.feed import values_of
from tunegym.tuning.trackers.mlflow import metrics_of, params_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MLFLOW_STATUS = {"measured": "FINISHED", "failed": "FAILED", "infeasible": "FAILED"}


@pytest.fixture
def scenario(write: Write) -> Callable[..., Path]:
    def make(steps: int = 20, slots: int = 1, wait: str = "true", **tracking: Any) -> Path:
        command = f"{wait}; test $(( {{x}} % 5 )) -ne 0 && echo value={{x}}.{{load}}"
        args = {"command": command, "x": {"low": 1, "high": 60, "step": 1}, "load": [1, 2]}
        keys = {"repeats": 2, "constraints": ["x % 4 != 3"], "env_params": {"load": {}}}
        tracked = document(seed=4, slots=slots, args=args, agent="grid_search", agent_steps=steps, **keys)
        return write("tracked.toml", dump_toml({**tracked, "tracking": tracking}))

    return make


def trials(output: str) -> tuple[Trial, ...]:
    (results,) = assert_sound(output).values()
    return results.trials


def assert_mlflow(uri: str, expected: tuple[Trial, ...]) -> None:
    """Each trial is there once, as the journal has it."""
    found = runs(uri)
    assert sorted(found) == [f"trial {trial.number:06d}" for trial in expected]
    for trial in expected:
        run = found[f"trial {trial.number:06d}"]
        assert run.data.params == params_of(trial)
        assert run.data.metrics == metrics_of(values_of(trial))
        assert run.data.tags["tunegym.number"] == str(trial.number)
        assert run.data.tags["tunegym.status"] == trial.status
        assert run.data.tags.get("tunegym.reason", "") == trial.reason
        assert run.info.status == MLFLOW_STATUS[trial.status]
        assert run.info.end_time >= run.info.start_time > 0


def assert_tensorboard(output: str, expected: tuple[Trial, ...]) -> None:
    found = scalars(find_run(Path(output)) / "e" / "tensorboard")
    measured = [trial for trial in expected if trial.measured]
    assert sorted(found["reward"]) == [(trial.number, np.float32(trial.reward)) for trial in measured]
    values = [(trial.number, np.float32(trial.metrics["value"])) for trial in measured]
    assert sorted(found["metrics/value"]) == values
    assert sorted(step for step, _ in found["measured"]) == [trial.number for trial in expected]
    assert "best_reward" not in found, "rewards of different contexts don't compare"


def test_a_killed_run_is_there_once(
    scenario: Callable, start_tunegym: Callable, wait_until: Callable[..., None], tmp_path: Path
) -> None:
    path = scenario(mlflow="sqlite:///mlflow.db", tensorboard=True, steps=80, slots=2, wait="sleep 0.1")
    log = tmp_path / "log.txt"
    process = start_tunegym("run", path, "--output", "out", log=log)

    for least in (8, 30, 50):  # the last ones while trials are being sent
        wait_until(lambda least=least: closed(tmp_path / "out") >= least, "trials")
        process.kill()
        process.wait()
        process = start_tunegym("resume", "out", log=log)
    assert process.wait(timeout=240) == 0, log.read_text()
    expected = trials("out")
    assert len(expected) == 80
    assert {trial.status for trial in expected} == set(MLFLOW_STATUS)
    assert_mlflow(f"sqlite:///{tmp_path}/mlflow.db", expected)
    assert_tensorboard("out", expected)


def test_a_server_that_is_away_fails_no_trial(scenario: Callable, tunegym: Cli) -> None:
    """Nothing listens at its port, which stays reserved."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        done = tunegym("run", scenario(mlflow=f"http://127.0.0.1:{reserved.getsockname()[1]}"), "--output", "out")
    assert done.returncode == 0, done.stderr
    assert len(trials("out")) == 20
    assert "20 of 20 trials were not sent; the journal has them, and a resume sends them" in done.stderr


def test_an_environment_is_tracked(scenario: Callable) -> None:
    env: Any = library.make(scenario(tensorboard=True), output="out")
    env.reset()
    for x in (4, 5, 6, 7, 8):
        env.step_raw({"x": x})
    env.close()
    found = trials("out")
    assert [trial.status for trial in found] == ["measured", "failed", "measured", "infeasible", "measured"]
    assert_tensorboard("out", found)
