from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tunegym.tuning.answers.importance import FEWEST, importance
from tunegym.tuning.model.trial import Failed, Measured, Trial

Draw = Callable[[random.Random], Any]


def told(count: int, reward: Callable[[dict[str, Any], random.Random], float], seed: int = 1, **draws: Draw) -> Any:
    """The shares of some trials, whose knobs are drawn and whose rewards are computed from them."""
    rng = random.Random(seed)
    made = []
    for number in range(1, count + 1):
        action = {name: one(rng) for name, one in draws.items()}
        value = reward(action, rng)
        made.append(Trial(number, {}, action, Measured(({"m": value},)), value, 0.0))
    return importance(made, dict.fromkeys(draws, "knob"))


def shares(found: dict[str, Any]) -> dict[str, float | None]:
    return {one["name"]: one["share"] for one in found["shares"]}


def test_the_knob_that_matters_comes_first() -> None:
    """A valley of a range is seen, which a correlation would miss; env_params count, too."""
    draws: dict[str, Draw] = {"noise": lambda r: r.random(), "x": lambda r: r.choice([1, 2, 3])}
    found = told(80, lambda a, _: 10.0 * a["x"] + a["noise"], **draws)
    assert [one["name"] for one in found["shares"]] == ["x", "noise"]
    assert shares(found)["x"] == pytest.approx(1.0, abs=0.01)
    assert (found["trials"], found["note"]) == (80, None)
    valley = shares(told(100, lambda a, _: (a["x"] - 0.5) ** 2, x=lambda r: r.random(), noise=lambda r: r.random()))
    assert (valley["x"] or 0) > 0.8
    assert (valley["noise"] or 0) < 0.2
    made = [Trial(n, {"load": n % 2}, {"x": n % 3}, Measured(({"m": 1.0},)), float(n % 2), 0.0) for n in range(1, 31)]
    first = importance(made, {"x": "knob", "load": "env_param"})["shares"][0]
    assert first == {"name": "load", "kind": "env_param", "share": 1.0}


@pytest.mark.parametrize("values", [2, 10, 30])
def test_a_knob_without_effect_has_no_share(values: int) -> None:
    """The plain share of explained variance would be about (values - 1) / 59 here."""
    found = [told(60, lambda _, r: r.gauss(0, 1), seed, x=lambda r: r.randrange(values)) for seed in range(30)]
    assert sum(shares(one)["x"] or 0.0 for one in found) / len(found) < 0.06


@pytest.mark.parametrize(
    ("reward", "draw", "share"),
    [
        pytest.param(lambda a, _: float(isinstance(a["x"], bool)), lambda r: r.choice([1, True]), 1.0, id="types"),
        pytest.param(lambda a, _: len(a["x"]), lambda r: str(r.random()), None, id="names that come once"),
        pytest.param(lambda a, _: a["x"] * 1e300, lambda r: r.choice([1, -1]), 1.0, id="huge rewards"),
    ],
)
def test_a_single_knob(reward: Any, draw: Draw, share: float | None) -> None:
    assert shares(told(40, reward, x=draw)) == {"x": share}


def test_too_few_trials_and_equal_rewards_have_no_shares() -> None:
    measured = [Trial(n, {}, {"x": n}, Measured(({"m": n},)), n, 0.0) for n in range(1, FEWEST)]
    others = [Trial(n, {}, {"x": 1}, Failed("f"), -1e15, 0.0) for n in range(20, 40)]
    others += [Trial(n, {}, {"x": 1}, measured[0].outcome, 1.0, 0.0, cached_from=1) for n in range(40, 60)]
    found = importance([*measured, *others], {"x": "knob"})
    assert (found["shares"], found["note"]) == ([], f"9 measured trials are too few: {FEWEST} are needed")
    assert told(20, lambda *_: 3.0, x=lambda r: r.random())["note"] == "every reward is the same"


def test_knobs_that_move_together_are_not_told_apart() -> None:
    """An agent that learns moves all knobs towards good values at the same time: each seems to explain it all."""
    rng = random.Random(3)
    made = []
    for number in range(1, 61):
        action = {f"k{index}": number / 60 + rng.uniform(-0.2, 0.2) for index in range(8)}
        made.append(Trial(number, {}, action, Measured(({"m": 1.0},)), sum(action.values()), 0.0))
    found = importance(made, dict.fromkeys(made[0].action, "knob"))
    assert found["shares"] == []
    assert "moved together" in found["note"]


def test_independent_knobs_are_told_apart() -> None:
    """However many there are, and however few trials: chance alone doesn't add up to that much."""
    draws: dict[str, Draw] = {f"k{index}": lambda r: r.random() for index in range(10)}
    for seed in range(20):
        assert told(60, lambda a, _: sum(a.values()), seed, **draws)["note"] is None


def test_contexts_are_removed_first() -> None:
    """A knob that decides everything within a context counts in full, however much contexts differ."""
    made = []
    for n in range(1, 81):
        load, x, y = n % 4, n % 3, n % 7
        reward = 1000.0 * load + x * (1.0 + load)
        made.append(Trial(n, {"load": load}, {"x": x, "y": y}, Measured(({"m": reward},)), reward, 0.0))
    names = {"x": "knob", "y": "knob", "load": "env_param"}
    found = shares(importance(made, names))
    assert found["x"] == pytest.approx(1.0, abs=0.01)
    assert found["y"] == pytest.approx(0.0, abs=0.05)
    assert (found["load"] or 0) > 0.99
    fresh = [replace(one, phase="confirm", reward=1e6) for one in made]
    assert importance([*made, *fresh], names) == importance(made, names)


def test_contexts_of_a_range_are_removed_too() -> None:
    rng = random.Random(1)
    made = []
    for n in range(1, 121):
        load, x = rng.random(), n % 3
        made.append(Trial(n, {"load": load}, {"x": x}, Measured(({"m": 1.0},)), 10.0 * load + x, 0.0))
    assert (shares(importance(made, {"x": "knob", "load": "env_param"}))["x"] or 0) > 0.7


def test_knobs_that_matter_only_together() -> None:
    draws: dict[str, Draw] = {name: lambda r: r.choice([0, 1]) for name in "abc"}
    found = told(120, lambda a, r: float(a["a"] != a["b"]) + 0.01 * r.random(), **draws)
    assert max(share or 0.0 for share in shares(found).values()) < 0.1
    assert (found["pairs"][0]["names"], found["pairs"][0]["share"]) == (["a", "b"], pytest.approx(1.0, abs=0.01))
    assert found["pairs"][0]["together"] > 0.8
    apart = told(120, lambda a, _: a["a"] + 2.0 * a["b"], **draws)["pairs"][0]
    assert (sorted(apart["names"]), apart["together"]) == (["a", "b"], pytest.approx(0.0, abs=0.1))
    ranges = told(200, lambda a, _: (a["x"] - a["y"]) ** 2, x=lambda r: r.random(), y=lambda r: r.random())["pairs"]
    assert ranges[0]["share"] > 0.6
