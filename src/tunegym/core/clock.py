"""The clocks of an experiment, so that tests can hold them still."""

from __future__ import annotations

import time


class Clock:
    """The machine's own clocks: wall time for records; monotonic time, which never goes back, for durations."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
