"""What a search proposes: allowed, deterministic, and soon near the best setting of every context."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tuning.inference.experiments import KNOBS, Simulation, loads, proposals, steady

from tunegym.tuning.inference.observations import Observations
from tunegym.tuning.inference.surrogate import Surrogate
from tunegym.tuning.model.scenario import Judged, Objective
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Range
from tunegym.tuning.model.trial import REPEAT, SEARCH, Pruned, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

WIDE: dict[str, Any] = {f"k{place}": Choice((1, 2, 4, 8)) for place in range(7)} | {"mode": Choice(("a", "b", "c"))}


def hilly(action: Action, context: Context) -> float | None:
    """A third of the settings fails; what is good differs by context."""
    levels = [int(action[f"k{place}"]) for place in range(7)]
    if levels[0] * levels[1] > 30:
        return None
    tilt = 1.0 if context["load"] == "low" else -1.0
    cost = sum(abs(np.log2(level) - place % 4) for place, level in enumerate(levels)) * 0.2
    cost += 0.3 * tilt * (action["mode"] == "b") + 0.1 * (levels[2] != levels[3])
    return float(np.exp(cost)) * (1.0 if context["load"] == "low" else 70.0)


def always(action: Action, context: Context) -> float:
    """As at low load; what fails there is slow."""
    return hilly(action, {"load": "low"}) or 9.0


def best_found(simulation: Simulation, context: Context) -> float:
    """The typical cost of what the model thinks is best among what was measured in a context."""
    observations = Observations(simulation.question, simulation.trials)
    surrogate = Surrogate(observations)
    index = simulation.question.contexts.index(context)
    settings = sorted({row.setting for row in observations.measured() if row.context == index})
    actions = [observations.actions[setting] for setting in settings]
    means = surrogate.means(surrogate.points(actions))[index]
    cost = simulation.cost(actions[int(np.argmin(means))], context)
    assert cost is not None
    return cost


def test_finds_settings_that_random_search_misses() -> None:
    """In both contexts, among failures, on unlike scales."""
    ratios = []
    for seed in range(3):
        wide = partial(Simulation, hilly, 0.1, seed, knobs=WIDE, params=loads("low", "high"), baseline=None)
        simulation, drawn = wide().search(90), wide()
        for number in range(1, 91):
            context = drawn.params.context(number)
            drawn.measure(drawn.drawn(context, number), context, SEARCH)
        for load in ("low", "high"):
            context = {"load": load}
            ratios.append(np.log(best_found(simulation, context) / best_found(drawn, context)))
    assert np.mean(ratios) < -0.2


def test_the_same_trials_give_the_same_proposals() -> None:
    """Whatever was asked before: a restarted search goes on like the one that was killed."""
    simulation = Simulation(params=loads("low", "high")).search(40)
    first, again = simulation.searcher(60), simulation.searcher(60)
    proposals(again, range(60, 70), simulation.params)
    numbers = range(41, 46)
    assert proposals(first, numbers, simulation.params) == proposals(again, numbers, simulation.params)


def test_a_fit_rests_on_trials_before_the_last() -> None:
    """So it can be computed while that one runs; fits are few."""
    search = Simulation().searcher(1000)
    sizes = [search.fit_size(closed) for closed in range(20, 1000)]
    assert all(size < closed for closed, size in enumerate(sizes, 20))
    assert len(set(sizes)) < 35


def test_proposes_nothing_that_is_refused() -> None:
    """Neither at random, nor near leaders, nor again."""

    def allowed(action: Action, context: Context) -> bool:
        return int(action["threads"]) * int(action["idle"]) <= (4 if context["load"] == "low" else 8)

    simulation = Simulation(allowed=allowed, params=loads("low", "high")).search(50)
    assert all(allowed(trial.action, trial.context) for trial in simulation.trials)


def test_measures_the_baseline_and_good_settings_again() -> None:
    """Only repeats tell noise; they are few, and are no search."""
    today = dict.fromkeys(list(WIDE)[:7], 1) | {"mode": "a"}
    simulation = Simulation(always, 0.2, knobs=WIDE, baseline=today).search(80)
    repeats = [trial for trial in simulation.trials if trial.phase == REPEAT]
    assert 4 <= len(repeats) <= 24
    assert any(trial.action == today for trial in repeats)


def test_ends_when_a_deterministic_metric_has_no_setting_left() -> None:
    """Every setting once in every context; repeats stop as soon as they agree."""
    knobs = {name: KNOBS[name] for name in ("threads", "mode")}
    baseline = {"threads": 1, "mode": "slow"}
    simulation = Simulation(noise=0.0, knobs=knobs, baseline=baseline, params=loads("low", "high")).search(100)
    cells = {exact_key(trial.action, trial.context) for trial in simulation.trials}
    assert len(cells) == 24
    assert len(simulation.trials) < 40


@pytest.mark.parametrize("slots", [1, 4])
def test_trials_in_flight_are_not_proposed_again(slots: int) -> None:
    """Of a deterministic metric; a noisy one may be measured twice."""
    simulation = Simulation(noise=0.0).search(20)
    search, params = simulation.searcher(60), simulation.params
    flying: list[tuple[Action, Context]] = []
    for number in range(21, 21 + slots):
        proposal = search.propose(number, params.context(number), flying, search.fit)
        assert proposal is not None
        assert proposal.action not in [action for action, _ in flying]
        flying.append((proposal.action, {}))


def test_ranges_of_knobs_and_contexts() -> None:
    """The best value along a logarithmic range, whose effect is small beside that of the context's."""

    def cost(action: Action, context: Context) -> float:
        away = np.log(float(action["buffer"]) / 200.0)
        return float(np.exp(0.2 * away**2)) * float(context["size"]) ** 1.5

    knobs = {"buffer": Range(1, 10_000, "int", log=True), "share": Range(0.0, 1.0)}
    params = EnvParams({"size": EnvParam(Range(1.0, 1000.0, log=True))}, 3)
    simulation = Simulation(cost=cost, knobs=knobs, params=params, baseline={"buffer": 5, "share": 0.5}).search(70)
    values = [float(trial.action["buffer"]) for trial in simulation.trials[40:] if trial.phase == SEARCH]
    assert 60 < np.median(values) < 700


