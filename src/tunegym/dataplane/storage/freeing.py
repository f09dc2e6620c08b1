"""Giving many pages back to the system takes milliseconds, a tenth of one for each megabyte: nobody waits for that."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGE = 8 << 20
"""What is smaller is given back at once: a thread would cost as much."""
_SPARE = 16
"""So is what may be missed: where no more than so many times as much is free."""
_MOST = 8
_NAME = "tunegym-freeing"


def later(nbytes: int, place: Path | int, free: Callable[..., Any], *arguments: Any) -> None:
    """Call what gives so many bytes back, in a thread of its own if they are many and nobody may miss them.

    Args:
        nbytes: how many.
        place: a path or a descriptor on the file system that they are on.
        free: does it; must not fail.
        arguments: its.
    """
    if nbytes >= LARGE and _plenty(nbytes, place) and len(_threads()) < _MOST:
        with contextlib.suppress(RuntimeError):  # there are no more threads, or the interpreter ends
            threading.Thread(target=free, args=arguments, name=_NAME, daemon=True).start()
            return
    free(*arguments)


def wait(seconds: float) -> None:
    """Until all is given back that this process is giving back now, but no longer than so."""
    until = time.monotonic() + seconds
    for thread in _threads():
        thread.join(max(0.0, until - time.monotonic()))


def _plenty(nbytes: int, place: Path | int) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize > _SPARE * nbytes


def _threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == _NAME and one is not threading.current_thread()]
