"""Signals that raise, such as Ctrl-C, held back for a moment."""

from __future__ import annotations

import signal
import threading
from importlib import import_module
from types import FrameType
from typing import Any

SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGALRM))
"""Those whose handlers often raise."""

_plain: Any = import_module("_signal")
"""What ``signal`` wraps: its enums cost 20 times what is done here."""


class interrupts_deferred:  # noqa: N801 - it reads as what it does: with interrupts_deferred()
    """What signals arrive while this lasts are handled at its end, so that nothing in it is left half done.

    For what is short. Python handles signals in the main thread only: in others this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in SIGNALS:
                handler = _plain.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    _plain.signal(number, self._handle)
        except BaseException:
            self._restore()
            raise

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._came.append(number)

    def __exit__(self, *error: object) -> None:
        self._restore()
        for number in dict.fromkeys(self._came):
            self._before[number](number, None)

    def _restore(self) -> None:
        """Put all handlers back, also if one of them is called, and raises, as soon as it is back."""
        for number, handler in self._before.items():
            try:
                _plain.signal(number, handler)
            except BaseException:
                for each in self._before.items():
                    _plain.signal(*each)
                raise
