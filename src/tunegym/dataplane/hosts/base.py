"""What a client needs of whoever has the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Handle:
    """By which a call that is under way can be abandoned. It is of one call, and made before that.

    Attributes:
        abandoned: nobody wants the answer.
        under_way: what a host knows of the call; None before it has begun.
    """

    def __init__(self) -> None:
        self.abandoned = False
        self.under_way: Any = None


class Host(Protocol):
    """Has the ledger, and answers. Any thread may call it.

    Attributes:
        durable: whether what it acknowledged outlives its process.
    """

    durable: bool

    def call(
        self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0, handle: Handle | None = None
    ) -> Any:
        """What ``operations.perform`` gives. A claim or put that has to wait waits for ``wait_s``, None for ever.

        Whoever gives a handle, and ends in another way than by the answer or a ``DataPlaneError``, abandons it.

        Raises:
            DataPlaneError: what the ledger said, or that it can't be reached.
        """
        ...

    def abandon(self, handle: Handle) -> bool:
        """Nobody wants the answer to a put or a claim any more; whether it had taken effect.

        One that waits ends with a ``ClosedError``, and so does one that has yet to begin. What it claimed is given
        back; what it put stays. Any thread may call it, also when the call is over.
        """
        ...

    def close(self) -> None:
        """Let go: what this client has claimed is given back. Calling it twice is fine."""
        ...
