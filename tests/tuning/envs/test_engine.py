"""The walk of a trial, at any width; budgets, and what stays of a trial."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tunegym.core.errors import ActionError, BudgetError, StoreError
from tunegym.tuning.model.scenario import Budget, Keep, Objective
from tunegym.tuning.model.space import Choice, EnvParam, Range
from tunegym.tuning.model.trial import Failed, Measured, OpenTrial, Trial

Benches = Callable[..., Any]

LOAD = {"load": EnvParam(Choice((1, 2, 3, 4, 5))), "rate": EnvParam(Range(0.0, 1.0))}


def measure(x: int, **_: Any) -> dict[str, float]:
    return {"m": float(x)}


def test_walk(bench: Benches) -> None:
    """The number is held, its context shown, the decision written down, then it runs, then it closes."""
    seen: list[Any] = []

    def function(x: int, load: int, rate: float, other: str) -> dict[str, float]:
        seen.append([(trial.number, dict(trial.action)) for trial in one.store.open_trials()])
        return {"m": x * 10.0, "side": 1.0}

    one = bench(function, env_params=LOAD, store="journal", fixed={"other": "fixed"})
    shown = one.engine.observe()
    assert (shown.number, shown.metrics, shown.measured) == (1, {}, False)
    assert one.engine.observe() == shown
    assert one.engine.begin({"x": 3}) == OpenTrial(1, shown.context, {"x": 3})
    lane, trial = one.engine.next_finished()
    assert seen == [[(1, {"x": 3})]]
    assert one.lab.runs == [{"x": 3, "other": "fixed", **shown.context}]
    assert lane == 0
    assert trial.number == 1
    assert trial.context == shown.context
    assert trial.outcome == Measured(({"m": 30.0, "side": 1.0},))
    assert trial.reward == 30.0
    assert one.trials() == [trial]
    after = one.engine.observe()
    assert (after.number, after.metrics, after.measured) == (2, {"m": 30.0, "side": 1.0}, True)
    assert one.engine.next_finished() is None


@pytest.mark.parametrize("slots", [1, 3])
def test_one_counter(bench: Benches, slots: int) -> None:
    """Measured, cached, infeasible, failed, refused actions and asking around: 1, 2, 3, ..."""

    def function(x: int) -> dict[str, float]:
        if x == 5:
            raise ValueError("no")
        if x == 6:
            raise TimeoutError
        return {"m": 1.0}

    one = bench(function, slots=slots, constraints=[lambda p: p["x"] != 4], budget=Budget(agent_steps=8))
    numbers = []
    for x in (1, 1, 4, 5, 5, 6, 2):
        for wrong in ({}, {"x": 11}, {"x": 1, "y": 1}):
            with pytest.raises(ActionError):
                one.engine.begin(wrong)
        one.engine.observe()
        one.engine.exhausted()
        numbers.append(one.step(x=x).number)
    assert numbers == [1, 2, 3, 4, 5, 6, 7]
    assert one.step(x=7).number == 8
    for _ in range(3):
        with pytest.raises(BudgetError, match="trial 9 may not start: agent_steps = 8 are used up"):
            one.engine.begin({"x": 1})
    assert [trial.number for trial in one.trials()] == list(range(1, 9))
    assert [trial.status for trial in one.trials()] == [
        "measured", "measured", "infeasible", "failed", "failed", "timed_out", "measured", "measured",
    ]  # fmt: skip


# contexts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_replayed_actions_give_the_same_record(bench: Benches, slots: int) -> None:
    """At any width: a number has its context, and an action its outcome and reward under it."""

    def function(x: int, load: int, rate: float) -> dict[str, float]:
        if (x + load) % 4 == 0:
            raise ValueError(f"no {x}")
        return {"m": x * load + rate}

    first = bench(function, env_params=LOAD, seed=3, constraints=[lambda p: p["x"] != 7])
    for number in range(24):
        first.step(x=number * 3 % 10)
    again = bench(function, env_params=LOAD, seed=3, slots=slots, constraints=[lambda p: p["x"] != 7])
    lanes = deque(range(slots))
    for trial in first.trials():
        if not lanes:
            lanes.append(again.engine.next_finished()[0])
        again.engine.begin(trial.action, lanes.popleft())
    while again.engine.next_finished():
        pass

    def record(one: Any) -> list[Any]:
        measured = [replace(trial, duration_s=0.0) for trial in one.trials()]
        # A penalty follows from the rewards before it, in the order of closing.
        return [trial if trial.measured or slots == 1 else replace(trial, reward=0.0) for trial in measured]

    assert record(again) == record(first)
    assert {trial.status for trial in first.trials()} == {"measured", "failed", "infeasible"}


# repeats ------------------------------------------------------------------------------------------------------


def test_every_sample_of_a_repeated_trial_is_kept(bench: Benches) -> None:
    """The reward is that of the mean, and the spread can be had."""
    values = iter((1.0, 2.0, 6.0))
    one = bench(lambda x: {"m": next(values)}, repeats=3, store="journal")
    trial = one.step(x=1)
    assert trial.outcome == Measured(({"m": 1.0}, {"m": 2.0}, {"m": 6.0}))
    assert trial.reward == trial.metrics["m"] == 3.0
    assert trial.outcome.spread()["m"] == pytest.approx(7.0**0.5)
    assert sorted(path.name for path in (one.folder / "trials" / "000001").iterdir()) == [
        "repeat-1", "repeat-2", "repeat-3",
    ]  # fmt: skip
    assert one.step(x=1).cached_from == 1
    assert one.trials()[0] == trial


@pytest.mark.parametrize(("error", "status"), [(ValueError("boom"), "failed"), (TimeoutError(), "timed_out")])
def test_failing_repeat_fails_the_trial(bench: Benches, error: Exception, status: str) -> None:
    """At once, and it says which."""
    calls: list[int] = []

    def function(x: int) -> dict[str, float]:
        calls.append(x)
        if len(calls) == 2:
            raise error
        return {"m": 1.0}

    trial = bench(function, repeats=3).step(x=1)
    assert (trial.status, len(calls)) == (status, 2)
    assert trial.reason == f"repeat 2 of 3: {str(error) or 'ended after timeout_s = 1'}"


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"m": float("nan")}, "metric m: is NaN"),
        ({"m": 1.0, "n": float("inf")}, "metric n: is infinite"),
        ({}, "metric m: the workload did not give it (there is: nothing)"),
        ({"n": 1.0}, "metric m: the workload did not give it (there is: n)"),
    ],
)
def test_unusable_measurement_is_a_failure(bench: Benches, metrics: dict[str, float], reason: str) -> None:
    assert bench(lambda x: metrics).step(x=1).outcome == Failed(reason)


# the end ------------------------------------------------------------------------------------------------------


def test_end_cancels_running_trials_and_held_numbers(bench: Benches) -> None:
    running = threading.Event()

    def function(x: int) -> dict[str, float]:
        running.set()
        assert one.lab.stopped.wait(60)
        raise InterruptedError

    one = bench(function, slots=2)
    one.engine.observe(0)
    one.engine.begin({"x": 7}, 1)
    assert running.wait(60)
    one.engine.close()
    assert [(trial.number, trial.status, trial.reason) for trial in one.trials()] == [
        (1, "cancelled", "the experiment ended before this number was used"),
        (2, "cancelled", "the experiment ended while it ran"),
    ]


@pytest.mark.parametrize(("slots", "env_params"), [(1, LOAD), (2, LOAD), (4, LOAD), (3, {})])
def test_interrupted_trials_stay_open_and_are_taken_over(bench: Benches, slots: int, env_params: Any) -> None:
    """Same number, same context, same action; leftovers are ended first. Without contexts, they wait for the first."""
    count = slots if env_params else 1
    running = threading.Semaphore(0)
    stop: list[bool] = []

    def blocks(x: int, **_: Any) -> dict[str, float]:
        if x == 0:
            return {"m": 0.0}
        running.release()
        assert one.lab.stopped.wait(60)
        raise InterruptedError

    def halt() -> None:
        for _ in range(count):
            assert running.acquire(timeout=60)
        stop.append(True)
        one.lab.stop()

    one = bench(blocks, env_params=env_params, slots=slots, store="journal", stopping=lambda: bool(stop))
    one.step(x=0)
    stopper = threading.Thread(target=halt)
    stopper.start()
    opened = [one.engine.begin({"x": lane + 1 if env_params else 1}, lane) for lane in range(slots)]
    assert one.engine.next_finished() is None
    stopper.join()
    assert one.engine.exhausted() == "the run is stopping"
    with pytest.raises(BudgetError, match="stopping"):
        one.engine.begin({"x": 1})
    one.engine.close(interrupted=True)
    assert one.store.open_trials() == opened
    one.store.close()

    again = bench(measure, env_params=env_params, slots=slots, store="journal")
    again.engine.take_over()
    assert sorted(one["job"] for one in again.lab.leftovers) == sorted(f"{trial.number}.1" for trial in opened[:count])
    assert again.store.open_trials() == []
    taken = again.trials()[1:]
    assert [(t.number, t.context, t.action) for t in taken] == [(o.number, o.context, o.action) for o in opened]
    assert all(trial.measured for trial in taken)
    assert again.engine.observe().number == slots + 2
    assert again.engine.observe().metrics == {}


def test_broken_infrastructure_is_an_exception(bench: Benches) -> None:
    """Not an outcome: the trial stays open for a resume."""

    def function(x: int) -> dict[str, float]:
        raise RuntimeError("no more processes")

    for slots in (1, 2):
        one = bench(function, slots=slots)
        with pytest.raises(RuntimeError, match="no more processes"):
            one.step(x=1)
        assert [trial.number for trial in one.store.open_trials()] == [1]


def test_unwritten_decision_runs_nothing(bench: Benches) -> None:
    one = bench(measure)
    one.store.close()
    with pytest.raises(StoreError):
        one.engine.begin({"x": 1})
    assert one.lab.runs == []


def test_past_is_taken_in(bench: Benches) -> None:
    """Counts, the best, penalties and the cache are those of all sessions; another fingerprint's are not served."""
    keys: dict[str, Any] = {"store": "journal", "constraints": [lambda p: p["x"] != 4]}
    first = bench(measure, **keys)
    for x in (3, 8, 5):
        first.step(x=x)
    penalty = first.step(x=4).reward
    first.store.close()
    again = bench(measure, **keys)
    assert again.engine.tally.done == 4
    assert again.engine.tally.best.number == 2
    assert [trial.number for trial in again.engine.history()] == [1, 2, 3, 4]
    assert again.step(x=4).reward == penalty
    assert again.step(x=5).cached_from == 3
    again.store.close()
    changed = bench(measure, fingerprint="other", **keys)
    assert changed.step(x=5).cached_from is None
    assert changed.step(x=5).cached_from == 7
    assert changed.engine.tally.best.number == 2


