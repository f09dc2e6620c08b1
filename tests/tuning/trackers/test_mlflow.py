"""MLflow in stores on disk: it has each trial of the journal once, after any kill."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.trial import Cancelled, Failed, Measured, Pruned, Trial
from tunegym.tuning.trackers.feed import Item, values_of
from tunegym.tuning.trackers.mlflow import ENVIRONMENT, MlflowSink, key, keyed, metrics_of, params_of, tags_of, text

pytestmark = pytest.mark.filterwarnings("ignore")


def item_of(trial: Trial) -> Item:
    return Item(trial.number, 1002.5, values_of(trial), trial, 1000.0)


def entry(number: int, outcome: Any, **keys: Any) -> Item:
    action = {"x": number, "server.mode": "fast", "pin": True}
    return item_of(Trial(number, {"load": 0.25}, action, outcome, 1.5, 1.0, **keys))


def test_a_trial_as_mlflow_is_told_of_it() -> None:
    item = entry(7, Measured(({"v": 1.0, "reward": 3.0}, {"v": 2.0, "reward": 3.0})), cached_from=2)
    trial = item.trial
    assert trial is not None
    assert params_of(trial) == {"x": "7", "server.mode": "fast", "pin": "true", "context.load": "0.25"}
    metrics = metrics_of(item.values)
    assert metrics == {
        "reward": 1.5,
        "v": 1.5,
        "metric.reward": 3.0,
        "spread.v": pytest.approx(0.5**0.5),
        "spread.reward": 0.0,
    }
    assert tags_of(trial) == {"tunegym.status": "measured", "tunegym.cached_from": "2"}
    failed = entry(8, Failed("exited with 1"))
    assert failed.trial is not None
    assert metrics_of(failed.values) == {}
    assert tags_of(failed.trial) == {"tunegym.status": "failed", "tunegym.reason": "exited with 1"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, which takes MLflow seconds to make."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> str:
    """The address of an empty database."""
    shutil.copy(empty, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


def runs(uri: str) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("s/e")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in found}) == len(found), "a trial is there twice"
    return {run.info.run_name: run for run in found}


ENTRIES = [
    entry(1, Measured(({"v": 1.0},)), reports=((1, 0.5), (2, 0.75))),
    entry(2, Failed("odd \0 \ud800 " + "long" * 3000)),
    entry(3, Cancelled()),
    entry(4, Pruned()),
    entry(5, Measured(({"odd % name": 1.0, "..": 2.0, "nan": float("nan")},))),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["database", "folder"])
def test_each_trial_is_there_once(tmp_path: Path, environment: None, database: str, kind: str) -> None:
    uri = database if kind == "database" else f"{tmp_path}/mlruns"
    sink = MlflowSink(uri, "s/e")
    assert sink.open({"run": "token"}) == set()
    assert list(sink.send(ENTRIES[:3])) == [1, 2, 3]
    again = MlflowSink(uri, "s/e")
    assert again.open({"run": "token"}) == {1, 2, 3}
    assert list(again.send(ENTRIES[3:])) == [4, 5]
    found = runs(uri)
    assert [found[f"trial {n:06d}"].info.status for n in range(1, 6)] == [
        "FINISHED",
        "FAILED",
        "KILLED",
        "KILLED",
        "FINISHED",
    ]
    first = found["trial 000001"]
    assert (first.info.start_time, first.info.end_time) == (1_000_000, 1_002_500)
    assert first.data.params == params_of(ENTRIES[0].trial)  # type: ignore[arg-type]
    assert first.data.metrics == {"reward": 1.5, "v": 1.0, "reported": 0.75}
    assert first.data.tags["tunegym.run"] == "token"
    assert first.data.tags["tunegym.number"] == "1"
    assert set(found["trial 000005"].data.metrics) == {"reward", "odd _ name", "__"}
    assert MlflowSink(uri, "s/e").open({"run": "another run"}) == set()


@pytest.mark.slow
def test_one_that_was_only_begun_is_completed(
    environment: None, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = database
    sink = MlflowSink(uri, "s/e")
    sink.open({"run": "token"})
    monkeypatch.setattr(sink, "_log", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        list(sink.send(ENTRIES[:1]))
    sink = MlflowSink(uri, "s/e")
    assert sink.open({"run": "token"}) == set()
    assert list(sink.send(ENTRIES[:1])) == [1]
    (run,) = runs(uri).values()
    assert run.info.status == "FINISHED"
    assert run.data.metrics["v"] == 1.0


@pytest.mark.slow
def test_many_parameters_and_reports(environment: None, database: str) -> None:
    uri = database
    sink = MlflowSink(uri, "s/e")
    sink.open({"run": "token"})
    reports = tuple((step, float(step)) for step in range(2000))
    action = {f"knob_{index}": index for index in range(250)}
    trial = Trial(1, {}, action, Measured(({"v": 1.0},)), 1.0, 1.0, reports=reports)
    assert list(sink.send([item_of(trial)])) == [1]
    (run,) = runs(uri).values()
    assert len(run.data.params) == 250
    assert run.data.metrics["reported"] == 1999.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["database", "folder"])
def test_a_live_experiment_is_one_run(tmp_path: Path, environment: None, database: str, kind: str) -> None:
    from mlflow.tracking import MlflowClient

    uri = database if kind == "database" else f"{tmp_path}/mlruns"
    head = {"run": "token", "live": {"record": "all"}, "agent": "ppo", "seed": 1}
    points = [Item(at, 1000.0 + at, {"episode/return": float(at), "episodes": 1.0}) for at in (3, 8, 12)]
    sink = MlflowSink(uri, "s/e")
    assert sink.open(head) == set()
    assert list(sink.send(points[:2])) == [3, 8]
    sink.close()
    again = MlflowSink(uri, "s/e")
    assert again.open(head) == {3, 8}
    assert list(again.send(points[2:])) == [12]
    again.close()
    (run,) = runs(uri).values()
    assert run.info.status == "FINISHED"
    assert run.data.params == {"agent": "ppo", "seed": "1"}
    history = MlflowClient(uri).get_metric_history(run.info.run_id, "episode/return")
    assert [(one.step, one.value) for one in history] == [(3, 3.0), (8, 8.0), (12, 12.0)]


# names and values ----------------------------------------------------------------------------------------

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


def test_ordinary_names_stay() -> None:
    for name in ("threads", "server.port", "extra_env_vars.OMP_NUM_THREADS", "context.load", "p99 ms", "a/b"):
        assert key(name) == name
    assert key("p99%") == "p99_"
    assert key("../x") == ".._x".replace(".", "_")
    assert key("a//b") == "a__b"
    assert key("") == "_"


def test_values() -> None:
    assert [text(value) for value in (1, 1.0, True, "1", "a b")] == ["1", "1.0", "true", "1", "a b"]
    assert text("x" * 7000) == "x" * 5997 + "..."
    assert text("a\0b\ud800") == "a\\0b\\ud800"
    assert metrics_of({"a": 1, "b": math.nan, "c": math.inf, "d": None, "e": 2.5}) == {"a": 1.0, "e": 2.5}
