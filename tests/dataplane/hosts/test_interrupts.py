from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tunegym.dataplane.hosts.interrupts import SIGNALS, interrupts_deferred


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, Any]]:
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_comes_at_the_end_and_once() -> None:
    done: list[str] = []

    def work() -> None:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_is_not_lost_in_an_interrupt() -> None:
    def work() -> None:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            raise LookupError("what it was about")

    with pytest.raises(KeyboardInterrupt) as told:
        work()
    assert isinstance(told.value.__context__, LookupError)


def test_handlers_are_as_they_were() -> None:
    came: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    mine = signal.getsignal(signal.SIGALRM)
    with interrupts_deferred(), interrupts_deferred():
        signal.raise_signal(signal.SIGALRM)
        assert came == []
    assert came == [signal.SIGALRM]
    assert signal.getsignal(signal.SIGALRM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone() -> None:
    def work() -> None:
        with interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    found: list[Any] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