def test_a_pruned_setting_counts_as_a_bad_one() -> None:
    """It isn't proposed for ever."""
    simulation = Simulation().search(30)
    search = simulation.searcher(60)
    best = min((trial for trial in simulation.trials), key=lambda trial: -trial.reward)
    for number in range(31, 40):
        proposal = search.propose(number, {}, (), search.fit)
        assert proposal is not None
        search.add(Trial(number, {}, proposal.action, Pruned("hopeless"), -9.0, 0.1))
    assert best.measured


def test_several_objectives_spread_over_the_pareto_set() -> None:
    """Speed costs memory: both ends are found."""
    objectives = (Objective("seconds", "min"), Objective("mb", "min"))

    def metrics(value: float) -> dict[str, float]:
        return {"seconds": value, "mb": 100.0 / value}

    simulation = Simulation(
        cost=always,
        objectives=objectives,
        metrics=metrics,
        judged=Judged(scale="difference"),
        knobs=WIDE,
        baseline=None,
    )
    simulation.search(40)
    seconds = [trial.metrics["seconds"] for trial in simulation.trials]
    assert max(seconds) / min(seconds) > 3.0


def test_a_limit_is_kept() -> None:
    """The fastest settings need too much memory."""
    objectives = (Objective("seconds", "min"), Objective("mb", "min", weight=0.0, limit=60.0))

    def metrics(value: float) -> dict[str, float]:
        return {"seconds": value, "mb": 100.0 / value}

    simulation = Simulation(cost=steady, noise=0.02, objectives=objectives, metrics=metrics).search(48)
    late = [trial for trial in simulation.trials[24:] if trial.phase == SEARCH]
    kept = [trial for trial in late if trial.metrics["mb"] <= 60.0]
    assert len(kept) >= len(late) / 2
