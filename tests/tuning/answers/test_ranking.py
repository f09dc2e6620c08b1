from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.answers.best import best_of
from tunegym.tuning.answers.ranking import front
from tunegym.tuning.model.objective import Objective
from tunegym.tuning.model.outcome import Failed, Measured, Outcome, Pruned
from tunegym.tuning.model.trial import Trial

BOTH = [Objective("a", "max"), Objective("b", "min")]


def trial(
    number: int, x: int, a: float, b: float, outcome: Outcome | None = None, context: dict[str, int] | None = None
) -> Trial:
    measured = Measured(({"a": a, "b": b},))
    return Trial(number, context or {}, {"x": x}, outcome or measured, a - b, 0.0)


def shown(trials: list[Trial], objectives: list[Objective]) -> set[object]:
    return {setting.action["x"] for setting in best_of(trials, objectives).pareto}


def dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and one != other


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.dictionaries(st.binary(min_size=1, max_size=2), st.tuples(*[st.integers(0, 5)] * width))
    )
)
def test_the_front_is_what_nothing_dominates(vectors: dict[bytes, tuple[int, ...]]) -> None:
    expected = {key for key, one in vectors.items() if not any(dominates(two, one) for two in vectors.values())}
    assert set(front(vectors)) == expected


def test_the_pareto_set_and_its_best() -> None:
    trials = [trial(1, 1, 5.0, 5.0), trial(2, 2, 4.0, 1.0), trial(3, 3, 4.0, 3.0), trial(4, 4, 1.0, 0.5)]
    best = best_of(trials, BOTH)
    assert {setting.action["x"] for setting in best.pareto} == {1, 2, 4}
    assert best.overall is not None
    assert best.overall.action == {"x": 2}
    assert [entry["settings"] for entry in best.as_dict()["pareto"]] == [{"x": 1}, {"x": 2}, {"x": 4}]


def test_it_is_named_by_the_first_trial_that_measured_it() -> None:
    """Not by one of the same setting that had failed before."""
    best = best_of([trial(1, 1, 0.0, 0.0, Failed("f")), trial(2, 2, 1.0, 1.0), trial(3, 1, 5.0, 1.0)]).overall
    assert best is not None
    assert (best.first, best.failed) == (3, 1)


@pytest.mark.parametrize("huge", [1e308, -1e308, sys.float_info.max])
def test_rewards_near_the_largest_float(huge: float) -> None:
    """Somebody's way to say "worst": it must not cost the report."""
    trials = [Trial(n, {"load": n % 2}, {"x": n % 5}, Measured(({"a": huge},)), huge, 0.0) for n in range(1, 40)]
    trials += [Trial(n, {"load": n % 2}, {"x": 9}, Measured(({"a": 1.0},)), 1.0, 0.0) for n in range(40, 44)]
    best = best_of(trials).overall
    assert best is not None
    assert best.action["x"] == (9 if huge < 0 else 1)
    assert best.reward == (1.0 if huge < 0 else huge)


def test_one_objective_has_no_pareto_set() -> None:
    assert best_of([trial(1, 1, 1.0, 1.0)], [Objective("a")]).pareto == ()
    assert best_of([trial(1, 1, 1.0, 1.0)], [Objective("a"), Objective("b", "min", 0.0, 2.0)]).pareto == ()


def test_only_measurements_are_in_it() -> None:
    trials = [trial(1, 1, 1.0, 1.0), trial(2, 2, 9.0, 0.0, Failed("f")), trial(3, 3, 9.0, 0.0, Pruned())]
    assert shown(trials, BOTH) == {1}
    assert best_of(trials[1:], BOTH).pareto == ()


def test_settings_that_keep_the_limits_come_first() -> None:
    limited = [Objective("a", "max"), Objective("b", "min", limit=2.0)]
    trials = [trial(1, 1, 9.0, 3.0), trial(2, 2, 4.0, 1.0), trial(3, 3, 5.0, 2.0)]
    assert shown(trials, limited) == {2, 3}
    assert shown(trials, BOTH) == {1, 2, 3}
    none_does = best_of([trial(1, 1, 9.0, 8.0), trial(2, 2, 4.0, 3.0)], limited)
    assert none_does.overall is not None
    assert (none_does.overall.action, none_does.overall.violation) == ({"x": 2}, 0.5)


def test_a_limit_counts_before_the_reward() -> None:
    """Also with a single objective."""
    limited = [Objective("a", "max"), Objective("b", "min", 0.0, 2.0)]
    best = best_of([trial(1, 1, 9.0, 2.1), trial(2, 2, 4.0, 1.0)], limited).overall
    assert best is not None
    assert best.action == {"x": 2}


def test_the_mean_of_all_measurements_counts() -> None:
    """A lucky one doesn't make the set."""
    trials = [trial(1, 1, 9.0, 1.0), trial(2, 1, 1.0, 1.0), trial(3, 2, 6.0, 1.0)]
    assert shown(trials, BOTH) == {2}


def test_a_lucky_context_does_not_make_the_set() -> None:
    """Setting 2 is better wherever both were tried; setting 1 was only tried where everything is good."""
    easy, hard = {"load": 1}, {"load": 9}
    trials = [
        trial(1, 1, 100.0, 1.0, context=easy),
        trial(2, 2, 110.0, 1.0, context=easy),
        trial(3, 2, 12.0, 1.0, context=hard),
        trial(4, 3, 1.0, 1.0, context=hard),
        trial(5, 3, 1.0, 1.0, context=hard),
        trial(6, 1, 100.0, 1.0, context=easy),
        trial(7, 2, 110.0, 1.0, context=easy),
        trial(8, 2, 12.0, 1.0, context=hard),
    ]
    assert shown(trials, BOTH) == {2}
