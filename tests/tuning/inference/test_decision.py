"""What rounds say: calibrated, never contradicted by its own words, never worse in a context than over all."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.tuning.inference.experiments import TODAY, Simulation, loads, steady

from tunegym.tuning.inference.answer import Analysis, Answer, Verdict
from tunegym.tuning.inference.recommendation import recommend
from tunegym.tuning.inference.wording import Background, drift_notes, worded
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.trial import BASELINE, CONFIRM, SEARCH
from tunegym.tuning.model.values import Action, Context

BACKGROUND = Background(run="results/run", unconfirmed="confirm is off")


def answered(simulation: Simulation) -> Answer:
    """The answer to a simulation, in words."""
    return worded(Analysis(simulation.question, simulation.trials).answer(), BACKGROUND)


def paired(gain: float, noise: float, seed: int, rounds: int = 6) -> Simulation:
    """A search of four settings, then rounds of one that is ``gain`` times as good."""
    better = {**TODAY, "threads": 4}

    def cost(action: Action, context: Context) -> float:
        return 1.0 / gain if action == better else 1.0

    simulation = Simulation(cost=cost, noise=noise, seed=seed)
    for phase, action in ((BASELINE, TODAY), (SEARCH, better), ("repeat", TODAY), ("repeat", better)):
        simulation.measure(action, {}, phase)
    for _ in range(rounds):
        for action in (TODAY, better):
            simulation.measure(action, {}, CONFIRM)
    return simulation


def verdicts(gain: float, noise: float, count: int) -> list[Verdict]:
    """The verdicts of many confirmations."""
    return [answered(paired(gain, noise, seed)).overall for seed in range(count)]


def test_the_interval_of_the_gain_covers_the_truth() -> None:
    """At 15 % noise, in at least 90 % of 60 runs (95 % are promised)."""
    covered = 0
    for verdict in verdicts(1.2, 0.15, 60):
        assert verdict.best is not None
        assert verdict.best.gain is not None
        covered += verdict.best.gain.low <= 1.2 <= verdict.best.gain.high
    assert covered >= 54


def test_nothing_better_is_seldom_sure() -> None:
    """Three of 60 at most (2.5 % are promised)."""
    assert sum(verdict.certainty == "sure" for verdict in verdicts(1.0, 0.15, 60)) <= 3


def test_large_gains_are_at_least_likely() -> None:
    """A gain of x1.5 at 15 % noise."""
    assert all(verdict.certainty != "unclear" for verdict in verdicts(1.5, 0.15, 30))


def test_a_longer_search_takes_nothing_back() -> None:
    """What was sure stays the answer where the newer finalist is no better, and its rounds count."""
    for seed in range(10):
        simulation = paired(1.5, 0.1, seed)
        unlike = {**TODAY, "idle": 3}
        simulation.measure(unlike, {}, SEARCH)
        for _ in range(3):
            for action in (TODAY, unlike):
                simulation.measure(action, {}, CONFIRM)
        verdict = answered(simulation).overall
        assert verdict.chosen is not None
        assert (verdict.chosen.action["threads"], verdict.certainty, verdict.rounds) == (4, "sure", 6)


@pytest.mark.parametrize(("gain", "noise"), [(1.0, 0.1), (1.02, 0.1), (1.3, 0.3), (0.8, 0.1), (3.0, 0.05)])
def test_words_agree_with_their_interval(gain: float, noise: float) -> None:
    """*Sure* excludes none, "better" is above it, and "keep" names the baseline."""
    for verdict in verdicts(gain, noise, 8):
        best = verdict.best
        assert best is not None
        assert best.gain is not None
        assert (verdict.certainty == "sure") == (best.gain.low > 1.0)
        assert verdict.keeps_baseline == (verdict.certainty == "unclear")
        if "better than your settings" in verdict.sentence:
            assert best.gain.mean > 1.0
            assert not verdict.keeps_baseline
        if verdict.sentence.startswith("Keep your settings"):
            assert best.gain.mean <= 1.0
        shown = [float(text) for text in re.findall(r"x([0-9.]+)", verdict.sentence)]
        expected = [best.gain.mean, best.gain.low, best.gain.high]
        assert np.allclose(shown, expected, rtol=0.01)


def test_an_unclear_gain_says_what_would_settle_it() -> None:
    """With the command that does it."""
    unclear = [verdict for verdict in verdicts(1.06, 0.12, 20) if verdict.settles_at]
    assert unclear
    for verdict in unclear:
        assert f"tunegym resume results/run --agent-steps {verdict.settles_at}" in verdict.sentence


def test_a_context_is_never_told_less_than_the_answer_over_all() -> None:
    """What is recommended in each context is at least as good there as the answer over all."""
    for seed in range(3):
        simulation = Simulation(noise=0.1, seed=seed, params=loads("low", "high")).run(100)
        answer = answered(simulation)
        assert answer.overall.chosen is not None
        for verdict in answer.per_context:
            assert verdict.chosen is not None
            assert verdict.context is not None
            own = steady(verdict.chosen.action, verdict.context)
            assert own <= 1.05 * steady(answer.overall.chosen.action, verdict.context)


def test_unlike_scales_don_t_hide_a_context() -> None:
    """A gain of x1.5 at 1 ms beside none at 1 s."""

    def cost(action: Action, context: Context) -> float:
        if context["load"] == "high":
            return 1000.0
        return 1.0 / (1.5 if action["mode"] == "fast" else 1.0)

    answer = answered(Simulation(cost=cost, noise=0.05, params=loads("low", "high")).run(100))
    low, high = answer.per_context
    assert low.certainty == "sure"
    assert low.chosen is not None
    assert low.chosen.changes == {"mode": "fast"}
    assert high.certainty != "sure"


def test_values_that_can_be_negative_are_compared_by_differences() -> None:
    """A reward around zero."""

    def metrics(value: float) -> dict[str, float]:
        return {"score": 1.5 - value}

    simulation = Simulation(noise=0.05, metrics=metrics, judged=Judged("score", "max")).run(60)
    verdict = answered(simulation).overall
    assert verdict.certainty == "sure"
    assert verdict.chosen is not None
    assert verdict.chosen.gain is not None
    assert not verdict.chosen.gain.is_ratio
    assert 2.0 < verdict.chosen.gain.mean < 4.0
    assert "score +" in verdict.sentence


def test_drift_is_told_and_does_not_decide() -> None:
    """The machine becomes twice as slow after the search: the pairs still agree."""
    simulation = Simulation(noise=0.05).search(50)
    simulation.cost = lambda action, context: 2.0 * steady(action, context)
    simulation.confirm(20)
    answer = answered(simulation)
    assert answer.overall.certainty == "sure"
    assert answer.overall.chosen is not None
    assert answer.overall.chosen.gain is not None
    assert 3.7 < answer.overall.chosen.gain.mean < 4.3
    assert len(drift_notes(answer)) == 1


def test_without_rounds_nothing_is_sure() -> None:
    """However good it looks."""
    answer = answered(Simulation(noise=0.02).search(60))
    assert answer.overall.certainty == "likely"
    assert "not confirmed: confirm is off" in answer.overall.sentence


def test_two_measurements_are_the_least() -> None:
    """One names no winner."""
    simulation = Simulation()
    simulation.measure(TODAY, {}, BASELINE)
    verdict = answered(simulation).overall
    assert verdict.chosen is None
    assert verdict.sentence == "Nothing can be recommended: 1 trial gave 1 measurement."


def test_a_baseline_that_fails_is_replaced() -> None:
    """By what works, without a gain."""

    def cost(action: Action, context: Context) -> float | None:
        return None if action == TODAY else steady(action, context)

    verdict = answered(Simulation(cost=cost).run(60)).overall
    assert verdict.chosen is not None
    assert not verdict.chosen.is_baseline
    assert verdict.chosen.gain is None
    assert "your settings failed" in verdict.sentence


def test_a_part_of_a_context_is_answered_over_the_matching_ones() -> None:
    """And one that was never drawn by the nearest."""
    simulation = Simulation(noise=0.05, params=loads("low", "high")).run(100)
    analysis = Analysis(simulation.question, simulation.trials)
    answer = worded(analysis.answer(), BACKGROUND)
    asked = recommend("e", analysis, answer, None, {"load": "high"}, BACKGROUND)
    assert asked.sentence.startswith("At load=high, ")
    assert asked.action == answer.per_context[1].chosen.action  # type: ignore[union-attr]
