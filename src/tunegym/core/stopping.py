"""Asking a run to stop."""

from __future__ import annotations

from collections.abc import Callable


class Stop:
    """A request to stop, and those who must hear of it at once.

    ``request`` may be called from a signal handler: it takes no lock, and every subscriber must be as careful.
    """

    def __init__(self) -> None:
        self._requested = False
        self._subscribers: list[Callable[[], None]] = []
        self._killers: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Whether somebody asked."""
        return self._requested

    def request(self) -> None:
        """Ask. Asking again changes nothing."""
        self._requested = True
        for subscriber in list(self._subscribers):
            subscriber()

    def subscribe(self, subscriber: Callable[[], None], killer: Callable[[], None]) -> None:
        """Call ``subscriber`` when stopping is asked for (now, if it already was), ``killer`` when forced."""
        self._subscribers.append(subscriber)
        self._killers.append(killer)
        if self._requested:
            subscriber()

    def force(self) -> None:
        """Stopping in good order takes too long: whoever can, kills at once."""
        for killer in list(self._killers):
            killer()

    def unsubscribe(self, subscriber: Callable[[], None], killer: Callable[[], None]) -> None:
        """Forget a subscriber."""
        self._subscribers.remove(subscriber)
        self._killers.remove(killer)
