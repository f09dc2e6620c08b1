"""MLflow and TensorBoard in stores on disk: each has every item of the journal once, and as the journal says."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.heads import head

from tunegym.tuning.model.trial import Cancelled, Failed, Measured, Pruned, Trial
from tunegym.tuning.trackers import tensorboard
from tunegym.tuning.trackers.feed import Item, values_of
from tunegym.tuning.trackers.mlflow import ENVIRONMENT, MlflowSink, key, keyed, metrics_of, params_of, tags_of
from tunegym.tuning.trackers.tensorboard import TensorboardSink

pytestmark = pytest.mark.filterwarnings("ignore")


def item_of(trial: Trial) -> Item:
    return Item(trial.number, 1002.5, values_of(trial), trial, 1000.0)


def entry(number: int, outcome: Any, reward: float = 1.5, **keys: Any) -> Item:
    action = {"x": number, "server.mode": "fast", "pin": True}
    return item_of(Trial(number, {"load": 0.25}, action, outcome, reward, 1.0, **keys))


def measured(*values: float) -> Measured:
    return Measured(tuple({"v": value} for value in values))


POINTS = [Item(at, 1000.0 + at, {"episode/return": float(at), "episodes": 1.0}) for at in (3, 8, 12)]

# MLflow ---------------------------------------------------------------------------------------------------


def test_a_trial_in_mlflows_words() -> None:
    item = entry(7, Measured(({"v": 1.0, "reward": 3.0}, {"v": 2.0, "reward": 3.0})), cached_from=2)
    assert item.trial is not None
    assert params_of(item.trial) == {"x": "7", "server.mode": "fast", "pin": "true", "context.load": "0.25"}
    spreads = {"spread.v": pytest.approx(0.5**0.5), "spread.reward": 0.0}
    assert metrics_of(item.values) == {"reward": 1.5, "v": 1.5, "metric.reward": 3.0, **spreads}
    tags = {"tunegym.status": "measured", "tunegym.phase": "search"}
    assert tags_of(item.trial) == {**tags, "tunegym.cached_from": "2"}
    failed = entry(8, Failed("exited with 1"))
    assert failed.trial is not None
    assert metrics_of(failed.values) == {}
    assert tags_of(failed.trial) == {**tags, "tunegym.status": "failed", "tunegym.reason": "exited with 1"}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, which takes MLflow seconds to make."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(params=["database", "folder"])
def uri(request: pytest.FixtureRequest, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if request.param == "folder":
        return f"{tmp_path}/mlruns"
    shutil.copy(empty, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


def opened(uri: str, there: set[int], **plain: Any) -> MlflowSink:
    sink = MlflowSink(uri, "s/e")
    assert sink.open(head(**plain)) == there
    return sink


def runs(uri: str) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("s/e")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in found}) == len(found), "a trial is there twice"
    return {run.info.run_name: run for run in found}


ENTRIES = [
    entry(1, measured(1.0), reports=((1, 0.5), (2, 0.75))),
    entry(2, Failed("odd \0 \ud800 " + "long" * 3000)),
    entry(3, Cancelled()),
    entry(4, Pruned()),
    entry(5, Measured(({"odd % name": 1.0, "..": 2.0, "nan": float("nan")},))),
]


@pytest.mark.slow
def test_each_trial_is_there_once(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was only begun when its sender was killed is completed."""
    assert list(opened(uri, set()).send(ENTRIES[:3])) == [1, 2, 3]
    killed = opened(uri, {1, 2, 3})
    monkeypatch.setattr(killed, "_log", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        list(killed.send(ENTRIES[3:]))
    assert list(opened(uri, {1, 2, 3}).send(ENTRIES[3:])) == [4, 5]
    found = runs(uri)
    statuses = [found[f"trial {n:06d}"].info.status for n in range(1, 6)]
    assert statuses == ["FINISHED", "FAILED", "KILLED", "KILLED", "FINISHED"]
    first = found["trial 000001"]
    assert (first.info.start_time, first.info.end_time) == (1_000_000, 1_002_500)
    assert first.data.params == params_of(ENTRIES[0].trial)  # type: ignore[arg-type]
    assert first.data.metrics == {"reward": 1.5, "v": 1.0, "reported": 0.75}
    assert (first.data.tags["tunegym.run"], first.data.tags["tunegym.number"]) == ("token", "1")
    assert set(found["trial 000005"].data.metrics) == {"reward", "odd _ name", "__"}
    opened(uri, set(), run="another run")


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["database"], indirect=True)
def test_many_parameters_and_reports(uri: str) -> None:
    reports = tuple((step, float(step)) for step in range(2000))
    action = {f"knob_{index}": index for index in range(250)}
    trial = Trial(1, {}, action, measured(1.0), 1.0, 1.0, reports=reports)
    assert list(opened(uri, set()).send([item_of(trial)])) == [1]
    (run,) = runs(uri).values()
    assert len(run.data.params) == 250
    assert run.data.metrics["reported"] == 1999.0


@pytest.mark.slow
def test_a_live_experiment_is_one_run(uri: str) -> None:
    from mlflow.tracking import MlflowClient

    for there, points in ((set(), POINTS[:2]), ({3, 8}, POINTS[2:])):
        sink = opened(uri, there, live={}, agent="ppo", seed=1)
        assert list(sink.send(points)) == [point.number for point in points]
        sink.close()
    (run,) = runs(uri).values()
    assert run.info.status == "FINISHED"
    assert run.data.params == {"agent": "ppo", "seed": "1"}
    history = MlflowClient(uri).get_metric_history(run.info.run_id, "episode/return")
    assert [(one.step, one.value) for one in history] == [(3, 3.0), (8, 8.0), (12, 12.0)]


