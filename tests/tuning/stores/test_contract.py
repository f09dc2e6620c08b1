"""The store of trials: every outcome comes back, in this session and the next. ``test_numbers`` covers the numbers."""

from __future__ import annotations

import contextlib
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
from tunegym.tuning.stores.trials import JournalStore

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
    return {"load": number}


def open_next(store: JournalStore, lane: int) -> OpenTrial:
    number = store.hold(lane)
    return store.open(lane, context_of(number), {"x": number, "name": str(number)})


@pytest.fixture
def opened(journal: Callable[..., JournalStore], tmp_path: Path) -> Callable[[], JournalStore]:
    """Each call is a session of one journal."""
    return lambda: journal(tmp_path, knobs=("x", "name"), env_params=("load",), fingerprint=FINGERPRINT)


@pytest.fixture
def store(opened: Callable[[], JournalStore]) -> Iterator[JournalStore]:
    with contextlib.closing(opened()) as store:
        yield store


def test_every_outcome_comes_back_as_it_was(store: JournalStore, opened: Callable[[], JournalStore]) -> None:
    """By value and type: reward, samples, reason, duration, context, action, reports, and from which trial.

    In the next session too, with the fingerprint; those that were open can be closed there.
    """
    reports = ((1, 0.1), (2, 1.0), (2, -2.5e-300), (-(2**63), 1e300))
    trials: list[Trial] = []
    for outcome in OUTCOMES:
        trials += [closed(open_next(store, 0), outcome), replace(closed(open_next(store, 1), outcome), reports=reports)]
    trials.append(closed(open_next(store, 0), OUTCOMES[0], cached_from=1))
    for value in (1, 1.0, True):
        trials.append(closed(store.open(0, {"load": value}, {"x": value, "name": "equal"})))
    for trial in trials:
        store.close_trial(trial)
    first, second = open_next(store, 0), open_next(store, 1)
    for session in (lambda: store, opened):
        found = session()
        marks, recorded = zip(*found.recorded(), strict=True)
        assert set(marks) == {FINGERPRINT}
        assert list(recorded) == trials
        for before, after in zip(trials, recorded, strict=True):
            assert exact_key(before.action, before.context) == exact_key(after.action, after.context)
            assert [tuple(map(type, pair)) for pair in after.reports] == [(int, float)] * len(before.reports)
        assert found.open_trials() == [first, second]
        store.close()
    found.close_trial(closed(second))
    assert [trial.number for _, trial in found.recorded()][-1] == second.number


def test_processes_of_open_trials_are_leftovers(store: JournalStore, opened: Callable[[], JournalStore]) -> None:
    """Of the next session. Those of closed trials aren't, nor those of this session, which is alive."""
    first, second = open_next(store, 0), open_next(store, 1)
    store.job_started(first.number, {"job": "a"})
    store.job_started(second.number, {"job": "b"})
    store.job_started(second.number, {"job": "c", "of": [1, 2.5]})
    assert list(store.leftovers()) == []
    assert store.open_trials() == [first, second]
    store.close_trial(closed(first))
    store.close()
    assert list(opened().leftovers()) == [{"job": "b"}, {"job": "c", "of": [1, 2.5]}]


def test_closed_store_refuses(store: JournalStore) -> None:
    """Nothing is written after the end, to whatever has the file's descriptor by then. Closing twice is fine."""
    store.hold(0)
    trial = open_next(store, 1)
    store.end(0, "the agent ended")
    store.close()
    store.close()
    writes: list[Callable[[], object]] = [
        lambda: store.open(0, context_of(1), {}),
        lambda: store.close_trial(closed(trial)),
        lambda: store.cancel_held(context_of, lambda: 0.0),
        lambda: store.job_started(trial.number, {"job": "a"}),
        lambda: store.end(0, "late"),
    ]
    for write in writes:
        with pytest.raises(StoreError, match="closed"):
            write()
