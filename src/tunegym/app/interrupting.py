"""Ctrl-C in a Python program that runs live experiments: a step in good order first, then what Python makes of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from tunegym.core.stopping import Stop


@contextlib.contextmanager
def interrupts_wait(stop: Stop) -> Iterator[None]:
    """While this lasts, an interrupt asks ``stop``, and ``KeyboardInterrupt`` is raised at the end.

    Steps may take microseconds, many of which go into writing them down: raised wherever the program is by then, it
    would leave steps that are on record twice, or by half. A second one is raised at once all the same. Where somebody
    else handles interrupts, as the command line does, nothing changes.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            signal.default_int_handler(number, frame)
        interrupted = True
        stop.request()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
