from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tunegym.core.randomness import unit
from tunegym.tuning.agents import bandit
from tunegym.tuning.agents.bandit import DRAWN, PATIENCE, BanditConfig, CandidateSource, ContextualBandit
from tunegym.tuning.agents.belief import JITTER, Axis, Belief, Told
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range, Space
from tunegym.tuning.model.trial import Cancelled, Failed, Feedback, Measured, Observation, Trial
from tunegym.tuning.model.values import Action

Benches = Callable[..., Any]


def measure_x(x: int) -> dict[str, float]:
    return {"m": float(x)}


def chosen(agent: ContextualBandit, context: Mapping[str, Any]) -> dict[str, Any]:
    choice = agent.choose(context)
    assert choice is not None
    assert choice.context == context
    return dict(choice.action)


def told(number: int, action: Action, value: float = 1.0, status: str = "measured", **more: Any) -> Feedback:
    shown = Observation(number, {})
    return Feedback(number, value, shown, shown, action, done=False, status=status, **more)


# what it learns ---------------------------------------------------------------------------------------


@pytest.fixture
def experienced(bench: Benches) -> tuple[ContextualBandit, Callable[..., None]]:
    """A bandit that has measured in two contexts, with noise, that a larger x is better; and how to tell it more."""
    params = {"load": EnvParam(Choice(("low", "mid", "high")))}
    agent = ContextualBandit(bench(lambda x, load: {"m": x}, env_params=params).engine)
    numbers = itertools.count(1)

    def tell(load: str, x: int, status: str = "measured") -> None:
        number = next(numbers)
        value = x + 4.0 * (unit(1, number) - 0.5) if status == "measured" else -1e15
        agent.update_policy(told(number, {"x": x}, value, status, context={"load": load}))

    for _, load, x in itertools.product(range(6), ("mid", "high"), range(10)):
        tell(load, x)
    return agent, tell


def test_a_setting_that_failed_here_is_not_chosen_here(experienced: Any) -> None:
    """However well it does elsewhere."""
    agent, tell = experienced
    for x in range(5):
        tell("low", x)
    assert chosen(agent, {"load": "low"}) == {"x": 9}
    tell("low", 9, "failed")
    assert chosen(agent, {"load": "low"}) == {"x": 8}
    assert chosen(agent, {"load": "high"}) == {"x": 9}
    tell("low", 9)
    assert chosen(agent, {"load": "low"}) == {"x": 9}, "it works as often as not"


@pytest.mark.parametrize("seed", [0, 1])
def test_follows_a_continuous_context(bench: Benches, seed: int) -> None:
    """The best buffer grows with the load; no two trials have the same context."""
    load, buffer = Range(1.0, 1000.0, log=True), Range(16, 4096, "int", log=True)

    def measure(load_: float, buffer_: int) -> float:
        return 100 * float(np.exp(-(((buffer.position(buffer_) - 0.1 - 0.8 * load.position(load_)) / 0.25) ** 2)))

    one = bench(
        lambda load, buffer: {"m": measure(load, buffer)},
        knobs={"buffer": buffer},
        env_params={"load": EnvParam(load)},
        seed=seed,
        budget=Budget(agent_steps=120),
    )
    agent = ContextualBandit(one.engine, None, seed)
    agent.run()
    loads = [float(load.at_position(place)) for place in np.linspace(0, 1, 15)]
    reached = [measure(one, int(chosen(agent, {"load": one})["buffer"])) for one in loads]
    fixed = max(fmean(measure(one, int(buffer.at_position(place))) for one in loads) for place in np.linspace(0, 1, 50))
    assert fixed < 75
    assert fmean(reached) > 95
    assert min(reached) > 80


# corners ----------------------------------------------------------------------------------------------


def test_nothing_to_choose_before_anything_worked(bench: Benches) -> None:
    def fail(x: int) -> dict[str, float]:
        raise ValueError(f"not {x}")

    one = bench(fail, budget=Budget(agent_steps=30))
    agent = ContextualBandit(one.engine)
    assert agent.choose({}) is None
    agent.run()
    assert agent.choose({}) is None
    assert len({trial.action["x"] for trial in one.trials()}) == 10, "it has looked everywhere"


def test_a_context_that_never_came_up(bench: Benches) -> None:
    """The best guess is the setting that wins in all others."""
    params = {"load": EnvParam(Choice(("a", "b", "c")), (0.5, 0.5, 0.0)), "size": EnvParam(Range(1.0, 8.0))}
    one = bench(
        lambda x, load, size: {"m": -((x - 3) ** 2) + (load == "b")}, env_params=params, budget=Budget(agent_steps=40)
    )
    agent = ContextualBandit(one.engine)
    agent.run()
    for context in ({"load": "c", "size": 8.0}, {"load": "elsewhere", "size": 100.0}, {}):
        assert chosen(agent, context) == {"x": 3}


