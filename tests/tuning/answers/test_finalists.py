"""The confirmation's plan: finalists, blocks, races, its end, and that it follows from the journal alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tunegym.tuning.answers.answer import RewardMetric, answer
from tunegym.tuning.answers.contexts import params_of
from tunegym.tuning.answers.finalists import CLEAR, TIED, USED, Confirmation, reserve
from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable
from tunegym.tuning.model.scenario import Confirm, Objective
from tunegym.tuning.model.trial import Cancelled, Failed, Measured, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

Truth = Callable[[int, Context], float]
HEAD: dict[str, Any] = {
    "knobs": {"x": {"low": 0, "high": 9, "dtype": "int"}},
    "env_params": {},
    "metrics": ["s"],
    "objectives": [{"metric": "s", "goal": "min"}],
    "goals": {"s": "min"},
    "confirm": {"mode": "auto", "share": 0.2},
}
LOAD = {"load": {"values": ["low", "high"], "weights": [0.75, 0.25]}}


def linear(x: int, context: Context) -> float:
    return 1 + 0.05 * x


class Bench:
    """Makes trials of one knob, with lognormal noise."""

    def __init__(self, truth: Truth, noise: float, seed: int = 0, **head: Any) -> None:
        self.truth, self.noise, self.draw = truth, noise, random.Random(seed)
        self.head = {**HEAD, **head}
        self.trials: list[Trial] = []

    def measure(self, x: int, phase: str, context: Context | None = None, failed: bool = False) -> Trial:
        context = context or {}
        value = self.truth(x, context) * math.exp(self.draw.gauss(0, self.noise) - self.noise**2 / 2)
        outcome = Failed("no") if failed else Measured(({"s": value},))
        trial = Trial(len(self.trials) + 1, context, {"x": x}, outcome, -value, 0.1, phase=phase)
        self.trials.append(trial)
        return trial

    def search(self, trials: int = 60, contexts: tuple[Context, ...] = ({},)) -> Bench:
        base = self.head.get("baseline", {"x": 5})["x"]
        for at in range(3):
            self.measure(base, "baseline" if at == 0 and "baseline" in self.head else "noise", contexts[0])
        for at in range(trials):
            self.measure(self.draw.randrange(10), "search", contexts[at % len(contexts)])
        return self

    def plan(self, allowed: int, policy: PolicyTable | None = None) -> Confirmation:
        return Confirmation(self.head, self.trials, allowed, 7, policy)

    def confirm(self, allowed: int, fails: Callable[[Action, int], bool] = lambda *_: False) -> list[list[Any]]:
        """Run every block; what they were."""
        blocks: list[list[Any]] = []
        while block := self.plan(allowed).next_block():
            blocks.append(block)
            for action, context in block:
                self.measure(int(action["x"]), "confirm", context, fails(action, len(blocks)))
        return blocks


def xs(block: list[tuple[Action, Context]]) -> list[Any]:
    return [action["x"] for action, _ in block]


def entered(plan: Confirmation, context: Context | None = None) -> set[Any]:
    """The settings of the first block in a context, the baseline among them."""
    return {action["x"] for action, there in plan.next_block() if there == (context or {})}


# the reserve ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "budget", "contexts", "baseline", "least", "most"),
    [
        (0.0, 100, 1, False, 1, 3),
        (0.0, 100, 4, True, 8, 16),
        (0.05, 100, 1, False, 6, 30),
        (0.5, 100, 1, False, 20, 20),
        (0.5, 12, 1, False, 2, 2),
        (0.5, 20_000, 2, True, 240, 240),
        (0.0, 20, 1, False, 1, 1),
        (0.5, 12, 12, False, 0, 0),
    ],
)
def test_the_reserve_follows_the_noise(
    noise: float, budget: int, contexts: int, baseline: bool, least: int, most: int
) -> None:
    bench = Bench(linear, noise, seed=3)
    some = [bench.measure(5, "noise") for _ in range(3)]
    for metric in (None, RewardMetric("s", limited=False)):
        assert least <= reserve(some, budget, Confirm(), contexts, baseline, metric) <= most


def test_without_a_noise_check_the_whole_share_is_kept() -> None:
    assert reserve([], 100, Confirm(share=0.2), 1, False, None) == 20


# blocks and races -----------------------------------------------------------------------------------------


def test_blocks_hold_every_finalist_once_and_halve() -> None:
    bench = Bench(linear, 0.1).search()
    first = entered(bench.plan(30))
    blocks = bench.confirm(30)
    assert sum(map(len, blocks)) <= 30
    assert set(xs(blocks[0])) == set(xs(blocks[1])) == first
    assert all(max(Counter(xs(block)).values()) == 1 for block in blocks)
    sizes = list(map(len, blocks))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert sizes.count(1) >= 0.4 * 30 - max(sizes), "the rest of the reserve is for the report"
    assert {tuple(xs(block)) for block in blocks[:2]} != {tuple(sorted(first))}, "in random order"


@pytest.mark.parametrize("contexts", [({},), ({"load": "low"}, {"load": "high"})])
def test_resumed_after_every_trial_the_plan_is_the_same(contexts: tuple[Context, ...]) -> None:
    head: Mapping[str, Any] = {"env_params": LOAD if len(contexts) > 1 else {}, "baseline": {"x": 9}}
    bench = Bench(linear, 0.1, **head).search(contexts=contexts)
    searched = len(bench.trials)
    blocks = bench.confirm(36)
    whole = bench.trials
    assert len(blocks) > 2
    order = [(exact_key(action), exact_key(context)) for block in blocks for action, context in block]
    begins = {0}
    for block in blocks:
        begins.add(max(begins) + len(block))
    for cut in range(len(order) + 1):
        bench.trials = whole[: searched + cut]
        rest = [(exact_key(action), exact_key(context)) for action, context in bench.plan(36).next_block()]
        end = min(begin for begin in [*begins, len(order)] if begin > cut or begin == len(order))
        assert rest == order[cut:end]
    bench.trials = whole
    assert bench.plan(36).next_block() == []
    assert bench.plan(36).ended in (CLEAR, TIED, USED)


def test_trials_of_one_block_may_close_in_any_order() -> None:
    bench = Bench(linear, 0.1).search()
    block = bench.plan(30).next_block()
    for action, context in reversed(block[1:]):
        bench.measure(int(action["x"]), "confirm", context)
    assert bench.plan(30).next_block() == block[:1]


def test_a_deterministic_metric_takes_three_samples() -> None:
    assert list(map(len, Bench(linear, 0.0).search().confirm(10))) == [1, 1, 1]
    bench = Bench(linear, 0.0, baseline={"x": 9}).search()
    assert list(map(len, bench.confirm(10))) == [2, 2, 2]
    assert bench.plan(10).ended == CLEAR


def test_a_noise_check_that_saw_no_noise_is_not_believed() -> None:
    """Its setting always fails in the same way; the others are noisy."""
    bench = Bench(linear, 0.0).search(0)
    bench.noise = 0.1
    for x in range(5):
        bench.measure(x, "search")
    assert len(bench.confirm(6)) == 6


def test_a_clear_winner_ends_the_race() -> None:
    bench = Bench(lambda x, _: 1.0 if x == 3 else 3.0, 0.02).search()
    blocks = bench.confirm(30)
    assert len(blocks[0]) > 2
    assert [xs(block) for block in blocks[2:]] == [[3]] * (len(blocks) - 2)
    assert bench.plan(30).ended == CLEAR
    assert sum(map(len, blocks)) < 30, "its mean is known well enough"


def test_settings_that_are_the_same_end_it_too() -> None:
    bench = Bench(lambda x, _: 1.0, 0.001, baseline={"x": 4}).search()
    blocks = bench.confirm(30)
    assert bench.plan(30).ended == TIED
    assert sum(map(len, blocks)) < 30
    nearest = min(set(xs(blocks[0])) - {4}, key=lambda x: abs(x - 4))
    assert abs(xs([one for one in blocks[-1] if one[0]["x"] != 4])[0] - 4) == abs(nearest - 4)


@pytest.mark.parametrize("baseline", [None, {"x": 0}])
def test_most_settings_are_the_best(baseline: Any) -> None:
    more = {} if baseline is None else {"baseline": baseline}
    bench = Bench(lambda x, _: max(1.0, 3.0 - x), 0.0, **more)
    for x in (*range(10), *range(2, 10)):
        bench.measure(x, "search")
    assert min(xs([one for one in bench.plan(10).next_block() if one[0] != baseline])) > 1


def test_the_noise_check_has_no_advantage_at_a_point_of_a_range() -> None:
    """Only its setting was ever measured at exactly that point."""
    bench = Bench(
        lambda x, load: 1 + x * (1 + float(load["load"])),
        0.02,
        env_params={"load": {"low": 0.0, "high": 1.0, "dtype": "float"}},
    )
    places = [context for context, _ in params_of(bench.head).represented()]
    for _ in range(3):
        bench.measure(9, "noise", places[0])
    for _ in range(60):
        bench.measure(bench.draw.randrange(10), "search", {"load": bench.draw.random()})
    assert 9 not in {action["x"] for action, _ in bench.plan(60).next_block()}


@pytest.mark.parametrize("seed", range(3))
def test_of_settings_that_are_equal_to_the_last_digit_the_nearest_to_the_baseline(seed: int) -> None:
    knobs = {"x": {"low": 0, "high": 39, "dtype": "int"}}
    bench = Bench(lambda x, _: 2.0 if x < 4 else 1.0, 0.0, seed, baseline={"x": 3}, knobs=knobs).search()
    for x in range(40):
        bench.measure(x, "search")
    bench.confirm(10)
    found = answer(bench.trials, bench.head, {}).overall
    assert found.chosen is not None
    assert found.chosen.action == {"x": 4}
    assert "35 other settings did exactly as well in the search" in found.notes


def test_a_finalist_that_fails_is_replaced() -> None:
    bench = Bench(linear, 0.05).search()
    best = xs(bench.plan(20).next_block())
    blocks = bench.confirm(20, lambda action, block: action["x"] == 0 and block > 4)
    assert 0 in best
    assert xs(blocks[-1]) != [0]


def test_only_the_trials_after_the_last_search_count() -> None:
    bench = Bench(linear, 0.1).search()
    first = bench.confirm(12)
    bench.measure(3, "search")
    again = bench.plan(12).next_block()
    assert len(again) == len(first[0])
    bench.trials.append(Trial(len(bench.trials) + 1, {}, again[0][0], Cancelled(), 0.0, 0.0, phase="confirm"))
    assert len(bench.plan(12).next_block()) == len(again), "a cancelled trial fills no place"


# who enters -----------------------------------------------------------------------------------------------


def test_each_context_has_its_own_finalists_and_the_one_over_all() -> None:
    best = {"low": 2, "high": 7}
    contexts: tuple[Context, ...] = ({"load": "low"}, {"load": "high"})
    bench = Bench(lambda x, c: 1 + 0.1 * abs(x - best[str(c["load"])]), 0.03, env_params=LOAD, baseline={"x": 9})
    plan = bench.search(120, contexts).plan(48)
    for context in contexts:
        assert best[str(context["load"])] in entered(plan, context)
    blocks = bench.confirm(48)
    assert all(({"x": 9}, context) in block for block in blocks for context in contexts)
    last = {exact_key(context): {one["x"] for one, there in blocks[-1] if there == context} for context in contexts}
    assert len(set.intersection(*last.values()) - {9}) == 1, "one setting goes through in every context"


@pytest.mark.parametrize("seed", range(3))
def test_contexts_that_contradict_each_other_keep_their_own_answers(seed: int) -> None:
    """The best setting of each context is the worst of the other, and was never tried there; values differ in scale."""
    contexts: tuple[Context, ...] = ({"load": "low"}, {"load": "high"})
    head = {"knobs": {"x": {"low": 0, "high": 99, "dtype": "int"}}, "env_params": LOAD}

    def truth(x: int, context: Context) -> float:
        return 1 + 0.01 * x if context == contexts[0] else 1 + (99 - x)

    bench = Bench(truth, 0.01, seed=seed, **head).search(0, contexts)
    for x in range(0, 40, 4):
        bench.measure(x, "search", contexts[0])
        bench.measure(99 - x, "search", contexts[1])
    for number, context in enumerate(contexts):
        assert 99 * number in entered(bench.plan(40), context), "the best of the search in the context"
    bench.confirm(40)
    low, high = (one.chosen for one in answer(bench.trials, bench.head, {}).per_context)
    assert low is not None
    assert high is not None
    assert low.action["x"] <= 8
    assert high.action["x"] >= 91


@pytest.mark.parametrize("seen", [True, False])
def test_what_fails_in_one_context_is_not_the_answer_over_all(seen: bool) -> None:
    """Small values are best, and fail under a high load: known from the search, or only found in the confirmation."""
    contexts: tuple[Context, ...] = ({"load": "low"}, {"load": "high"})
    bench = Bench(linear, 0.03, env_params=LOAD, baseline={"x": 9}).search(0, contexts)
    for x in range(10):
        for context in contexts:
            if seen or x > 1 or context == contexts[0]:
                bench.measure(x, "search", context, x <= 1 and context == contexts[1])
    while block := bench.plan(16).next_block():
        for action, context in block:
            bench.measure(int(action["x"]), "confirm", context, action["x"] <= 1 and context == contexts[1])
    found = answer(bench.trials, bench.head, {}).overall.chosen
    assert found is not None
    assert (found.action["x"] in (2, 3), found.failed) == (True, 0)


def test_the_policy_s_choice_is_a_finalist() -> None:
    policy = PolicyTable("dqn", 60, (PolicyChoice({"x": 8}),))
    assert 8 in entered(Bench(linear, 0.1).search().plan(20, policy))


def test_a_pareto_set_is_thinned() -> None:
    objectives = [Objective("s", "min").as_dict(), Objective("mb", "min").as_dict()]
    bench = Bench(linear, 0.0, objectives=objectives, metrics=["s", "mb"]).search(0)
    for x in range(10):
        outcome = Measured(({"s": 1.0 + x, "mb": 11.0 - x},))
        bench.trials.append(Trial(len(bench.trials) + 1, {}, {"x": x}, outcome, -6.0 + 0.01 * x, 0.1, phase="search"))
    bench.noise = 0.1
    for _ in range(2):
        bench.measure(5, "noise")
    found = entered(bench.plan(40))
    assert 1 < len(found) <= 8
    assert max(found) - min(found) >= 4, "spread along the set"


def test_a_range_is_represented_by_points_common_to_all() -> None:
    sizes = {"size": {"low": 1.0, "high": 100.0, "dtype": "float", "log": True}}
    bench = Bench(lambda x, c: 1 + 0.02 * x, 0.05, env_params=sizes).search(0, ({"size": 3.0},))
    for _ in range(80):
        bench.measure(bench.draw.randrange(10), "search", {"size": math.exp(bench.draw.uniform(0, math.log(100)))})
    blocks = bench.confirm(36)
    places = {exact_key(context) for block in blocks for _, context in block}
    assert len(places) == 6
    counts = Counter(action["x"] for action, _ in blocks[0])
    assert 6 in counts.values(), "one setting in all of them"
