"""The thread that steps, the one that writes, and whoever interrupts the first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.reader import Steps
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.steps import StepStore

SEEN = np.zeros(2, dtype=np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StepStore]:
    head = Head("live", "token", 7, "random_search", {}, {}, [], live={"record": "all"})
    made = StepStore(tmp_path, head, Session("f"), Recording())
    made.declare(spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))
    made.reserve(100_000)
    yield made
    made.close()


def _steps(folder: Path) -> list[Steps]:
    return [one for one in reader.steps(folder / reader.JOURNAL) if isinstance(one, Steps)]


def _add(store: StepStore, number: int) -> None:
    store.add(number, 1, 0, SEEN, 1.0, 0.0, False, False, {}, {})


def test_a_failed_step_keeps_its_status_whoever_writes_meanwhile(store: StepStore, tmp_path: Path) -> None:
    over = threading.Event()
    raised: list[Exception] = []

    def write() -> None:
        while not over.is_set():
            try:
                store.flush()
            except Exception as error:
                raised.append(error)

    thread = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for number in range(1, 4001):
            if number % 2:
                _add(store, number)
            else:
                store.add_unmeasured(number, 1, 0, SEEN, -1.0, 0.0, {}, "failed", "it fell")
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
    store.flush()
    assert raised == []
    failed = {group.numbers[at] for group in _steps(tmp_path) for at in group.unmeasured}
    assert failed == set(range(2, 4001, 2))
    assert reader.scan(tmp_path / reader.JOURNAL).statuses == {"measured": 2000, "failed": 2000}


class _Interrupted(list[Any]):
    """Takes a value, and then its caller hears of an interrupt; or hears of it before."""

    def __init__(self, values: list[Any], *, before: bool) -> None:
        super().__init__(values)
        self._before = before

    def append(self, value: Any) -> None:
        if self._before:
            raise KeyboardInterrupt
        super().append(value)
        raise KeyboardInterrupt


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_step_that_was_interrupted_is_there_as_a_whole_or_not_at_all(
    store: StepStore, tmp_path: Path, before: bool, written: bool
) -> None:
    _add(store, 1)
    store._rows = _Interrupted(store._rows, before=before)
    with pytest.raises(KeyboardInterrupt):
        store.add(2, 1, 0, SEEN, 1.0, 0.0, True, False, {}, {})
    store._rows = list(store._rows)
    if written:
        store.flush()  # as the thread beside may do at any time
    count = 1 if before else 2
    assert store.used == count
    store.flush()
    (steps,) = _steps(tmp_path)
    assert steps.numbers == list(range(1, count + 1))
    assert len(steps.episodes) == len(steps.rewards) == len(steps.durations) == count
    assert steps.terminated == ([] if before else [1])
    past = reader.scan(tmp_path / reader.JOURNAL)
    assert past.upto == count
    assert past.statuses == {"measured": count}
    rows = (tmp_path / "trajectory.csv").read_text().splitlines()[1:]
    assert len(rows) == count