# budgets ------------------------------------------------------------------------------------------------------


def test_only_time_on_trials_counts(bench: Benches, clock: Any) -> None:
    """That of earlier sessions too; getting ready and learning the past before the first trial cost nothing."""
    budget = Budget(max_time_s=10.0)
    first = bench(measure, clock=clock, budget=budget, store="journal")
    first.engine.take_over()
    clock.now += 1000.0
    first.step(x=1)
    clock.now += 4.0
    first.step(x=2)
    assert first.engine.budget.elapsed_s == 4.0
    first.store.close()
    clock.now += 86400.0
    again = bench(measure, clock=clock, budget=budget, spent_s=4.0, store="journal")
    assert again.store.past.elapsed_s == 4.0
    again.engine.take_over()
    for _ in again.engine.history():
        clock.now += 1000.0
    assert again.engine.exhausted() is None
    again.step(x=2)
    for _ in again.engine.history():  # later, time is time
        clock.now += 2.0
    assert again.engine.exhausted() == "max_time = 10 s is over"


def test_stop_after_no_improvement(bench: Benches) -> None:
    """Counted from the best; an equal one, a failure and a hit are no improvement."""
    one = bench(but_nine, budget=Budget(stop_after_no_improvement=4))
    for x in (1, 2, 1, 9, 2, 3):
        assert one.engine.exhausted() is None
        one.step(x=x)
    for x in (3, 9, 0, 1):
        assert one.engine.exhausted() is None
        one.step(x=x)
    assert one.engine.exhausted() == "no improvement in 4 trials"
    assert one.engine.tally.best.number == 6


