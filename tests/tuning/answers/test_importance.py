from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tunegym.tuning.answers.importance import FEWEST, importance
from tunegym.tuning.model.outcome import Failed, Measured
from tunegym.tuning.model.trial import Trial

KNOB = {"x": "knob", "noise": "knob"}


def trials(
    count: int, reward: Callable[[dict[str, Any]], float], **draw: Callable[[random.Random], Any]
) -> list[Trial]:
    rng = random.Random(1)
    made = []
    for number in range(1, count + 1):
        action = {name: one(rng) for name, one in draw.items()}
        value = reward(action)
        made.append(Trial(number, {}, action, Measured(({"m": value},)), value, 0.0))
    return made


def shares(told: dict[str, Any]) -> dict[str, float | None]:
    return {one["name"]: one["share"] for one in told["shares"]}


def test_the_knob_that_matters_comes_first() -> None:
    made = trials(80, lambda a: 10.0 * a["x"] + a["noise"], noise=lambda r: r.random(), x=lambda r: r.choice([1, 2, 3]))
    told = importance(made, {"noise": "knob", "x": "knob"})
    assert [one["name"] for one in told["shares"]] == ["x", "noise"]
    assert shares(told)["x"] == pytest.approx(1.0, abs=0.01)
    assert told["trials"] == 80
    assert told["note"] is None


@pytest.mark.parametrize("values", [2, 10, 30])
def test_a_knob_that_does_nothing_explains_nothing_however_many_values_it_has(values: int) -> None:
    """The plain share of explained variance would be about (values - 1) / 59 here."""
    means = []
    for seed in range(30):
        rng = random.Random(seed)
        made = trials(60, lambda a, rng=rng: rng.gauss(0, 1), x=lambda r, rng=rng: rng.randrange(values))
        means.append(shares(importance(made, {"x": "knob"}))["x"])
    assert sum(mean or 0.0 for mean in means) / len(means) < 0.06


def test_a_range_is_cut_into_bins() -> None:
    made = trials(100, lambda a: (a["x"] - 0.5) ** 2, x=lambda r: r.random(), noise=lambda r: r.random())
    told = shares(importance(made, KNOB))
    assert (told["x"] or 0) > 0.8, "a valley is seen, which a correlation would miss"
    assert (told["noise"] or 0) < 0.2


def test_equal_values_share_a_bin_and_types_stay_apart() -> None:
    made = trials(40, lambda a: float(isinstance(a["x"], bool)), x=lambda r: r.choice([1, True]))
    assert shares(importance(made, {"x": "knob"})) == {"x": 1.0}


def test_env_params_count_too() -> None:
    made = [
        Trial(n, {"load": n % 2}, {"x": n % 3}, Measured(({"m": float(n % 2)},)), float(n % 2), 0.0)
        for n in range(1, 31)
    ]
    told = importance(made, {"x": "knob", "load": "env_param"})
    assert told["shares"][0] == {"name": "load", "kind": "env_param", "share": 1.0}


def test_names_that_come_once_say_nothing() -> None:
    made = trials(20, lambda a: len(a["x"]), x=lambda r: str(r.random()))
    assert shares(importance(made, {"x": "knob"})) == {"x": None}


def test_too_few_trials() -> None:
    made = trials(FEWEST - 1, lambda a: a["x"], x=lambda r: r.random())
    made += [Trial(n, {}, {"x": 1.0}, Failed("f"), -1e15, 0.0) for n in range(20, 40)]
    made += [Trial(n, {}, {"x": 1.0}, Measured(({"m": 1.0},)), 1.0, 0.0, cached_from=1) for n in range(40, 60)]
    told = importance(made, {"x": "knob"})
    assert told["shares"] == []
    assert told["note"] == f"{FEWEST - 1} measured trials are too few: {FEWEST} are needed"
    assert importance(made[:1], KNOB)["note"] == f"1 measured trial is too few: {FEWEST} are needed"


def test_nothing_varies() -> None:
    assert (
        importance(trials(20, lambda a: 3.0, x=lambda r: r.random()), {"x": "knob"})["note"]
        == "every reward is the same"
    )


def test_huge_rewards() -> None:
    told = importance(trials(20, lambda a: a["x"] * 1e300, x=lambda r: r.choice([1, -1])), {"x": "knob"})
    assert shares(told) == {"x": 1.0}


def test_knobs_that_move_together_are_not_told_apart() -> None:
    """As with an agent that learns: all go towards what is good at the same time, and each seems to explain it all."""
    rng = random.Random(3)
    made = []
    for number in range(1, 61):
        action = {f"k{index}": number / 60 + rng.uniform(-0.2, 0.2) for index in range(8)}
        value = sum(action.values())
        made.append(Trial(number, {}, action, Measured(({"m": value},)), value, 0.0))
    told = importance(made, dict.fromkeys(made[0].action, "knob"))
    assert told["shares"] == []
    assert "moved together" in told["note"]


def test_knobs_that_vary_by_themselves_are() -> None:
    """However many there are, and however few trials: chance alone doesn't add up to that much."""
    for seed in range(20):
        rng = random.Random(seed)
        made = []
        for number in range(1, 61):
            action = {f"k{index}": rng.random() for index in range(10)}
            value = sum(action.values())
            made.append(Trial(number, {}, action, Measured(({"m": value},)), value, 0.0))
        assert importance(made, dict.fromkeys(made[0].action, "knob"))["note"] is None
