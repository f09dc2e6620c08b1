"""The honest cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tunegym.tuning.model.space import Choice, EnvParam

Benches = Callable[..., Any]


def counting(values: list[Any] | None = None) -> Callable[..., dict[str, float]]:
    """A measurement that is never twice the same."""
    seen = values if values is not None else []

    def function(**parameters: Any) -> dict[str, float]:
        seen.append(parameters)
        return {"m": float(len(seen))}

    return function


def test_same_action_is_a_hit(bench: Benches) -> None:
    """Also when there are no env_params. It has the earlier measurement and the same reward."""
    one = bench(counting(), store="journal")
    first, second, other, third = one.step(x=1), one.step(x=1), one.step(x=2), one.step(x=1)
    assert len(one.lab.runs) == 2
    assert [trial.cached_from for trial in (first, second, other, third)] == [None, 1, None, 1]
    assert second.outcome == third.outcome == first.outcome
    assert second.reward == third.reward == first.reward
    assert one.engine.tally.cached == 2
    assert one.trials() == [first, second, other, third]


def test_equal_looking_values_differ(bench: Benches) -> None:
    one = bench(counting(), knobs={"x": Choice((1, 1.0, True, "1", "true"))})
    for _ in range(2):
        for value in (1, 1.0, True, "1", "true"):
            one.step(x=value)
    assert [trial.cached_from for trial in one.trials()] == [None] * 5 + [1, 2, 3, 4, 5]
    assert [type(run["x"]) for run in one.lab.runs] == [int, float, bool, str, str]


def test_another_context_runs_again(bench: Benches) -> None:
    """A hit needs both: the action and the context."""
    one = bench(counting(), env_params={"load": EnvParam(Choice((1, 1.0, 2)))}, seed=1)
    for _ in range(30):
        one.step(x=1)
    first: dict[str, int] = {}
    for trial in one.trials():
        seen = first.setdefault(repr(trial.context), trial.number)
        assert trial.cached_from == (None if seen == trial.number else seen)
    assert len(one.lab.runs) == len(first) == 3


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError()])
def test_failures_are_never_served(bench: Benches, error: Exception) -> None:
    calls: list[int] = []

    def flaky(x: int) -> dict[str, float]:
        calls.append(x)
        if len(calls) < 3:
            raise error
        return {"m": 1.0}

    one = bench(flaky)
    trials = [one.step(x=1) for _ in range(4)]
    assert [trial.measured for trial in trials] == [False, False, True, True]
    assert [trial.cached_from for trial in trials] == [None, None, None, 3]
    assert len(calls) == 3


def test_cache_off(bench: Benches) -> None:
    one = bench(counting(), cache=False)
    assert [one.step(x=1).cached_from for _ in range(3)] == [None] * 3
    assert [trial.reward for trial in one.trials()] == [1.0, 2.0, 3.0]


class Gate:
    """Lets calls through when the test says so; each fails or not as told."""

    def __init__(self, *fails: bool) -> None:
        self.open = threading.Semaphore(0)
        self.fails = iter(fails)
        self.calls = 0

    def __call__(self, **_: Any) -> dict[str, float]:
        self.calls += 1
        call = self.calls
        assert self.open.acquire(timeout=60)
        if next(self.fails, False):
            raise ValueError("no")
        return {"m": float(call)}


def test_equal_trials_in_flight_run_once(bench: Benches) -> None:
    gate = Gate()
    one = bench(gate, slots=4)
    for lane in range(4):
        one.engine.begin({"x": 1}, lane)
    gate.open.release()
    finished = [one.engine.next_finished() for _ in range(4)]
    assert gate.calls == 1
    assert [lane for lane, _ in finished] == [0, 1, 2, 3]
    assert [trial.number for _, trial in finished] == [1, 2, 3, 4]
    assert [trial.cached_from for _, trial in finished] == [None, 1, 1, 1]
    assert {trial.reward for _, trial in finished} == {1.0}


def test_second_runs_itself_when_the_first_fails(bench: Benches) -> None:
    """And a third that waited is served by the second."""
    gate = Gate(True, False)
    one = bench(gate, slots=4)
    for lane in range(3):
        one.engine.begin({"x": 1}, lane)
    for _ in range(2):
        gate.open.release()
    finished = [one.engine.next_finished() for _ in range(3)]
    assert [(lane, trial.status, trial.cached_from) for lane, trial in finished] == [
        (0, "failed", None),
        (1, "measured", None),
        (2, "measured", 2),
    ]
    assert gate.calls == 2