def test_improvement_is_counted_within_a_context(bench: Benches) -> None:
    """A context where everything is better improves nothing; of a range, draws near each other are compared."""

    def function(x: int, load: float | str) -> dict[str, float]:
        return {"m": x + (100.0 if load == "low" else 0.0 if load == "high" else float(load))}

    for param, contexts in (
        (EnvParam(Choice(("low", "high"))), ("low", "high")),
        (EnvParam(Range(0.0, 1.0)), (0.1, 0.9)),
    ):
        one = bench(function, env_params={"load": param}, budget=Budget(stop_after_no_improvement=3))
        for x, load in ((5, contexts[1]), (4, contexts[0]), (4, contexts[1]), (3, contexts[0])):
            assert one.engine.exhausted() is None
            one.engine.run_all([({"x": x}, {"load": load})], "search")
        assert one.engine.tally.idle == 2
        assert one.engine.tally.best.action == {"x": 4}
        one.engine.run_all([({"x": 9}, {"load": contexts[0]})] * 3, "confirm")
        assert one.engine.tally.idle == 2, "a confirmation is no search"
        assert one.engine.exhausted() is None
        one.engine.run_all([({"x": 3}, {"load": contexts[1]})], "search")
        assert one.engine.exhausted() == "no improvement in 3 trials"


