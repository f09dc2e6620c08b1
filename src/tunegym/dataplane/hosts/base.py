"""What a client needs of whoever has the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Host(Protocol):
    """Has the ledger, and answers. Any thread may call it.

    Attributes:
        durable: whether what it acknowledged outlives its process.
    """

    durable: bool

    def call(self, operation: str, arguments: Mapping[str, Any], wait_s: float | None = 0.0) -> Any:
        """What ``operations.perform`` gives. A claim or put that has to wait waits for ``wait_s``, None for ever.

        Raises:
            DataPlaneError: what the ledger said, or that it can't be reached.
        """
        ...

    def close(self) -> None:
        """Let go: what this client has claimed is given back. Calling it twice is fine."""
        ...
