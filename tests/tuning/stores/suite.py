"""The contract of a store of trials: ``TrialStoreSuite``; ``DurableStoreSuite`` if it outlives its process."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import (
    Cancelled,
    Failed,
    Infeasible,
    Measured,
    OpenTrial,
    Outcome,
    Pruned,
    TimedOut,
    Trial,
)
from tunegym.tuning.model.values import Context, exact_key
from tunegym.tuning.ports import TrialStore

FINGERPRINT = "suite"

OUTCOMES: tuple[Outcome, ...] = (
    Measured(({"score": 1.5}, {"score": -2.5e-300})),
    Infeasible('constraint "a < b" (a = 3, b = 2)'),
    Failed("exited with 3: \u20ac \n two lines"),
    TimedOut(),
    Cancelled("the experiment ended while it ran"),
    Pruned("pruned at step 3: 0.41 is below the median 0.77 of 12 trials"),
)
"""One of each."""


def closed(trial: OpenTrial, outcome: Outcome | None = None, cached_from: int | None = None) -> Trial:
    """An open trial with an outcome; its reward tells it from others."""
    outcome = outcome or Measured(({"score": float(trial.number)},))
    reward = -float(trial.number)
    return Trial(trial.number, trial.context, trial.action, outcome, reward, 0.25, cached_from)


def context_of(number: int) -> Context:
    """The context that a suite's trial has."""
    return {"load": number}


class TrialStoreSuite(ABC):
    """The contract of the ``TrialStore`` port, as tests."""

    @abstractmethod
    def make_store(self, folder: Path) -> TrialStore:
        """An empty store with ``FINGERPRINT`` as its fingerprint; ``close`` is called on it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Where the store may keep what it writes."""
        return tmp_path / "suite"

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[TrialStore]:
        """The store under test."""
        with contextlib.closing(self.make_store(folder)) as store:
            yield store

    # numbers ------------------------------------------------------------------------------------------

    def test_lane_holds_the_lowest_free_number(self, store: TrialStore) -> None:
        """From 1, the same until it is used."""
        assert [store.hold(lane) for lane in (0, 1, 0, 2, 3, 1)] == [1, 2, 1, 3, 4, 2]
        assert store.highest == 0

    def test_opening_uses_the_held_number(self, store: TrialStore) -> None:
        """Also when other lanes hold lower ones, and when none was held before."""
        store.hold(0)
        store.hold(1)
        assert _open(store, 1).number == 2
        assert _open(store, 5).number == 3
        assert store.highest == 3
        assert store.hold(0) == 1

    def test_used_number_never_comes_back(self, store: TrialStore) -> None:
        """Neither by closing, nor for another lane."""
        trial = _open(store, 0)
        assert store.hold(0) == 2
        store.close_trial(closed(trial))
        assert store.hold(1) == 3

    # trials -------------------------------------------------------------------------------------------

    def test_open_trials_by_number(self, store: TrialStore) -> None:
        """Open trials are known, lowest first, with their decisions; closed ones are gone."""
        store.hold(0)
        second = _open(store, 1)
        first = _open(store, 0)
        third = _open(store, 0)
        assert store.open_trials() == [first, second, third]
        assert dict(first.action) == {"x": 1, "name": "1"}
        assert dict(first.context) == context_of(1)
        store.close_trial(closed(second))
        assert store.open_trials() == [first, third]

    def test_closing_what_is_not_open_is_an_error(self, store: TrialStore) -> None:
        """A number that was never opened, is only held, or is closed already; nothing is recorded."""
        trial = _open(store, 0)
        store.close_trial(closed(trial))
        held = store.hold(0)
        for number in (trial.number, held, 99):
            with pytest.raises(StoreError, match=f"{number} is not open"):
                store.close_trial(closed(OpenTrial(number, {}, {})))
        assert [recorded.number for _, recorded in store.recorded()] == [trial.number]

    def test_recorded_in_the_order_of_closing(self, store: TrialStore) -> None:
        """With the fingerprint; open trials aren't there."""
        trials = [_open(store, lane) for lane in range(4)]
        for index in (2, 0, 3):
            store.close_trial(closed(trials[index]))
        assert [(mark, trial.number) for mark, trial in store.recorded()] == [(FINGERPRINT, n) for n in (3, 1, 4)]

    def test_every_outcome_comes_back_as_it_was(self, store: TrialStore) -> None:
        """By value and type: reward, samples, reason, duration, context, action, reports, and from which trial."""
        reports = ((1, 0.1), (2, 1.0), (2, -2.5e-300), (-(2**63), 1e300))
        trials = _one_of_each(store)
        trials += [replace(closed(_open(store, 0), outcome), reports=reports) for outcome in OUTCOMES]
        trials.append(closed(_open(store, 0), OUTCOMES[0], cached_from=1))
        for trial in trials[len(OUTCOMES) :]:
            store.close_trial(trial)
        recorded = [trial for _, trial in store.recorded()]
        assert recorded == trials
        for before, after in zip(trials, recorded, strict=True):
            assert exact_key(before.action, before.context) == exact_key(after.action, after.context)
        assert [tuple(map(type, pair)) for pair in recorded[-2].reports] == [(int, float)] * len(reports)

    def test_equal_looking_values_stay_apart(self, store: TrialStore) -> None:
        """1, 1.0 and True are three values."""
        for value in (1, 1.0, True):
            store.close_trial(closed(store.open(0, {"load": value}, {"x": value})))
        recorded = [trial for _, trial in store.recorded()]
        assert [type(trial.action["x"]) for trial in recorded] == [int, float, bool]
        assert [type(trial.context["load"]) for trial in recorded] == [int, float, bool]

    def test_process_of_an_open_trial_can_be_noted(self, store: TrialStore) -> None:
        """It is no leftover: this session is alive. It changes nothing else."""
        trial = _open(store, 0)
        store.job_started(trial.number, {"pid": 4711})
        assert list(store.leftovers()) == []
        assert store.open_trials() == [trial]

    # the end ------------------------------------------------------------------------------------------

    def test_cancel_held_fills_the_gaps(self, store: TrialStore) -> None:
        """Unused numbers below the highest used one are recorded; no higher ones are."""
        for lane in range(6):
            store.hold(lane)
        fifth = _open(store, 4)
        third = _open(store, 2)
        cancelled = store.cancel_held(context_of, lambda: -7.0)
        assert [trial.number for trial in cancelled] == [1, 2, 4]
        assert [trial.status for trial in cancelled] == ["cancelled"] * 3
        assert [dict(trial.context) for trial in cancelled] == [context_of(number) for number in (1, 2, 4)]
        assert [trial.reward for trial in cancelled] == [-7.0] * 3
        assert [dict(trial.action) for trial in cancelled] == [{}, {}, {}]
        assert [trial for _, trial in store.recorded()] == cancelled
        assert store.open_trials() == [third, fifth]
        assert store.highest == 5

    def test_cancelled_number_is_used(self, store: TrialStore) -> None:
        """No lane holds a number any more, and the next one is above every used one."""
        assert store.cancel_held(context_of, lambda: 0.0) == []
        store.hold(0)
        _open(store, 1)
        store.hold(1)
        assert [trial.number for trial in store.cancel_held(context_of, lambda: 0.0)] == [1]
        assert store.cancel_held(context_of, lambda: 0.0) == []
        assert [store.hold(0), store.hold(1)] == [3, 4]
        with pytest.raises(StoreError, match="1 is not open"):
            store.close_trial(closed(OpenTrial(1, {}, {})))

    def test_closed_store_refuses(self, store: TrialStore) -> None:
        """Nothing is decided, closed or cancelled after the end. Closing twice is fine."""
        store.hold(0)
        trial = _open(store, 1)
        store.end(0, "the agent ended")
        store.close()
        store.close()
        writes: list[Callable[[], object]] = [
            lambda: store.open(0, context_of(1), {}),
            lambda: store.close_trial(closed(trial)),
            lambda: store.cancel_held(context_of, lambda: 0.0),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="closed"):
                write()