def test_planned_trials_keep_away_from_cache_pruner_and_history(bench: Benches) -> None:
    """Only a baseline fills the cache."""

    def function(x: int, load: int, report: Any) -> dict[str, float]:
        report(1, float(x))
        return {"m": float(x)}

    class Never:
        def judge(self, number: int, curve: Any) -> str:
            return "hopeless"

        def closed(self, number: int, curve: Any, status: str) -> None:
            pass

    one = bench(function, env_params={"load": EnvParam(Choice((1, 2)))}, pruner=Never, slots=2)
    for phase in ("repeat", "baseline", "confirm", "confirm"):
        (closed,) = one.engine.run_all([({"x": 1}, {"load": 1})], phase)
        assert (closed.phase, closed.status, closed.cached_from) == (phase, "measured", None)
    same, other = one.engine.run_all([({"x": 1}, {"load": 1}), ({"x": 2}, {"load": 1})], "search")
    assert {same.status, other.status} == {"measured", "pruned"}
    assert {same.cached_from, other.cached_from} == {None, 2}
    assert [trial.phase for trial in one.engine.history()] == ["repeat", "baseline", "search", "search"]
    assert [trial.number for trial in one.trials()] == [1, 2, 3, 4, 5, 6]


def test_the_search_leaves_its_share_to_the_confirmation(bench: Benches, clock: Any) -> None:
    one = bench(but_nine, budget=Budget(agent_steps=5, max_time_s=10.0), clock=clock)
    one.engine.budget.kept, one.engine.budget.kept_share = 2, 0.3
    for x in (1, 2, 3):
        one.step(x=x)
    assert one.engine.exhausted() == "agent_steps = 5 are used up, but for 2 to confirm the best"
    assert len(one.engine.run_all([({"x": 3}, {})] * 4, "confirm")) == 2
    one = bench(but_nine, budget=Budget(max_time_s=10.0), clock=clock)
    one.engine.budget.kept_share = 0.3
    one.step(x=1)
    clock.now += 8.0
    assert one.engine.exhausted() == "max_time = 10 s is over, but for the confirmation"
    assert len(one.engine.run_all([({"x": 3}, {})], "confirm")) == 1
    clock.now += 2.0
    assert one.engine.run_all([({"x": 3}, {})], "confirm") == []


# what stays in trials/ ----------------------------------------------------------------------------------------

XS = (3, 9, 5, 1, 7, 5, 2)
"""9 fails, the second 5 is served from the cache and has no folder; so numbers 5, 3, 1 are the best ones."""


