"""What a policy chooses in each context, as the report and its JSON tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import Choice, PolicyTable
from tunegym.tuning.model.trial import Failed, Measured, Trial
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.reports import trials as trial_results
from tunegym.tuning.reports.page import run_document
from tunegym.tuning.reports.results import RunResults

KNOBS = {"x": {"values": [1, 1.0, True]}}
DECLARED = {"agent_metrics": ["m"], "agent_reward_function": "identity"}


def trial(number: int, load: Scalar, x: Scalar, value: float | None, **keys: Any) -> Trial:
    outcome = Failed("no") if value is None else Measured(({"m": value},))
    return Trial(number, {"load": load}, {"x": x}, outcome, -9.0 if value is None else value, 0.1, **keys)


@pytest.fixture
def facts(written: Callable[..., RunResults]) -> Callable[..., Any]:
    def told(trials: Iterable[Trial], choices: Iterable[Choice] | None, env_params: Any, learned: int = 9) -> Any:
        results = written(list(trials), knobs=KNOBS, env_params=env_params, declared=DECLARED)
        if choices is not None:
            policies.save(results.folder / "e", PolicyTable("agent", learned, tuple(choices)))
        return run_document(results, {}, None)["experiments"][0]["policy"]

    return told


LOAD = {"load": {"values": [1, 1.0, True]}}
TRIALS = [
    trial(1, 1, 1, 2.0),
    trial(2, 1, 1, 4.0),
    trial(3, 1, 1, 4.0, cached_from=2),
    trial(4, 1, 1, None),
    trial(5, 1, 1.0, 8.0),
    trial(6, 1, 1.0, 8.0),
    trial(7, 1.0, True, 1.0),
    trial(8, True, 1.0, 1.0),
]


def test_beside_what_was_measured(facts: Callable[..., Any]) -> None:
    choices = [Choice({"x": 1}, 0.5, {"load": 1}), Choice({"x": True}, None, {"load": 1.0})]
    choices.append(Choice({"x": True}, 0.25, {"load": True}))
    found = facts(TRIALS, choices, LOAD)
    assert {key: value for key, value in found.items() if key != "choices"} == {"error": None, "trials": 9, "of": 3}
    first, second, third = found["choices"]
    assert first == {
        "context": {"load": 1},
        "action": {"x": 1},
        "chance": 0.5,
        "drawn": 6,
        "samples": 2,
        "failed": 1,
        "reward": 3.0,
        "reward_spread": pytest.approx(2**0.5),
        "best": {"action": {"x": 1.0}, "reward": 8.0, "samples": 2, "chosen": False},
    }
    assert (second["samples"], second["reward_spread"], second["best"]["chosen"]) == (1, None, True)
    assert type(second["context"]["load"]) is float
    assert (third["samples"], third["reward"], third["failed"], third["drawn"]) == (0, None, 0, 1)


def test_the_most_often_drawn_ones_where_there_are_many(
    facts: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_results, "MOST_CHOICES", 2)
    choices = [Choice({"x": 1}, 0.5, {"load": load}) for load in (True, 1.0, 1)]
    found = facts([*TRIALS, trial(9, 1.0, 1, 1.0)], choices, LOAD)
    assert found["of"] == 3
    assert [type(one["context"]["load"]) for one in found["choices"]] == [int, float]
    env_params = {"load": {"low": 0.0, "high": 2.0, "dtype": "float"}}
    choices = [Choice({"x": 1}, 0.5, {"load": place / 4}) for place in range(9)]
    found = facts([trial(1, 0.5, 1, 2.0)], choices, env_params)
    assert (found["of"], [one["context"]["load"] for one in found["choices"]]) == (9, [0.0, 1.25])


def test_none_and_damaged(facts: Callable[..., Any]) -> None:
    assert facts(TRIALS, None, LOAD) is None
    assert facts(TRIALS, [], LOAD) is None
    found = facts(TRIALS, [Choice({"y": 1}, 0.5, {"load": 1})], LOAD)
    assert "doesn't belong to this journal" in found["error"]
    assert found["choices"] == []