# the cache --------------------------------------------------------------------------------------------


def test_a_cache_hit_is_no_evidence(bench: Benches) -> None:
    agent = ContextualBandit(bench(measure_x).engine)
    for number in range(1, 9):
        agent.update_policy(told(number, {"x": number % 2}, float(number % 2), cached=number > 2))
    assert agent._stats.of([0, 1]).counts.tolist() == [1, 1]


def test_cached_settings_are_repeated_only_without_doubt(bench: Benches) -> None:
    """Repeating the best one is free, and no reason to measure poor ones."""
    knobs = {"x": Range(0, 99, "int", step=1)}
    one = bench(lambda x: {"m": -((x - 6) ** 2)}, knobs=knobs, budget=Budget(agent_steps=60))
    ContextualBandit(one.engine, BanditConfig(bins=100)).run()
    trials = one.trials()
    found = next(trial.number for trial in trials if trial.action["x"] == 6)
    assert not any(trial.cached_from for trial in trials[:found])
    assert {trial.action["x"] for trial in trials if trial.cached_from} <= {5, 6, 7}
    assert len(one.lab.runs) < 50


def test_never_stuck_and_ends_when_everything_was_measured(bench: Benches) -> None:
    params = {"load": EnvParam(Choice((1, 2, 3)), (0.5, 0.5, 0.0))}
    one = bench(lambda x, load: {"m": 1000.0 * (x == 4) + load}, env_params=params, budget=Budget(agent_steps=2000))
    assert ContextualBandit(one.engine).run() == 0
    trials = one.trials()
    assert len(one.lab.runs) == 20
    assert len(trials) <= 20 * (PATIENCE + 2)


@pytest.mark.parametrize("cache", [True, False])
def test_lanes_do_not_all_try_the_same(bench: Benches, cache: bool) -> None:
    one = bench(lambda x: {"m": x}, cache=cache, slots=8)
    agent = ContextualBandit(one.engine)
    agent.update_policy(told(1, {"x": 9}, 9.0))
    different = {repr(agent.select_action(Observation(number, {}))) for number in range(2, 10)}
    assert len(different) >= (8 if cache else 4)


# bounds -----------------------------------------------------------------------------------------------


def test_the_belief_stays_small_and_keeps_the_best(bench: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandit, "MOST_CELLS", 40)
    monkeypatch.setattr(bandit, "KEPT_CELLS", 30)
    one = bench(lambda x: {"m": -abs(x - 0.4)}, knobs={"x": Range(0.0, 1.0)})
    agent = ContextualBandit(one.engine)
    for number in range(1, 301):
        x = unit(3, number)
        agent.update_policy(told(number, {"x": x}, -abs(x - 0.4)))
        assert len(agent._belief) == len(agent._cells) <= 40
    assert len(agent._stats.history) == 300
    assert abs(float(chosen(agent, {})["x"]) - 0.4) < 0.02


# warm starts -----------------------------------------------------------------------------


def test_warm_start_with_contexts(bench: Benches) -> None:
    params = {"load": EnvParam(Choice(("low", "high")))}
    one = bench(lambda x, load: {"m": x}, env_params=params)
    agent = ContextualBandit(one.engine)
    wanted = {"low": 2, "high": 7}
    cells = itertools.product(wanted, range(10))
    trials = [
        Trial(number, {"load": load}, {"x": x}, Measured(({"m": 1.0},)), -abs(x - wanted[load]), 1.0)
        for number, (load, x) in enumerate(cells, start=1)
    ]
    lost = Trial(21, {"load": "low"}, {"x": 0}, Cancelled("ended"), 1e9, 1.0)
    failed = Trial(22, {}, {"x": 1}, Failed("crashed"), -1e15, 1.0)
    copied = Trial(23, {"load": "low"}, {"x": 0}, Measured(({"m": 1.0},)), 1e9, 1.0, cached_from=1)
    agent.warm_up([*trials, lost, failed, copied])
    assert {load: chosen(agent, {"load": load})["x"] for load in wanted} == wanted
    assert not agent._answered, "the cache here knows nothing of them"


# belief -----------------------------------------------------------------------------------------------

KNOBS: list[Knob] = [Choice(("a", "b", "c")), Range(0.0, 1.0)]


def believing(cells: np.ndarray) -> Belief:
    belief = Belief([Axis(Choice(("idle", "busy")))], [Axis(knob) for knob in KNOBS])
    for cell in cells:
        belief.add(cell)
    return belief


def cells_of(count: int) -> np.ndarray:
    draw = np.random.default_rng(1)
    return np.stack([draw.integers(2, size=count), draw.integers(3, size=count) / 2, draw.random(count)], axis=1)


