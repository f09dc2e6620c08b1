"""Errors of the data plane."""

from __future__ import annotations

from collections.abc import Iterable

from tunegym.core.errors import TunegymError


class DataPlaneError(TunegymError):
    """Base class of the errors of the data plane.

    Attributes:
        sample_ids: the samples that the error is about, where they are known: ``clear_samples`` drops them.
    """

    def __init__(self, message: str, *, hint: str | None = None, sample_ids: Iterable[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.sample_ids = tuple(sample_ids)


class NoPlaneError(DataPlaneError):
    """There is no plane at the URL to join."""


class UnknownPartitionError(DataPlaneError):
    """No such partition, or it was deleted."""


class SpecError(DataPlaneError):
    """A call that doesn't fit what the partition was registered with; nothing of it took effect."""


class SampleError(DataPlaneError):
    """Sample ids that are unknown, cleared, there twice or already there; nothing took effect."""


class FieldError(DataPlaneError):
    """A field that is not declared, not produced, or of another dtype or rank than before."""


class TagError(DataPlaneError):
    """Tags that are missing, of the wrong kind, or don't match the samples."""


class LeaseLostError(DataPlaneError):
    """The claim of ``sample_ids`` has ended: they were released, cleared, or claimed again. Nothing took effect.

    The others are still held: ``meta.drop(error.sample_ids)`` can be acked or released.
    """


class LostError(DataPlaneError):
    """Samples that this client put are lost with a node. Raised once, by its next put, which has no effect.

    Attributes:
        sample_ids: which ones. Produce others in their place, under new ids, and put again.
    """


class ClaimTimeoutError(DataPlaneError):
    """Not enough samples became ready in time; says how many were, and what the others lack."""


class HostTimeoutError(DataPlaneError):
    """The plane's host did not answer in time. The call may still take effect."""


class FullError(DataPlaneError):
    """The partition is at its capacity."""


class EndOfStreamError(DataPlaneError):
    """The partition is sealed, and there is nothing left to claim."""


class SealedError(DataPlaneError):
    """The partition takes no more samples."""


class EpochError(DataPlaneError):
    """The put belongs to weights that vanished in a rewind; the producer must fetch the present ones first."""


class StorageError(DataPlaneError):
    """Bytes can't be written or read. Acknowledged samples are safe."""


class ClosedError(DataPlaneError):
    """The client is closed."""
