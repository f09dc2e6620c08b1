"""Ctrl-C and its kin: once to stop in good order, twice to stop at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from tunegym.app.running import INTERRUPTED
from tunegym.core.stopping import Stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPING = b"\nstopping: running trials are ended and stay open for a resume; once more to stop at once\n"
_SHOW_CURSOR = b"\x1b[?25h\r\n"


def _leave_terminal_usable() -> None:
    """The moving line hides the cursor, and nobody is there any more to bring it back."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)


@contextlib.contextmanager
def caught(stop: Stop) -> Iterator[None]:
    """While this lasts, a signal asks ``stop``; the second one forces it and ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.requested:
            stop.force()
            _leave_terminal_usable()
            os._exit(INTERRUPTED)
        with contextlib.suppress(OSError):
            os.write(2, _STOPPING)  # not through a stream: the handler may have interrupted a write to it
        stop.request()

    before = {}
    for number in _SIGNALS:
        # nohup asks us to ignore SIGHUP; it stays that way.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