def told_of(cells: np.ndarray) -> Told:
    draw = np.random.default_rng(2)
    means = 2.0 * cells[:, 0] * cells[:, 2] - cells[:, 1] + 0.1 * draw.standard_normal(len(cells))
    return Told(means, draw.integers(1, 5, size=len(cells)).astype(float), 0.3)


def by_the_book(belief: Belief, told: Told, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a Gaussian process, as textbooks have them; the covariance without its scale."""

    def alike(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        factors = [shape.likeness(ones[:, i], others[:, i]) for i, shape in enumerate(belief.shapes)]
        return np.prod(factors, axis=0)

    seen = np.linalg.inv(alike(belief.places, belief.places) + np.diag(belief.noise / told.counts + JITTER))
    across = alike(asked, belief.places)
    centre = told.means.mean()
    return centre + across @ seen @ (told.means - centre), alike(asked, asked) - across @ seen @ across.T


@pytest.mark.parametrize("fitted", [False, True])
def test_it_is_a_gaussian_process(fitted: bool) -> None:
    cells = cells_of(40)
    told = told_of(cells)
    belief = believing(cells)
    if fitted:
        belief.fit(told)
    settings = np.array([[0.0, 0.1], [0.5, 0.7], [1.0, 0.7]])
    mean, covariance = by_the_book(belief, told, np.hstack([np.ones((3, 1)), settings]))
    context = np.array([1.0])
    expected = belief.drawn(context, settings, told, np.zeros((3, 1)))[:, 0]
    assert expected == pytest.approx(mean, abs=1e-5)
    root = belief.drawn(context, settings, told, np.eye(3)) - expected[:, None]
    scale = (root @ root.T)[0, 0] / (covariance[0, 0] + JITTER)
    assert root @ root.T == pytest.approx(scale * (covariance + JITTER * np.eye(3)), abs=1e-6)
    everywhere, _ = by_the_book(belief, told, np.hstack([np.ones((40, 1)), cells[:, 1:]]))
    assert belief.expected(context, told, belief.weights(told)) == pytest.approx(everywhere, abs=1e-5)


def test_a_fit_finds_the_axes_that_matter() -> None:
    """The list is of no consequence, the range matters and is smooth, and there is little noise."""
    draw = np.random.default_rng(3)
    cells = cells_of(60)
    belief = believing(cells)
    told = Told(np.sin(6.0 * cells[:, 2]) + 0.05 * draw.standard_normal(60), np.ones(60), 0.0)
    for _ in range(3):
        belief.fit(told)
    assert [belief.shapes[0].floor, belief.shapes[1].floor] == [0.98, 0.98]
    assert belief.shapes[2].floor < 0.9
    assert belief.noise < 0.1


def test_repeats_tell_the_noise() -> None:
    cells = cells_of(60)
    quiet, loud = believing(cells), believing(cells)
    counts = np.full(60, 4.0)
    means = told_of(cells).means
    for _ in range(3):
        quiet.fit(Told(means, counts, 180 * 0.01**2))
        loud.fit(Told(means, counts, 180 * 1.0**2))
    assert quiet.noise < 0.01 < loud.noise


def test_repeats_of_a_cell_say_nothing_about_others() -> None:
    cells = cells_of(20)
    belief = believing(cells)
    told = told_of(cells)
    elsewhere = np.array([[0.5, 0.95]])

    def doubt(counts: np.ndarray) -> float:
        drawn = belief.drawn(np.array([1.0]), elsewhere, Told(told.means, counts, 0.0), np.array([[0.0, 1.0]]))
        return float(drawn[0, 1] - drawn[0, 0])

    once = np.ones(20)
    often = once.copy()
    often[0] = 10_000.0
    assert doubt(often) > 0.8 * doubt(once)


# candidates -------------------------------------------------------------------------------------------


def test_large_spaces_are_drawn_from_and_searched_around_good_settings() -> None:
    space = Space({**{f"k{i}": Choice(tuple(range(12))) for i in range(6)}, "r": Range(0.0, 1.0)})
    source = CandidateSource(space, 10)
    good = {**{f"k{i}": i for i in range(6)}, "r": 0.123}
    found = source.make(np.random.default_rng(0), [good])
    near = [found.action(row) for row in range(DRAWN, len(found))]
    assert near[0] == good
    assert all(sum(one[name] != good[name] for name in good) <= 1 for one in near)
    assert all(space.accept(one) == one for one in near)
    assert len({one["r"] for one in near}) == 7
    assert found.places[DRAWN].tolist() == source.place(good)


def test_values_between_bins_are_only_tried_near_good_settings() -> None:
    source = CandidateSource(Space({"r": Range(0.0, 1.0)}), 3)
    found = source.make(np.random.default_rng(0), [])
    assert [found.action(row)["r"] for row in range(len(found))] == [0.0, 0.5, 1.0]
    assert not source.complete
    assert len(source.make(np.random.default_rng(0), [{"r": 0.5}])) == 3 + 1 + 6
