"""Ctrl-C and its kin: once to stop in good order, twice to stop at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from tunegym.core.stopping import Stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TRIALS = "running trials are ended and stay open for a resume"
_STEP = "the step in progress is finished"
_SHOW_CURSOR = b"\x1b[?25h\r\n"


def say_stopping(what: str) -> None:
    """Tell the terminal what happens now, out of a signal handler."""
    with contextlib.suppress(OSError):
        # Not through a stream: the handler may have interrupted a write to it.
        os.write(2, f"\nstopping: {what}; once more to stop at once\n".encode())


@contextlib.contextmanager
def heard(handle: Callable[[], None]) -> Iterator[None]:
    """While this lasts, ``handle`` is called for every signal that asks to stop."""

    def called(number: int, frame: FrameType | None) -> None:
        del number, frame
        handle()

    before = {}
    for number in _SIGNALS:
        # nohup asks us to ignore SIGHUP; it stays that way.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, called)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def caught(stop: Stop, live: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
    """While this lasts, a signal asks ``stop``; the second one forces it and ends the process at once.

    ``live`` says whether what runs just now takes steps, and not trials.
    """
    from tunegym.app.running import INTERRUPTED  # `tunegym serve` needs nothing of it

    def handle() -> None:
        if stop.requested:
            stop.force()
            _leave_terminal_usable()
            os._exit(INTERRUPTED)
        say_stopping(_STEP if live() else _TRIALS)
        stop.request()

    return heard(handle)


def _leave_terminal_usable() -> None:
    """The moving line hides the cursor, and nobody is there any more to bring it back."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
