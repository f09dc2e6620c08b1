"""``report``: what a callable is given to tell of its progress. Also loaded in worker processes: imports little."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn, SupportsFloat, SupportsIndex


class TrialPruned(BaseException):
    """Raised by ``report`` in a trial that is to end now.

    No ``Exception``, so that code that is prepared for any error still lets it through.
    """


class Report:
    """Called by the user's function with (step, value); may be called from any of its threads.

    Args:
        tell: hands a value on, and says whether the trial is to end now. Never called twice at a time, nor
            after ``close``.

    Attributes:
        told: the function was told to end.
    """

    def __init__(self, tell: Callable[[int, float], bool]) -> None:
        self._tell = tell
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open = True
        self.told = False

    def __call__(self, step: SupportsIndex, value: SupportsFloat) -> None:
        """Tell that the trial has come to ``step``, and what its metric is there.

        Raises:
            TypeError, ValueError: this is no step or no number.
            RuntimeError: called in another process, or after the function returned.
            TrialPruned: the trial is to end now.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("report() was called in another process; call it where the function was called")
        at, number = _step(step), _number(value)
        with self._lock:
            if not self._open:
                raise RuntimeError("report() was called after the function had returned")
            self.told = self.told or self._tell(at, number)
            if self.told:
                raise TrialPruned

    def close(self) -> None:
        """Refuse values from now on; waits for one that is on its way."""
        if os.getpid() == self._pid:  # in a copy of the process the lock may be held for ever
            with self._lock:
                self._open = False

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent anywhere."""
        raise TypeError("report can't be sent to another process; call it where the function was called")


def _step(step: Any) -> int:
    if isinstance(step, bool):
        raise TypeError("report(step, value): step must be an integer, not a boolean")
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"report(step, value): step must be an integer, not {step!r:.80}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError("report(step, value): step must fit in 64 bits")
    return number


def _number(value: Any) -> float:
    # An array's boolean is no number either; its type says so, whichever library it is from.
    if isinstance(value, bool | str | bytes) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError(f"report(step, value): value must be a number, not {value!r:.80}")
    try:
        return float(value)
    except OverflowError:  # an integer that no float can hold
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"report(step, value): value must be a number, not {value!r:.80}") from None
