"""Giving many pages back to the system takes milliseconds, a tenth of one for each megabyte: nobody waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LARGE = 8 << 20
"""What is smaller is given back at once: a thread would cost as much."""
_MOST = 8
_NAME = "tunegym-freeing"


def later(nbytes: int, free: Callable[..., Any], *arguments: Any) -> None:
    """Call what gives so many bytes back, in a thread of its own if they are many. It must not fail."""
    busy = sum(one.name == _NAME for one in threading.enumerate()) if nbytes >= LARGE else 0
    if nbytes >= LARGE and busy < _MOST:
        try:
            threading.Thread(target=free, args=arguments, name=_NAME, daemon=True).start()
        except RuntimeError:  # there are no more threads, or the interpreter ends
            free(*arguments)
        return
    free(*arguments)
