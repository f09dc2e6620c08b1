"""The end of an environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol


class Closable(Protocol):
    """An engine, as far as its end is concerned."""

    def close(self) -> None:
        """Let go of everything."""
        ...


def closes(engine: Closable, then: Callable[[], None]) -> Callable[[], None]:
    """What ends the experiment, and does the rest whatever that raises.

    A process that was forked from this one has a copy of everything, and ends, mostly, by closing what it has: there it
    does nothing, since the experiment goes on here.
    """
    owner = os.getpid()

    def close() -> None:
        if os.getpid() != owner:
            return
        try:
            engine.close()
        finally:
            then()

    return close
