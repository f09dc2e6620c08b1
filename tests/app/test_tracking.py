"""Trackers through whole runs: killed and resumed, with a server that is away, and in an environment."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.stores import reader
from tunegym.tuning.trackers.feed import values_of
from tunegym.tuning.trackers.mlflow import metrics_of, params_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SCENARIO = """
name = "tracked"
seed = 4
system.slots = {slots}
[tracking]
{tracking}
[[experiments]]
name = "e"
workload = "command"
agent = "random_search"
agent_steps = {steps}
agent_metrics = ["value"]
repeats = 2
constraints = ["x % 4 != 3"]
  [experiments.cmd_args]
  command = "{wait}; test $(( {{x}} % 5 )) -ne 0 && echo value={{x}}.{{load}}"
  x = {{ low = 1, high = 60 }}
  load = [1, 2]
  [experiments.env_params]
  load = {{}}
  [experiments.metrics]
  value = {{ regex = 'value=([0-9.]+)' }}
"""
MLFLOW_STATUS = {"measured": "FINISHED", "failed": "FAILED", "infeasible": "FAILED"}


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[..., Path]:
    def make(tracking: str, steps: int = 20, slots: int = 1, wait: str = "true") -> Path:
        return write("tracked.toml", SCENARIO.format(tracking=tracking, steps=steps, slots=slots, wait=wait))

    return make


def trials(output: Path) -> tuple[Trial, ...]:
    (run,) = output.glob("tracked/*")
    (results,) = assert_sound(run).values()
    return results.trials


def assert_mlflow(uri: str, output: Path, expected: tuple[Trial, ...]) -> None:
    """Each trial is there once, as the journal has it."""
    from mlflow.tracking import MlflowClient

    (journal,) = output.glob(f"tracked/*/e/{reader.JOURNAL}")
    token = json.loads(journal.read_text().partition("\n")[0])["run"]
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tracked/e")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`tunegym.run` = '{token}'", max_results=5000)
    by_number = {int(run.data.tags["tunegym.number"]): run for run in found}
    assert sorted(by_number) == [trial.number for trial in expected]
    assert len(by_number) == len(found), "a trial is there twice"
    for trial in expected:
        run = by_number[trial.number]
        assert run.data.params == params_of(trial)
        assert run.data.metrics == metrics_of(values_of(trial))
        assert run.data.tags["tunegym.status"] == trial.status
        assert run.data.tags.get("tunegym.reason", "") == trial.reason
        assert run.info.status == MLFLOW_STATUS[trial.status]
        assert run.info.run_name == f"trial {trial.number:06d}"
        assert run.info.end_time >= run.info.start_time > 0


def assert_tensorboard(place: Path, expected: tuple[Trial, ...]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = place.glob("out/tracked/*/e/tensorboard")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    measured = [trial for trial in expected if trial.measured]
    assert sorted(found["reward"]) == [(trial.number, np.float32(trial.reward)) for trial in measured]
    values = [(trial.number, np.float32(trial.metrics["value"])) for trial in measured]
    assert sorted(found["metrics/value"]) == values
    assert sorted(step for step, _ in found["measured"]) == [trial.number for trial in expected]
    assert found["best_reward"][-1][1] == np.float32(max(trial.reward for trial in measured))


def test_a_killed_run_is_there_once(
    scenario: Callable, start_tunegym: Callable, wait_until: Callable[..., None], tmp_path: Path
) -> None:
    path = scenario('mlflow = "sqlite:///mlflow.db"\ntensorboard = true', steps=80, slots=2, wait="sleep 0.1")
    log = tmp_path / "log.txt"
    process = start_tunegym("run", path, "--output", "out", log=log)

    def closed() -> int:
        return sum(reader.scan(journal).closed for journal in (tmp_path / "out").rglob(reader.JOURNAL))

    for least in (8, 30, 50):  # the last ones while trials are being sent
        wait_until(lambda least=least: closed() >= least, "trials")
        process.kill()
        process.wait()
        process = start_tunegym("resume", "out", log=log)
    assert process.wait(timeout=240) == 0, log.read_text()
    expected = trials(tmp_path / "out")
    assert len(expected) == 80
    assert {trial.status for trial in expected} == set(MLFLOW_STATUS)
    assert_mlflow(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "out", expected)
    assert_tensorboard(tmp_path, expected)


def test_a_server_that_is_away_fails_no_trial(
    scenario: Callable, tunegym: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Nothing listens at its port, which stays reserved."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        done = tunegym("run", scenario(f'mlflow = "http://127.0.0.1:{reserved.getsockname()[1]}"'), "--output", "out")
    assert done.returncode == 0, done.stderr
    assert len(trials(tmp_path / "out")) == 20
    assert "20 of 20 trials were not sent; the journal has them, and a resume sends them" in done.stderr


def test_an_environment_is_tracked(scenario: Callable, tmp_path: Path) -> None:
    env: Any = library.make(scenario("tensorboard = true"), output=tmp_path / "out")
    env.reset()
    for x in (4, 5, 6, 7, 8):
        env.step_raw({"x": x})
    env.close()
    found = trials(tmp_path / "out")
    assert [trial.status for trial in found] == ["measured", "failed", "measured", "infeasible", "measured"]
    assert_tensorboard(tmp_path, found)