def but_nine(x: int) -> dict[str, float]:
    if x == 9:
        raise ValueError("no")
    return {"m": float(x)}


def kept(one: Any) -> list[int]:
    trials = one.folder / "trials"
    return sorted(int(path.name) for path in trials.iterdir()) if trials.is_dir() else []


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep("auto"), [2, 5]),
        (Keep("all"), [1, 2, 3, 4, 5, 7]),
        (Keep("failed"), [2]),
        (Keep("best", 1), [5]),
        (Keep("best", 3), [1, 3, 5]),
        (Keep("best", 50), [1, 3, 4, 5, 7]),
        (Keep("none"), []),
    ],
)
@pytest.mark.parametrize("split", [0, 4])
def test_keep(bench: Benches, keep: Keep, expected: list[int], split: int) -> None:
    """The same at the end of one session and of two."""
    one = bench(but_nine, store="journal", keep=keep)
    for x in XS[:split]:
        one.step(x=x)
    if split:
        one.store.close()
        one = bench(but_nine, store="journal", keep=keep)
    for x in XS[split:]:
        one.step(x=x)
    assert kept(one) == expected


def test_the_best_one_is_kept(bench: Benches) -> None:
    """By default. Each context has its own best, which keeps the limits; what a session that kept all left stays."""
    params = {"load": EnvParam(Choice(("low", "high"))), "noise": EnvParam(Range(0.0, 1.0))}
    limit = (Objective("m", "max"), Objective("cost", "min", 0.0, 7.0))

    def measure(x: int, load: str, noise: float) -> dict[str, float]:
        return {"m": x, "cost": x}

    keys: dict[str, Any] = {"env_params": params, "objectives": limit, "agent_metrics": ("m", "cost")}
    one = bench(measure, store="journal", cache=False, **keys)
    best: dict[str, Trial] = {}
    for x in (8, 9, 3, 5, 7, 1, 9, 6, 2, 7):
        trial = one.step(x=x)
        rank = (min(7 - x, 0), x)
        known = best.get(trial.context["load"])
        if known is None or rank > (min(7 - known.action["x"], 0), known.action["x"]):
            best[trial.context["load"]] = trial
        assert kept(one) == sorted(trial.number for trial in best.values())
    assert all(trial.action["x"] <= 7 for trial in best.values())
    for keep in (Keep("all"), Keep("auto")):
        one = bench(but_nine, store="journal", folder=one.folder.parent / "second", keep=keep)
        for x in XS[:4] if keep.kind == "all" else XS[4:]:
            one.step(x=x)
        one.store.close()
    assert kept(one) == [1, 2, 4, 5]


def test_first_failures_end_the_budget(bench: Benches) -> None:
    """Numbers in a reason may differ; what was refused doesn't count, and one measurement settles it for good."""

    def fails_above_3(x: int) -> dict[str, float]:
        if x > 3:
            raise ValueError(f"no {x}" if x < 8 else "never")
        return {"m": x}

    keys: dict[str, Any] = {"budget": Budget(stop_after_failures=3), "constraints": [lambda p: p["x"] != 0]}
    told = "all of the first 3 failed: no 6"
    for xs, expected in [((0, 4, 0, 5, 6), told), ((4, 5, 8, 6, 7), None), ((1, 4, 5, 6, 7), None)]:
        one = bench(fails_above_3, **keys)
        for x in xs:
            assert one.engine.exhausted() is None
            one.step(x=x)
        assert one.engine.exhausted() == expected
    first = bench(fails_above_3, store="journal", **keys)
    for x in (4, 5, 6):
        first.step(x=x)
    first.store.close()
    again = bench(fails_above_3, store="journal", **keys)
    assert again.engine.exhausted() is None, "a resumed session counts from its start"


def test_folder_of_an_open_trial_stays(bench: Benches) -> None:
    """What stays open for a resume is not closed, so nothing of it is dropped."""

    def interrupted(x: int) -> dict[str, float]:
        raise InterruptedError

    one = bench(interrupted, keep=Keep("none"))
    one.engine.begin({"x": 1})
    assert one.engine.next_finished() is None
    assert kept(one) == [1]
