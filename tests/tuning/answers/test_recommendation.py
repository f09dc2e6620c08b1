"""The settings to use: over all, in a context, near a value of a range, by the trials or by a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tunegym.core.errors import ConfigError
from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable, Recommendation, recommend
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.trial import Cancelled, Failed, Measured, Trial
from tunegym.tuning.model.values import Scalar

Row = tuple[Mapping[str, Scalar], Scalar, float | None]
"""Context, the knob ``x``, and the metric ``m``, which is the reward (None for a failure)."""

LOAD = {"load": {"values": ["low", "high", 0.1, 1, 1.0, True, "1"], "weights": None}}
NET = {"load": {"values": ["low", "high"]}, "net": {"values": ["wifi", "wire"]}}
SIZE = {"size": {"low": 1.0, "high": 10_000.0, "dtype": "float", "log": True}}
TEN = {"size": {"low": 0, "high": 10, "dtype": "int"}}


def trials(rows: Iterable[Row]) -> list[Trial]:
    made = []
    for number, (context, x, value) in enumerate(rows, start=1):
        outcome = Failed("no") if value is None else Measured(({"m": value, "other": 1.0},))
        made.append(Trial(number, context, {"x": x}, outcome, -9.0 if value is None else value, 0.1))
    return made


def ask(
    made: Sequence[Row] | Sequence[Trial],
    context: Mapping[str, Any] | None = None,
    choices: Iterable[PolicyChoice] | None = None,
    learned: int = 1000,
    **head: Any,
) -> Recommendation:
    given: Any = made if all(isinstance(one, Trial) for one in made) else trials(made)  # type: ignore[arg-type]
    knobs = {"x": {"values": [1, 2, 3, 1.0, True, "1"]}}
    whole = {"knobs": knobs, "env_params": LOAD, "metrics": ["m", "other"], "objectives": [], **head}
    policy = None if choices is None else PolicyTable("agent", learned, tuple(choices))
    declared = {} if whole["objectives"] else {"agent_metrics": ["m", "other"]}
    return recommend("e", given, whole, declared, policy, context or {})


def at(load: Scalar, x: Scalar, *values: float | None, net: str | None = None) -> list[Row]:
    context = {"load": load} if net is None else {"load": load, "net": net}
    return [(context, x, value) for value in values]


NOT_CONFIRMED = "not confirmed (confirm is off): the best value of a search flatters itself"
ROWS = [*at("low", 1, 5.0, 5.1), *at("low", 2, 3.0, 3.1), *at("high", 2, 4.0, 4.2, 4.1), *at("high", 1, 1.0, 1.1)]


# by the trials --------------------------------------------------------------------------------------------


def test_in_a_context_its_own_winner() -> None:
    assert ask([*ROWS, *at("high", 2, None)], {"load": "high"}).as_dict() == {
        "action": {"x": 2},
        "context": {"load": "high"},
        "source": "trials",
        "measured": 3,
        "mean": {"m": pytest.approx(4.1)},
        "goals": {},
        "spread": {"m": pytest.approx(0.1)},
        "failed": 1,
        "violation": 0.0,
        "note": f"{NOT_CONFIRMED}; 1 trial of these settings failed",
        "confirmed": False,
    }


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_types_stay_apart(value: Scalar) -> None:
    rows = [row for one in (1, 1.0, True) for row in at(one, one, 1.0, 1.0)]
    for choices in (None, [PolicyChoice({"x": one}, None, {"load": one}) for one in (1, 1.0, True)]):
        found = ask(rows, {"load": value}, choices)
        assert (type(found.action["x"]), type(found.context["load"]), found.measured) == (type(value), type(value), 2)


@pytest.mark.parametrize("rows", [ROWS, [*ROWS, *at("1", 3, None)]])
def test_a_context_that_was_never_measured(rows: list[Row]) -> None:
    found = ask(rows, {"load": "1"})
    assert found.action == ask(rows).action
    assert "load=1 was never measured: this is the answer over all contexts" in str(found.note)
    assert not found.mean, "values of different contexts are not averaged"


def test_part_of_a_context() -> None:
    values = {("low", "wifi"): (3.0, 1.0), ("low", "wire"): (2.0, 1.5), ("high", "wifi"): (1.0, 4.0)}
    rows = [
        row for (load, net), two in values.items() for x in (1, 2) for row in at(load, x, *[two[x - 1]] * 3, net=net)
    ]
    low = ask(rows, {"load": "low"}, env_params=NET)
    assert (dict(low.action), low.measured) == ({"x": 1}, 6)
    assert list(ask(rows, {"net": "wifi", "load": "high"}, env_params=NET).context) == ["load", "net"]


@pytest.mark.parametrize(("log", "small", "large"), [(False, 1000.0, 9000), (True, 10.0, 1000.0)])
def test_near_a_value_of_a_range(log: bool, small: float, large: float) -> None:
    """Below the middle of the scale one setting is better, above it the other."""
    rows: list[Row] = []
    for index in range(100):
        unit = (index + 0.5) / 100
        size = 10_000.0**unit if log else 1 + 9999 * unit
        rows += [({"size": size}, x, 2.0 if (unit < 0.5) == (x == 1) else 1.0) for x in (1, 2)]
    found = [ask(rows, {"size": size}, env_params={"size": {**SIZE["size"], "log": log}}) for size in (small, large)]
    assert [one.action["x"] for one in found] == [1, 2]
    assert "50 of 200 measured draws that are nearest to size=" in str(found[0].note)
    few = ask([({"size": size}, 1, 1.0) for size in range(6)], {"size": 10}, env_params=TEN)
    assert few.note == f"{NOT_CONFIRMED}; from the 6 of 6 measured draws that are nearest to size=10"


RANGE = "give a number from 0 to 10"


@pytest.mark.parametrize(
    ("env_params", "context", "words"),
    [
        (LOAD, {"laod": 1}, ["laod: there is no such env_param", "allowed: load", 'did you mean "load"?']),
        (LOAD, {"x": 1}, ["it is a knob"]),
        (LOAD, {"load": 0.5}, ["load: this is none of its candidates", "found:   0.5", '0.1, 1, 1.0, true, "1"]']),
        (LOAD, {"load": "0.1"}, ['found:   "0.1"', "hint: write load=0.1"]),
        (LOAD, {"load": [1]}, ["found:   [1]"]),
        (LOAD, {"load": None}, ["found:   None"]),
        *[(TEN, {"size": value}, [RANGE]) for value in (-1, 11, "5", True, float("nan"))],
        ({}, {"load": 1}, ["this experiment has no env_params"]),
        (LOAD, [1], ["a context is a dict of values by env_param", "found:   [1]"]),
    ],
)
def test_a_context_that_the_run_could_not_have_drawn(env_params: Any, context: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ask([({}, 1, 1.0)], context, env_params=env_params)
    assert all(part in str(caught.value) for part in words)
    assert all(problem.hint for problem in caught.value.problems)


CLOSEST = "no measured setting keeps the limits, and this one comes closest (s is 3, the limit 2)"
ON_THE_SET = "one of 2 settings on the Pareto set, the one with the highest reward: see best.toml"
LIMITS = [Objective("s", "min", limit=2.0), Objective("mb", "min", weight=0, limit=64)]
TWO = [Objective("s", "min"), Objective("mb", "min")]


@pytest.mark.parametrize(
    ("objectives", "rows", "x", "violation", "note"),
    [
        (LIMITS, [(5.0, 1.0), (3.0, 128.0), (3.0, 32.0)], 3, 0.5, CLOSEST),
        (LIMITS, [(5.0, 1.0), (1.0, 1.0)], 2, 0.0, None),
        (TWO, [(1.0, 3.0), (3.0, 1.0), (4.0, 4.0)], 1, 0.0, ON_THE_SET),
        (TWO, [(1.0, 1.0), (3.0, 2.0)], 1, 0.0, None),
    ],
)
def test_objectives(objectives: list[Objective], rows: Any, x: int, violation: float, note: str | None) -> None:
    made = [Trial(n, {}, {"x": n}, Measured(({"s": s, "mb": mb},)), -n, 0.1) for n, (s, mb) in enumerate(rows, 1)]
    found = ask(made, env_params={}, metrics=["s", "mb"], objectives=[one.as_dict() for one in objectives])
    assert (found.action, found.violation) == ({"x": x}, violation)
    assert found.note == "; ".join([NOT_CONFIRMED, *([note] if note else [])])


# by a policy ----------------------------------------------------------------------------------------------


def chosen(load: Scalar, x: Scalar) -> PolicyChoice:
    return PolicyChoice({"x": x}, 0.9, {"load": load})


def test_in_a_context_the_policy_answers() -> None:
    found = ask(ROWS, {"load": "high"}, [chosen("low", 1), chosen("high", 2)])
    assert (found.source, found.action, found.measured, found.note) == ("policy", {"x": 2}, 3, NOT_CONFIRMED)
    assert found.mean == {"m": pytest.approx(4.1)}
    rows: list[Row] = [({}, 1, 5.0), ({}, 2, 4.9), ({}, 2, 5.2), ({}, 1, 5.2)]
    found = ask(rows, None, [PolicyChoice({"x": 2})], env_params={})
    assert (found.source, dict(found.action), found.measured, found.note) == ("policy", {"x": 2}, 2, NOT_CONFIRMED)


@pytest.mark.parametrize(("context", "missing"), [(None, "load and net"), ({"net": "wifi"}, "load")])
def test_a_policy_answers_for_whole_contexts_only(context: Any, missing: str) -> None:
    rows = [({**context, "net": "wifi"}, x, value) for context, x, value in ROWS]
    found = ask(rows, context, [PolicyChoice({"x": 1}, None, {"load": "low", "net": "wifi"})], env_params=NET)
    assert found.source == "trials"
    assert f"the policy answers for a whole context: give {missing} too" in str(found.note)


FAILED = "the agent's policy chooses x=1, which failed whenever it was tried there"
NEVER = "the agent's policy chooses x=1, which was never measured there"


@pytest.mark.parametrize(
    ("more", "choices", "note"),
    [
        ([], [chosen("high", 1)], "the policy was never asked at load=low"),
        (at("low", "1", None), [chosen("low", "1")], FAILED),
        (at("low", "1", None, None), [chosen("low", "1")], FAILED),
        ([], [chosen("low", "1")], NEVER),
    ],
)
def test_a_choice_that_is_not_given(more: list[Row], choices: list[PolicyChoice], note: str) -> None:
    found = ask([*ROWS, *more], {"load": "low"}, choices)
    assert (found.source, dict(found.action)) == ("trials", {"x": 1})
    assert found.note == f"{NOT_CONFIRMED}; {note}"


@pytest.mark.parametrize(
    ("rows", "x", "measured", "note"),
    [
        (ROWS, 2, 2, "x=1 was measured better there"),
        ([*at("low", 1, 5.0, 3.0, 5.5), *at("low", 2, 4.0, 3.0, 5.0)], 2, 3, None),
        ([*at("low", 1, 5.0), *at("low", 2, 4.5, 4.0, 3.5)], 2, 3, None),
        ([*at("low", 1, 5.0), *at("low", 2, 3.0)], 2, 1, "x=1 looks better there"),
        ([*at("low", 1, 5.0), *at("low", 2, 5.0)], 2, 1, None),
        ([*ROWS, *at("low", 1, None)], 1, 2, "1 trial of these settings failed"),
    ],
)
def test_a_choice_beside_the_measurements(rows: list[Row], x: Scalar, measured: int, note: str | None) -> None:
    found = ask(rows, {"load": "low"}, [chosen("low", x)])
    assert (found.source, dict(found.action), found.measured) == ("policy", {"x": x}, measured)
    assert found.note == "; ".join([NOT_CONFIRMED, *([note] if note else [])])


def test_cancelled_and_cached_trials() -> None:
    made = trials(ROWS)
    cancelled = Trial(10, {"load": "low"}, {"x": "1"}, Cancelled(), -9.0, 0.0)
    found = ask([*made, cancelled], {"load": "low"}, [chosen("low", "1")], learned=9)
    assert (found.source, found.note) == ("trials", f"{NOT_CONFIRMED}; {NEVER}")
    cached = Trial(10, {"load": "low"}, {"x": 1}, made[0].outcome, made[0].reward, 0.0, cached_from=1)
    assert ask([*made, cached], {"load": "low"}, [chosen("low", 1)]).measured == 2
    assert "the policy was saved after 4 of 9 trials" in str(
        ask(made, {"load": "low"}, [chosen("low", 1)], learned=4).note
    )


def test_a_choice_that_exceeds_the_limits() -> None:
    limits = [Objective("m", "max").as_dict(), Objective("ms", "min", limit=10.0).as_dict()]
    rows = [(1, 5.0, 20.0), (2, 4.0, 5.0), (1, 5.0, 20.0)]
    made = [
        Trial(n, {"load": "low"}, {"x": x}, Measured(({"m": m, "ms": ms},)), m, 0.1)
        for n, (x, m, ms) in enumerate(rows, 1)
    ]
    found = ask(made, {"load": "low"}, [chosen("low", 1)], objectives=limits, metrics=["m", "ms"])
    assert (found.source, found.violation) == ("policy", pytest.approx(1.0))
    assert "it exceeds the limits (ms is 20, the limit 10)" in str(found.note)


def test_the_nearest_place_of_a_range() -> None:
    """On its own scale: 30 is nearer to 100 than to 1, and 9 is not."""
    rows: list[Row] = [({"size": 10.0 ** (index / 10)}, 1 if index < 20 else 2, 1.0) for index in range(41)]
    choices = [PolicyChoice({"x": 1 + (place >= 100)}, None, {"size": place}) for place in (1.0, 100.0, 10_000.0)]
    found = ask(rows, {"size": 30}, choices, env_params=SIZE)
    assert (found.source, dict(found.action), found.context) == ("policy", {"x": 2}, {"size": 30.0})
    assert "the policy was asked at size=100.0, which is nearest" in str(found.note)
    assert "from the 11 of 41 measured draws that are nearest to size=30.0" in str(found.note)
    assert dict(ask(rows, {"size": 9}, choices, env_params=SIZE).action) == {"x": 1}
    assert "asked" not in str(ask(rows, {"size": 100}, choices, env_params=SIZE).note)
