"""Which setting wins: over all, in each context, and on the Pareto set."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tuning.reports.conftest import trial

from tunegym.core.randomness import unit
from tunegym.tuning.answers import ranking
from tunegym.tuning.answers.answer import Evidence, answer_at, evidence_of
from tunegym.tuning.answers.contexts import OverContexts
from tunegym.tuning.answers.ranking import Measurements, front, pareto
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.trial import Cancelled, Failed, Infeasible, Measured, Outcome, Pruned, TimedOut, Trial

NOT_MEASURED = [Infeasible("i"), Failed("f"), TimedOut(), Cancelled(), Pruned()]


def rewards(*rows: tuple[Any, ...]) -> list[Trial]:
    """Measured trials of a setting, a reward and perhaps a load."""
    return [
        trial(n, x, reward, context={"load": load[0]} if load else {}) for n, (x, reward, *load) in enumerate(rows, 1)
    ]


def best_of(
    trials: Iterable[Trial], objectives: Sequence[Objective] = (), over: OverContexts | None = None
) -> Evidence | None:
    found = Measurements(trials, objectives, over)
    best = ranking.winner(found)
    return None if best is None else evidence_of(found, best)


def winner(trials: Iterable[Trial], objectives: Sequence[Objective] = ()) -> Evidence:
    found = best_of(trials, objectives)
    assert found is not None
    return found


def front_of(trials: Iterable[Trial], objectives: Sequence[Objective]) -> list[Any]:
    found = Measurements(trials, objectives)
    return [found.values[action]["x"] for action in pareto(found)]


def mean(best: Evidence) -> float:
    assert best.reward is not None
    return best.reward.mean


def per_context(trials: Sequence[Trial]) -> dict[Any, Any]:
    """The answer in each load."""
    xs = list(dict.fromkeys(one.action["x"] for one in trials))
    loads = list(dict.fromkeys(one.context["load"] for one in trials))
    head = {"knobs": {"x": {"values": xs}}, "env_params": {"load": {"values": loads}}}
    found = {load: answer_at({"load": load}, trials, head, {}).chosen for load in loads}
    return {load: one and one.action["x"] for load, one in found.items()}


@pytest.mark.parametrize("outcome", NOT_MEASURED)
def test_a_trial_without_a_measurement_never_wins(outcome: Outcome) -> None:
    """Whatever its penalty."""
    best = winner([trial(1, 2, 1e9, outcome), trial(2, 1, 1e9, outcome), trial(3, 1, -5.0)])
    assert (best.action, best.trials[0]) == ({"x": 1}, 3), "of equals the first"
    assert (mean(best), best.failed, best.samples) == (-5.0, int(outcome.status != "cancelled"), 1)
    assert best_of([trial(1, 1, 1e9, outcome)]) is None
    assert best_of([]) is None


@pytest.mark.parametrize(
    ("rows", "x", "reward"),
    [
        pytest.param([(1, 2.0), (2, 5.0), (3, 5.0), (4, -1.0)], 2, 5.0, id="the earliest of equals"),
        pytest.param([(1, 9.0), (1, 1.0), (2, 6.0)], 2, 6.0, id="the mean counts"),
        pytest.param([(1, 1.0), (1.0, 3.0), (True, 2.0)], 1.0, 3.0, id="equal-looking settings stay apart"),
        pytest.param(
            [*[("steady", 10.0, "a")] * 8, *[("poor", 0.0, "a")] * 8, ("once", 11.0, "a")],
            *("steady", 10.0),
            id="a single lucky measurement is not trusted like many",
        ),
        pytest.param([(n, float(n % 3), n / 7) for n in range(1, 4)], 2, 2.0, id="too few contexts to tell anything"),
    ],
)
def test_the_highest_reward_wins(rows: list[tuple[Any, ...]], x: Any, reward: float) -> None:
    best = winner(iter(rewards(*rows)))
    assert (repr(best.action["x"]), mean(best)) == (repr(x), reward)


def test_cached_trials_do_not_count_again() -> None:
    """A lucky measurement that is served a hundred times is one measurement."""
    lucky = trial(1, 1, 10.0)
    served = [trial(n, 1, 10.0, lucky.outcome, cached_from=1) for n in range(2, 100)]
    best = winner([lucky, *served, trial(100, 1, 2.0), trial(101, 2, 8.0)])
    assert (best.action, mean(best)) == ({"x": 2}, 8.0)
    assert winner([lucky, *served]).samples == 1


def test_a_lucky_context_does_not_win() -> None:
    """In light load everything is fast: the setting that was better than others under the same load wins."""
    trials = rewards(
        ("good", 20.0, "heavy"), ("bad", 10.0, "heavy"), ("bad", 10.0, "heavy"), ("good", 21.0, "heavy"),
        ("lucky", 100.0, "light"), ("bad", 101.0, "light"), ("bad", 102.0, "light"), ("lucky", 100.0, "light"),
        ("good", 100.5, "light"),
    )  # fmt: skip
    assert winner(trials).action == {"x": "good"}
    assert per_context(trials) == {"heavy": "good", "light": "bad"}


def test_contexts_count_as_often_as_they_are_drawn() -> None:
    """Shining in a rare context, or having met nothing else, is not being best over all."""
    trials = rewards(
        ("specialist", 50.0, "rare"), ("good", 10.0, "rare"), ("bad", 10.0, "rare"),
        ("good", 30.0, "usual"), ("bad", 10.0, "usual"),
    )  # fmt: skip
    served = trials[3].outcome
    trials += [trial(n, "good", 30.0, served, context={"load": "usual"}, cached_from=4) for n in range(6, 26)]
    best = winner(trials)
    assert best.action == {"x": "good"}
    assert mean(best) == pytest.approx((3 * 10.0 + 22 * 30.0) / 25)
    assert per_context(trials) == {"rare": "specialist", "usual": "good"}


def test_settings_that_met_every_context_come_first() -> None:
    """Else the best of what is known wins."""
    trials = rewards(
        ("narrow", 90.0, "a"), ("broad", 20.0, "a"), ("other", 10.0, "a"), ("broad", 5.0, "b"), ("other", 4.0, "b")
    )  # fmt: skip
    assert winner(trials).action["x"] == "broad"
    assert winner([*trials[:3], *rewards(("x", 5.0, "b"), ("y", 4.0, "b"))]).action["x"] == "narrow"


def test_what_a_setting_does_elsewhere_decides_between_equals() -> None:
    """A little better here doesn't make up for being among the worst everywhere else."""
    rows: list[tuple[Any, ...]] = []
    for load in "abcd":
        rows += [(f"filler{n}", 1.0 + n, load) for n in range(6)]
        rows += [("sound", 7.0, load), ("freak", 7.1 if load == "a" else 0.1, load)]
    assert per_context(rewards(*rows)) == dict.fromkeys("abcd", "sound")
    rows = [row for row in rows if row[2] == "a"]
    assert per_context(rewards(*rows)) == {"a": "freak"}


