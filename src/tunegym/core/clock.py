"""Clocks, so that tests can hold them still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
