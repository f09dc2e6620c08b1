"""Trackers through whole runs: a real MLflow server, and ones that are away, silent or killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
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

Cli = Callable[..., subprocess.CompletedProcess[str]]

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


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[..., Path]:
    def make(tracking: str, steps: int = 20, slots: int = 1, wait: str = "true") -> Path:
        return write("tracked.toml", SCENARIO.format(tracking=tracking, steps=steps, slots=slots, wait=wait))

    return make


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A real MLflow server on loopback; it keeps its data when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait_until: Callable[..., None]) -> None:
        """Start it, if it isn't running."""
        if self.process is not None:
            return
        store, artifacts = f"sqlite:///{self.folder}/server.db", f"{self.folder}/artifacts"
        command = f"-m mlflow server --host 127.0.0.1 --port {self.port} --workers 1 --backend-store-uri {store}"
        command += f" --artifacts-destination {artifacts}"
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command.split()], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        wait_until(self.answers, "the MLflow server", 120)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
            return answer.status == 200
        return False

    def kill(self) -> None:
        """The server, and by its group the workers that it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def stored(uri: str, output: Path) -> dict[int, Any]:
    """The MLflow runs of our run by trial number; each must be there once."""
    from mlflow.tracking import MlflowClient

    (journal,) = output.glob(f"tracked/*/e/{reader.JOURNAL}")
    token = json.loads(journal.read_text().partition("\n")[0])["run"]
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tracked/e")
    if experiment is None:
        return {}
    found = client.search_runs([experiment.experiment_id], f"tags.`tunegym.run` = '{token}'", max_results=5000)
    by_number = {int(run.data.tags["tunegym.number"]): run for run in found}
    assert len(by_number) == len(found), "a trial is there twice"
    return by_number


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It takes long to start; a test that kills it may leave it so."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def server(one_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server; whether it runs is not known."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # a busy machine is not what is tested
    return one_server


def trials(output: Path) -> tuple[Trial, ...]:
    (run,) = output.glob("tracked/*")
    (results,) = assert_sound(run).values()
    return results.trials


MLFLOW_STATUS = {"measured": "FINISHED", "failed": "FAILED", "infeasible": "FAILED"}


def assert_same(found: dict[int, Any], expected: tuple[Trial, ...]) -> None:
    assert sorted(found) == [trial.number for trial in expected]
    for trial in expected:
        run = found[trial.number]
        assert run.data.params == params_of(trial)
        assert run.data.metrics == metrics_of(values_of(trial))
        assert run.data.tags["tunegym.status"] == trial.status
        assert run.data.tags.get("tunegym.reason", "") == trial.reason
        assert run.info.status == MLFLOW_STATUS[trial.status]
        assert run.info.run_name == f"trial {trial.number:06d}"
        assert run.info.end_time >= run.info.start_time > 0


def test_a_server_that_is_killed_while_it_runs(
    scenario: Callable,
    server: Server,
    start_tunegym: Callable,
    tunegym: Cli,
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A few commands have a ticket; the others wait until the server is gone."""
    server.start(wait_until)
    tickets, out, log = tmp_path / "tickets", tmp_path / "out", tmp_path / "log.txt"
    tickets.mkdir()
    for number in range(8):
        (tickets / str(number)).touch()
    take = f"rm {tickets}/$(ls {tickets} | head -n 1)"
    gate = f"until [ -e {tmp_path}/open ] || {take} 2> /dev/null; do sleep 0.02; done"
    path = scenario(f'mlflow = "{server.uri}"', steps=30, slots=2, wait=gate)
    process = start_tunegym("run", path, "--output", "out", log=log)
    wait_until(lambda: list(out.glob(f"tracked/*/e/{reader.JOURNAL}")), "the journal")
    wait_until(lambda: stored(server.uri, out), "the first trial on the server")
    server.kill()
    (tmp_path / "open").touch()
    assert process.wait(timeout=240) == 0, log.read_text()
    assert len(trials(out)) == 30
    text = log.read_text()
    assert "warning: tracker mlflow is away: " in text
    assert "of 30 trials were not sent; the journal has them, and a resume sends them" in text
    server.start(wait_until)
    done = tunegym("resume", "out")
    assert done.returncode == 0, done.stderr
    assert_same(stored(server.uri, out), trials(out))


def test_a_killed_run_is_there_once(
    scenario: Callable, start_tunegym: Callable, tunegym: Cli, wait_until: Callable[..., None], tmp_path: Path
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
    assert_same(stored(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "out"), expected)
    assert_tensorboard(tmp_path, expected)


def scalars(place: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads of the run below ``place``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = place.glob("out/tracked/*/e/tensorboard")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_tensorboard(place: Path, expected: tuple[Trial, ...]) -> None:
    found = scalars(place)
    measured = [trial for trial in expected if trial.measured]
    assert sorted(found["reward"]) == [(trial.number, np.float32(trial.reward)) for trial in measured]
    values = [(trial.number, np.float32(trial.metrics["value"])) for trial in measured]
    assert sorted(found["metrics/value"]) == values
    assert sorted(step for step, _ in found["measured"]) == [trial.number for trial in expected]
    assert found["best_reward"][-1][1] == np.float32(max(trial.reward for trial in measured))


def test_an_environment_is_tracked(scenario: Callable, tmp_path: Path) -> None:
    env = library.make(scenario("tensorboard = true"), output=tmp_path / "out")
    env.reset()
    for x in (4, 5, 6, 7, 8):
        env.step_raw({"x": x})
    env.close()
    found = trials(tmp_path / "out")
    assert [trial.status for trial in found] == ["measured", "failed", "measured", "infeasible", "measured"]
    assert_tensorboard(tmp_path, found)
