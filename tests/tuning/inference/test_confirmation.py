"""Rounds: which settings, in which order, and what counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tuning.inference.experiments import TODAY, Simulation, loads, steady

from tunegym.tuning.inference.answer import Analysis
from tunegym.tuning.inference.confirmation import MOST_ROUNDS, reserve
from tunegym.tuning.inference.observations import Observations, Question
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import CONFIRM, Failed
from tunegym.tuning.model.values import Action, Context, exact_key

CONTEXTS = [{"load": "low"}, {"load": "high"}]


def test_each_round_has_every_arm_once_in_random_order() -> None:
    """The baseline in each context, whatever else."""
    simulation = Simulation(params=loads("low", "high")).search(60)
    plan = simulation.plan(40)
    orders = set()
    for _ in range(3):
        planned = plan.next_round()
        cells = Counter(exact_key(action, context) for action, context in planned)
        assert set(cells.values()) == {1}
        assert all(exact_key(TODAY, context) in cells for context in CONTEXTS)
        orders.add(tuple(exact_key(action, context) for action, context in planned))
        plan.add([simulation.measure(action, context, CONFIRM) for action, context in planned])
    assert len(orders) > 1


def test_a_round_that_was_cut_is_finished() -> None:
    """After a restart, what is missing comes in the same order."""
    simulation = Simulation(params=loads("low", "high")).search(60)
    whole = simulation.plan(40).next_round()
    first, *missing = whole
    simulation.measure(*first, CONFIRM)
    assert simulation.plan(40).next_round() == missing


def test_the_allowance_is_never_exceeded() -> None:
    """Nor are more rounds measured than tell anything."""
    for allowance in (4, 17, 200):
        simulation = Simulation().search(40)
        simulation.confirm(allowance)
        rounds = sum(trial.phase == CONFIRM for trial in simulation.trials)
        assert rounds <= min(allowance, 3 * MOST_ROUNDS)


def test_one_round_is_enough_for_a_deterministic_metric() -> None:
    """Its gain is sure."""
    simulation = Simulation(noise=0.0).search(40)
    plan = simulation.confirm(20)
    assert plan.ended == "the metric is deterministic"
    verdict = Analysis(simulation.question, simulation.trials).answer().overall
    assert (verdict.rounds, verdict.certainty) == (1, "sure")
    assert verdict.chosen is not None
    assert verdict.chosen.gain is not None
    assert verdict.chosen.gain.low == verdict.chosen.gain.high
    assert abs(verdict.chosen.gain.mean - 4.0) < 1e-9


def test_a_finalist_that_fails_is_out() -> None:
    """The rounds go on without it, and it is not recommended."""
    simulation = Simulation(noise=0.02).search(40)
    plan = simulation.plan(30)
    planned = plan.next_round()
    loser = next(action for action, _ in planned if action != TODAY)
    simulation.cost = lambda action, context: None if action == loser else steady(action, context)
    plan.add([simulation.measure(action, context, CONFIRM) for action, context in planned])
    assert loser not in [action for action, _ in plan.next_round()]
    verdict = Analysis(simulation.question, simulation.trials).answer().overall
    assert verdict.chosen is not None
    assert verdict.chosen.action != loser


def test_a_longer_search_keeps_the_rounds() -> None:
    """More trials, no worse an answer: rounds of arms that stay count."""
    simulation = Simulation(noise=0.1).run(60)
    before = Analysis(simulation.question, simulation.trials).answer().overall
    simulation.search(100).confirm(20)
    after = Analysis(simulation.question, simulation.trials).answer().overall
    assert before.certainty == after.certainty == "sure"
    assert before.chosen is not None
    assert after.chosen is not None
    if before.chosen.action == after.chosen.action:
        assert after.rounds > before.rounds


def test_only_changes_that_matter_are_confirmed() -> None:
    """``idle`` does nothing, so finalists seldom change it."""
    changed = []
    for seed in range(4):
        simulation = Simulation(noise=0.05, seed=seed).run(80)
        verdict = Analysis(simulation.question, simulation.trials).answer().overall
        assert verdict.chosen is not None
        assert verdict.chosen.changes.keys() >= {"threads", "mode"}
        changed.append("idle" in verdict.chosen.changes)
    assert sum(changed) <= 1


def test_a_reduced_setting_is_allowed() -> None:
    """Taking back a change must not break a constraint: with fast mode, threads may not be 1."""

    def allowed(action: Action, context: Context) -> bool:
        return action["mode"] != "fast" or action["threads"] != 1

    simulation = Simulation(allowed=allowed, noise=0.1)
    simulation.cost = lambda action, context: {"slow": 2.0, "fast": 1.0, "odd": 3.0}[str(action["mode"])]
    simulation.run(80)
    assert all(allowed(trial.action, trial.context) for trial in simulation.trials)


@given(
    budget=st.integers(1, 2000),
    share=st.floats(0.01, 0.5),
    contexts=st.integers(1, 12),
    has_baseline=st.booleans(),
)
@settings(deadline=None)
def test_the_reserve_leaves_the_search_most_of_the_budget(
    budget: int, share: float, contexts: int, has_baseline: bool
) -> None:
    """Two rounds of two settings or none; a tenth at most without a baseline."""
    params = loads(*[str(place) for place in range(contexts)] if contexts > 1 else [])
    question = Question(Space({}), params, Judged(), baseline={} if has_baseline else None)
    kept = reserve(question, budget, share)
    assert kept <= max(share, 0.4 if has_baseline else 0.1) * budget
    assert kept == 0 or kept >= 4
    assert kept <= 3 * contexts * MOST_ROUNDS


def test_without_a_baseline_the_best_is_measured_beside_the_runner_up() -> None:
    """There is no gain; the certainty is that of being better than the runner-up."""
    simulation = Simulation(noise=0.02, baseline=None).run(100)
    verdict = Analysis(simulation.question, simulation.trials).answer().overall
    assert verdict.confirmed
    assert verdict.chosen is not None
    assert verdict.chosen.gain is None
    assert (verdict.chosen.action["threads"], verdict.chosen.action["mode"]) == (4, "fast")


def test_failures_are_no_finalists() -> None:
    """A setting that failed once in a context is not confirmed there."""
    simulation = Simulation(noise=0.05, params=loads("low", "high")).search(60)
    observations = Observations(simulation.question, simulation.trials)
    plan = simulation.plan(30)
    failed = {(row.setting, row.context) for row in observations.rows if isinstance(row.trial.outcome, Failed)}
    arms = {(arm, context) for context, own in enumerate(plan.finalists.arms) for arm in own}
    assert not failed & arms