def test_confirmation_trials_choose_no_candidates() -> None:
    search, fresh = trial(1, 1, 5.0), replace(trial(2, 2, 9.0), phase="confirm")
    assert winner([search, fresh]).action == {"x": 1}


HEAD = {"knobs": {}, "env_params": {"load": {"values": ["a", "b"], "weights": [0.9, 0.1]}}, "baseline": {"x": 0}}


@pytest.mark.parametrize(("mode", "x"), [(None, "usual"), ("worst", "robust"), ({"cvar": 0.9}, "robust")])
def test_over_contexts(mode: Any, x: str) -> None:
    """By the advantage over the baseline, and the declared weights, however often contexts were drawn."""
    rows = [(0, 10.0, "a"), (0, 5.0, "b"), ("usual", 30.0, "a"), ("usual", 3.0, "b"), ("robust", 14.0, "a")]
    trials = rewards(*rows, *[("robust", 7.0, "b")] * 3)
    head = {**HEAD, **({"over_contexts": mode} if mode else {})}
    found = best_of(trials, over=OverContexts.of(head))
    assert found is not None
    assert found.action == {"x": x}


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-50, 50), st.sampled_from("abc")), min_size=1, max_size=30
    ),
    st.integers(-1000, 1000),
)  # fmt: skip
def test_over_all_ignores_what_a_context_adds_to_everything(rows: list[Any], more: int) -> None:
    moved = [(x, reward + (more if load == "b" else 0), load) for x, reward, load in rows]
    if len(rows) >= 2 * len({row[2] for row in rows}):  # else contexts are described by their parameters
        assert winner(rewards(*rows)).action == winner(rewards(*moved)).action


def test_neighbours_in_a_range() -> None:
    """The best at one end is the worst at the other; a context that never came up is between its neighbours."""
    trials = rewards(*[(n % 2, 100.0 * n / 40 + (1 if n % 2 else -1) * (n - 20), n / 40) for n in range(40)])
    domains = {"load": Range(0.0, 1.0)}
    found = Measurements(trials)
    scores = [found.reward.at({"load": load}, domains) for load in (0.05, 0.951)]
    best = [found.values[max(some, key=lambda one: some[one])]["x"] for some in scores]
    assert best == [0, 1]


