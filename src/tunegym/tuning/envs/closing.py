"""The end of an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Closable(Protocol):
    """An engine, as far as its end is concerned."""

    def close(self) -> None:
        """Let go of everything."""
        ...


def close_engine(engine: Closable, then: Callable[[], None]) -> None:
    """End the experiment, and do the rest whatever that raises."""
    try:
        engine.close()
    finally:
        then()