NAMES = st.text(st.characters(), max_size=400) | st.text(alphabet="./ a-", max_size=12)


@pytest.mark.slow  # mlflow takes its time to be imported
@given(NAMES)
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name, _validate_param_name

    name = key(name)
    _validate_metric_name(name)
    _validate_param_name(name)
    assert len(name) <= MAX_ENTITY_KEY_LENGTH


@given(st.dictionaries(NAMES, st.integers(), max_size=20))
def test_no_two_names_become_one(values: dict[str, int]) -> None:
    found = keyed(values)
    assert list(found.values()) == list(values.values())
    assert len({name.lower() for name in found}) == len(values)


# TensorBoard ----------------------------------------------------------------------------------------------

SCALARS = [
    entry(1, measured(1.0, 2.0), 1.5),
    entry(3, measured(0.1, 0.1), 0.1),  # overtook the second
    entry(2, Failed("why"), -99.0),
    entry(4, measured(7.0, 9.0), 8.0),
]


def accumulated(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = accumulated(folder)
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def hparams(folder: Path) -> dict[str, Any]:
    from tensorboard.plugins.hparams import metadata

    content = accumulated(folder).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def send(folder: Path, items: Sequence[Item] = SCALARS) -> None:
    """One session."""
    sink = TensorboardSink(str(folder))
    assert sink.open(head()) == set()
    assert list(sink.send(items)) == [item.number for item in items]
    sink.close()


def test_scalars_and_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first trials have a folder with parameters. Another session doubles nothing."""
    monkeypatch.setattr(tensorboard, "MOST_HPARAMS", 2)
    (tmp_path / "notes.txt").write_text("a user's own")
    send(tmp_path)
    sink = TensorboardSink(str(tmp_path))
    for items in (SCALARS[:1], SCALARS):  # opened again after an error
        sink.open(head())
        list(sink.send(items))
    sink.close()
    found = scalars(tmp_path)
    assert found["measured"] == [(1, 1.0), (3, 1.0), (2, 0.0), (4, 1.0)], "TensorBoard draws them by step"
    assert found["reward"] == found["metrics/v"] == [(1, 1.5), (3, np.float32(0.1)), (4, 8.0)]
    assert "best_reward" not in found, "rewards of different contexts don't compare"
    assert found["spread/v"] == [(1, np.float32(0.5**0.5)), (3, 0.0), (4, np.float32(2**0.5))]
    first, second = sorted((tmp_path / "trials").iterdir())
    parameters = {"x": 1.0, "server.mode": "fast", "pin": True, "context.load": 0.25}
    assert hparams(first) == {**parameters, "tunegym.status": "measured", "tunegym.phase": "search"}
    assert scalars(first)["reward"] == [(1, 1.5)]
    assert hparams(second)["tunegym.status"] == "failed"
    assert "reward" not in scalars(second), "a penalty is no measurement"
    assert len(list(tmp_path.glob("events*"))) == 1
    assert all(len(list(folder.iterdir())) == 1 for folder in (tmp_path / "trials").iterdir())
    assert (tmp_path / "notes.txt").read_text() == "a user's own"


def test_the_best_so_far_without_contexts(tmp_path: Path) -> None:
    trials = [Trial(n, {}, {"x": n}, measured(reward), reward, 0.1) for n, reward in enumerate((1.0, 0.5, 2.0), 1)]
    send(tmp_path, [item_of(trial) for trial in trials])
    assert scalars(tmp_path)["best_reward"] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def train(folder: Path, *lines: str) -> None:
    (folder / "policy").mkdir(exist_ok=True)
    with (folder / "policy" / "training.jsonl").open("a") as file:
        file.write("".join(lines))


def update(trials: int, loss: float) -> str:
    return f'{{"trials": {trials}, "values": {{"train/loss": {loss}, "train/none": null}}}}\n'


def test_training_curves_are_written_along(tmp_path: Path) -> None:
    """A torn line waits for its rest; lines that are no update, and earlier trials, are passed over."""
    odd = ["", "{", "\x00", "[]", '{"trials": "2", "values": {}}', '{"trials": 2}', '{"trials": 2, "values": [1]}']
    sink = TensorboardSink(str(tmp_path / "tensorboard"))
    sink.open(head())
    list(sink.send(POINTS[:1]))
    train(tmp_path, update(1, 0.5), *(f"{line}\n" for line in odd), update(3, 0.25), update(2, 9.0), '{"trials": 4, "v')
    list(sink.send(POINTS[1:]))
    train(tmp_path, 'alues": {"train/loss": 2.0}}\n', update(9, 4.0))
    sink.close()
    for _ in range(2):
        found = scalars(tmp_path / "tensorboard")
        assert found["training/train/loss"] == [(1, 0.5), (3, 0.25), (4, 2.0), (9, 4.0)]
        assert found["episode/return"] == [(3, 3.0), (8, 8.0), (12, 12.0)]
        assert "measured" not in found
        send(tmp_path / "tensorboard", POINTS)  # another session doubles nothing
