"""The settings to use, over all and in a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tunegym.core import toml
from tunegym.core.errors import ConfigError, StoreError, TunegymError
from tunegym.tuning.answers.recommendation import Recommendation
from tunegym.tuning.model.outcome import Failed, Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.reports.recommend import recommend
from tunegym.tuning.reports.results import load
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.trials import JournalStore

Row = tuple[Mapping[str, Scalar], Mapping[str, Scalar], float | None]
"""Context, action, and the metric (None for a failure)."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """A run with these trials; the reward is minus the metric ``seconds``."""

    def write(env_params: dict[str, Any], rows: list[Row], name: str = "e", names: tuple[str, ...] = ("e",)) -> Path:
        document = {
            "scenario_dir": str(tmp_path),
            "experiments": [
                {"name": one, "agent_metrics": ["seconds", "other"], "agent_reward_function": "negative"}
                for one in names
            ],
        }
        (tmp_path / "scenario.toml").write_text(toml.dumps(document))
        knobs = {"x": {"values": [1, 2, 3]}}
        store = JournalStore(
            tmp_path / name, Head(name, "token", 0, "random_search", knobs, env_params, ["seconds"]), Session("p")
        )
        for context, action, value in rows:
            store.hold(0)
            opened = store.open(0, context, action)
            outcome = Failed("no") if value is None else Measured(({"seconds": value, "other": 1.0},))
            reward = -1e6 if value is None else -value
            store.close_trial(Trial(opened.number, context, action, outcome, reward, 0.1))
        store.close()
        return tmp_path

    return write


LOAD = {"load": {"values": [0.1, 1, 1.0, True, "1"], "weights": None}}


def at(load: Scalar, x: int, value: float | None) -> Row:
    return {"load": load}, {"x": x}, value


ROWS = [
    *(at(0.1, 1, value) for value in (1.0, 1.2)),
    *(at(0.1, 2, value) for value in (2.0, 2.0)),
    *(at(1, 1, value) for value in (9.0, 9.0)),
    *(at(1, 2, value) for value in (4.0, 4.5)),
    at(1, 2, None),
    *(at(1.0, 3, value) for value in (5.0, 5.0)),
    *(at(1.0, 2, value) for value in (6.0, 6.0)),
]


def test_over_all_it_is_the_winner_of_best_toml(run: Callable[..., Path]) -> None:
    folder = run(LOAD, ROWS)
    found = recommend(folder)
    best = load(folder).experiments["e"].best
    assert best is not None
    assert found.action == best.action
    assert found.setting == best
    assert (found.context, found.source, found.note) == ({}, "trials", None)
    assert found.measured == len(best.samples)


def test_in_a_context_its_own_winner(run: Callable[..., Path]) -> None:
    folder = run(LOAD, ROWS)
    low = recommend(folder, {"load": 0.1})
    assert low.as_dict() == {
        "action": {"x": 1},
        "context": {"load": 0.1},
        "source": "trials",
        "measured": 2,
        "mean": {"seconds": pytest.approx(1.1)},
        "spread": {"seconds": pytest.approx(0.02**0.5)},
        "failed": 0,
        "violation": 0.0,
        "note": None,
    }
    high = recommend(folder, {"load": 1})
    assert (dict(high.action), high.failed) == ({"x": 2}, 1)
    assert dict(recommend(folder, {"load": 1.0}).action) == {"x": 3}, "1 and 1.0 are different"


@pytest.mark.parametrize("value", [True, "1"])
def test_a_context_that_was_never_measured(run: Callable[..., Path], value: Scalar) -> None:
    folder = run(LOAD, ROWS)
    found = recommend(folder, {"load": value})
    assert found.setting == recommend(folder).setting
    assert found.note is not None
    assert "never measured" in found.note
    assert found.as_dict()["note"] == found.note
    assert found.context == {"load": value}


def test_a_context_in_which_all_failed(run: Callable[..., Path]) -> None:
    found = recommend(run(LOAD, [*ROWS, at("1", 3, None)]), {"load": "1"})
    assert found.note is not None
    assert "never measured" in found.note


TWO = {"load": {"values": ["low", "high"], "weights": None}, "net": {"values": ["wifi", "wire"], "weights": None}}


def test_part_of_a_context(run: Callable[..., Path]) -> None:
    def there(load: str, net: str, x: int, value: float) -> Row:
        return {"load": load, "net": net}, {"x": x}, value

    rows = [
        there("low", net, x, value)
        for net, values in {"wifi": (1.0, 3.0), "wire": (1.5, 2.0)}.items()
        for x, value in enumerate(values, start=1)
        for _ in range(3)
    ]
    rows += [there("high", net, x, {1: 8.0, 2: 4.0}[x]) for net in ("wifi", "wire") for x in (1, 2) for _ in range(3)]
    folder = run(TWO, rows)
    assert dict(recommend(folder, {"load": "low"}).action) == {"x": 1}
    assert recommend(folder, {"load": "low"}).measured == 6
    assert dict(recommend(folder, {"load": "high"}).action) == {"x": 2}
    assert recommend(folder, {"net": "wire", "load": "high"}).measured == 3
    assert list(recommend(folder, {"net": "wire", "load": "high"}).context) == ["load", "net"]


@pytest.mark.parametrize("log", [False, True])
def test_near_a_value_of_a_range(run: Callable[..., Path], log: bool) -> None:
    """Below the middle (of the scale) one setting is better, above it the other."""
    spec = {"size": {"low": 1, "high": 10_000, "dtype": "float", "weights": None} | ({"log": True} if log else {})}
    rows: list[Row] = []
    for index in range(100):
        unit = (index + 0.5) / 100
        size = 10_000.0**unit if log else 1 + 9999 * unit
        rows += [({"size": size}, {"x": x}, 1.0 if (unit < 0.5) == (x == 1) else 2.0) for x in (1, 2)]
    folder = run(spec, rows)
    small, large = (10.0, 1000.0) if log else (1000.0, 9000)
    found = recommend(folder, {"size": small})
    assert dict(found.action) == {"x": 1}
    assert found.note is not None
    assert "50 of 200 measured draws that are nearest to size=" in found.note
    assert dict(recommend(folder, {"size": large}).action) == {"x": 2}
    assert type(recommend(folder, {"size": large}).context["size"]) is float


def test_few_draws_of_a_range_all_count(run: Callable[..., Path]) -> None:
    spec = {"size": {"low": 0, "high": 10, "dtype": "int", "weights": None}}
    rows: list[Row] = [({"size": size}, {"x": 1}, 1.0) for size in range(6)]
    found = recommend(run(spec, rows), {"size": 10})
    assert found.note == "from the 6 of 6 measured draws that are nearest to size=10"


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"laod": 1}, ["laod: there is no such env_param", "allowed: load", "did you mean load?"]),
        ({"x": 1}, ["it is a knob"]),
        ({"load": 0.5}, ["load: this is none of its candidates", "found:   0.5", '[0.1, 1, 1.0, true, "1"]']),
        ({"load": "0.1"}, ['found:   "0.1"', "hint: write load=0.1"]),
        ({"load": [1]}, ["found:   [1]"]),
        ({"load": None}, ["found:   None"]),
    ],
)
def test_what_the_run_could_not_have_drawn(run: Callable[..., Path], context: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        recommend(run(LOAD, ROWS), context)
    for part in told:
        assert part in str(caught.value)
    assert all(problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize("value", [-1, 11, "5", True, float("nan")])
def test_out_of_a_range(run: Callable[..., Path], value: Any) -> None:
    spec = {"size": {"low": 0, "high": 10, "dtype": "int", "weights": None}}
    with pytest.raises(ConfigError, match="give a number from 0 to 10"):
        recommend(run(spec, [({"size": 1}, {"x": 1}, 1.0)]), {"size": value})


def test_no_env_params(run: Callable[..., Path]) -> None:
    folder = run({}, [({}, {"x": 1}, 2.0), ({}, {"x": 2}, 1.0)])
    assert dict(recommend(folder).action) == {"x": 2}
    with pytest.raises(ConfigError, match="this experiment has no env_params"):
        recommend(folder, {"load": 1})


def test_nothing_was_measured(run: Callable[..., Path]) -> None:
    with pytest.raises(StoreError, match="no trial was measured"):
        recommend(run(LOAD, [at(1, 1, None)]))
    with pytest.raises(StoreError, match="no trial was measured"):
        recommend(run(LOAD, []), {"load": 1})


def test_several_experiments(run: Callable[..., Path]) -> None:
    run(LOAD, ROWS, name="left", names=("left", "right"))
    folder = run({}, [({}, {"x": 3}, 1.0)], name="right", names=("left", "right"))
    with pytest.raises(ConfigError, match="left, right"):
        recommend(folder)
    with pytest.raises(ConfigError, match="did you mean right"):
        recommend(folder, experiment="rigth")
    assert dict(recommend(folder, experiment="right").action) == {"x": 3}
    assert recommend(folder / "right").experiment == "right"


def test_an_experiment_that_was_not_started(run: Callable[..., Path]) -> None:
    folder = run(LOAD, ROWS, names=("e", "later"))
    with pytest.raises(TunegymError, match="no trial was measured"):
        recommend(folder, {"load": 1}, experiment="later")


def test_it_is_a_value(run: Callable[..., Path]) -> None:
    found = recommend(run(LOAD, ROWS))
    assert isinstance(found, Recommendation)
    with pytest.raises(AttributeError):
        found.measured = 3  # type: ignore[misc]