class DurableStoreSuite(TrialStoreSuite):
    """What a store must do, besides, that is there again when ``make_store`` is called on the same folder."""

    def test_trials_are_there_again(self, store: TrialStore, folder: Path) -> None:
        """Closed ones in the order of closing; open ones with their decision, and they can be closed now."""
        trials = _one_of_each(store)
        first, second = _open(store, 0), _open(store, 1)
        store.close()
        with contextlib.closing(self.make_store(folder)) as again:
            assert list(again.recorded()) == [(FINGERPRINT, trial) for trial in trials]
            assert again.open_trials() == [first, second]
            assert (again.highest, again.hold(0)) == (second.number, second.number + 1)
            again.close_trial(closed(second))
            assert [trial.number for _, trial in again.recorded()][-1] == second.number

    def test_unused_numbers_are_free_again(self, store: TrialStore, folder: Path) -> None:
        """Held numbers come back, lowest first; cancelled ones don't."""
        for lane in range(3):
            store.hold(lane)
        store.close_trial(closed(_open(store, 2)))
        store.close()
        with contextlib.closing(self.make_store(folder)) as again:
            assert [again.hold(0), again.hold(1), again.hold(2)] == [1, 2, 4]
            _open(again, 0)
            again.cancel_held(context_of, lambda: -1.0)
        with contextlib.closing(self.make_store(folder)) as third:
            assert third.hold(0) == 4
            assert [trial.number for _, trial in third.recorded()] == [3, 2]
            assert dict([trial for _, trial in third.recorded()][1].context) == context_of(2)

    def test_processes_of_open_trials_are_leftovers(self, store: TrialStore, folder: Path) -> None:
        """Those of closed ones aren't."""
        first, second = _open(store, 0), _open(store, 1)
        store.job_started(first.number, {"job": "a"})
        store.job_started(second.number, {"job": "b"})
        store.job_started(second.number, {"job": "c", "of": [1, 2.5]})
        store.close_trial(closed(first))
        store.close()
        with contextlib.closing(self.make_store(folder)) as again:
            assert list(again.leftovers()) == [{"job": "b"}, {"job": "c", "of": [1, 2.5]}]

    def test_late_process_of_a_closed_store_is_refused(self, store: TrialStore) -> None:
        """Nothing is written to whatever has the file's descriptor by then."""
        trial = _open(store, 0)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.job_started(trial.number, {"job": "a"})
        with pytest.raises(StoreError, match="closed"):
            store.end(0, "late")


def _open(store: TrialStore, lane: int) -> OpenTrial:
    number = store.hold(lane)
    return store.open(lane, context_of(number), {"x": number, "name": str(number)})


def _one_of_each(store: TrialStore) -> list[Trial]:
    trials: list[Trial] = []
    for outcome in OUTCOMES:
        trials.append(closed(_open(store, 0), outcome))
        store.close_trial(trials[-1])
    return trials