@pytest.mark.parametrize("parameters", [1, 3])
def test_contexts_that_never_come_twice(parameters: int) -> None:
    """From ranges, each context is new: the best setting is found all the same, whichever came first."""
    for seed in range(10):
        trials = []
        for number in range(1, 121):
            context = {f"load{index}": unit(seed, "load", index, number) for index in range(parameters)}
            x = ("worst", "good", "best")[int(unit(seed, "x", number) * 3)]
            noise = unit(seed, "noise", number)
            reward = 100.0 * sum(context.values()) + {"worst": 0.0, "good": 10.0, "best": 30.0}[x] + noise
            trials.append(trial(number, x, reward, context=context))
        assert winner(trials).action == {"x": "best"}


@pytest.mark.parametrize("huge", [1e308, -1e308, sys.float_info.max])
def test_rewards_near_the_largest_float(huge: float) -> None:
    """A user's way to say "worst": it must not cost the report."""
    best = winner(rewards(*[(n % 5, huge, n % 2) for n in range(1, 40)], *[(9, 1.0, n % 2) for n in range(4)]))
    assert (best.action["x"], mean(best)) == ((9, 1.0) if huge < 0 else (1, huge))


# several objectives ---------------------------------------------------------------------------------------

BOTH = [Objective("a", "max"), Objective("b", "min")]
LIMITED = [Objective("a", "max"), Objective("b", "min", limit=2.0)]


def two(*rows: tuple[int, float, float], outcome: Outcome | None = None, context: Any = None) -> list[Trial]:
    """Trials of a setting and its metrics ``a`` and ``b``."""
    return [
        Trial(n, context or {}, {"x": x}, outcome or Measured(({"a": a, "b": b},)), a - b, 0.0)
        for n, (x, a, b) in enumerate(rows, 1)
    ]


def shown(trials: list[Trial], objectives: list[Objective]) -> set[object]:
    return set(front_of(trials, objectives))


def dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and one != other


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.dictionaries(st.binary(min_size=1, max_size=2), st.tuples(*[st.integers(0, 5)] * width))
    )
)
def test_the_front_is_all_that_is_not_dominated(vectors: dict[bytes, tuple[int, ...]]) -> None:
    expected = {key for key, one in vectors.items() if not any(dominates(two, one) for two in vectors.values())}
    assert set(front(vectors)) == expected


def test_the_pareto_set_and_its_best() -> None:
    trials = two((1, 5.0, 5.0), (2, 4.0, 1.0), (3, 4.0, 3.0), (4, 1.0, 0.5))
    assert winner(trials, BOTH).action == {"x": 2}
    assert front_of(trials, BOTH) == [1, 2, 4]
    assert shown(trials, [Objective("a"), Objective("b", "min", 0.0, 2.0)]) == set(), "one objective has no such set"
    for outcome in NOT_MEASURED:
        assert shown([*two((1, 1.0, 1.0)), *two((2, 9.0, 0.0), outcome=outcome)], BOTH) == {1}


def test_settings_that_keep_the_limits_come_first() -> None:
    trials = two((1, 9.0, 3.0), (2, 4.0, 1.0), (3, 5.0, 2.0))
    assert (shown(trials, LIMITED), shown(trials, BOTH)) == ({2, 3}, {1, 2, 3})
    none_does = winner(two((1, 9.0, 8.0), (2, 4.0, 3.0)), LIMITED)
    assert (none_does.action, none_does.violation) == ({"x": 2}, 0.5)
    one = [Objective("a", "max"), Objective("b", "min", 0.0, 2.0)]
    assert winner(two((1, 9.0, 2.1), (2, 4.0, 1.0)), one).action == {"x": 2}


def test_luck_does_not_make_the_set() -> None:
    """Neither one lucky measurement, nor a context where everything is good."""
    assert shown(two((1, 9.0, 1.0), (1, 1.0, 1.0), (2, 6.0, 1.0)), BOTH) == {2}
    easy = two(*[(1, 100.0, 1.0), (2, 110.0, 1.0)] * 2, context={"load": 1})
    hard = two(*[(2, 12.0, 1.0), (3, 1.0, 1.0)] * 2, context={"load": 9})
    assert shown([*easy, *hard], BOTH) == {2}
