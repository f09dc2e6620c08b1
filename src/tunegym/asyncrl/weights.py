"""Weights on their way from the learner to collectors: through the plane's own storage, a sample for each version."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tunegym.dataplane import BatchMeta, DataPlaneClient
from tunegym.dataplane.errors import LeaseLostError, LostError, SampleError, UnknownPartitionError

PARTITION = FIELD = "weights"


class WeightPublisher:
    """The learner's side. Only the newest versions stay.

    Building it deletes what an earlier learner published: its last versions may be of weights that no checkpoint has.
    So publish the checkpoint's version first, and then ``rewind``. ``readers`` are those of ``fetch_next``.
    """

    def __init__(self, plane: DataPlaneClient, keep: int = 2, readers: Sequence[str] = ("any",)) -> None:
        self._plane, self._keep = plane, keep
        self._published: list[int] = []
        self._newest: Any = None
        self._readers = readers
        self._begin()

    def _begin(self) -> None:
        with contextlib.suppress(UnknownPartitionError):
            self._plane.delete_partition(PARTITION)
        self._plane.register_partition(PARTITION, [FIELD], self._readers)

    def publish(self, weights: Any, version: int) -> None:
        """Make a version known: an array, a ``state_dict``, or nested dicts and lists of arrays and tensors."""
        self._newest = dict(weights) if isinstance(weights, Mapping) else weights
        put = partial(self._plane.put_samples, PARTITION, [f"v{version}"], {FIELD: [{"weights": self._newest}]})
        try:
            put()
        except LostError:  # of earlier versions
            put()
        self._published.append(version)
        old, self._published = self._published[: -self._keep], self._published[-self._keep :]
        if old:
            self._plane.clear_samples(PARTITION, [f"v{one}" for one in old])

    def restore(self) -> None:
        """Publish the newest version again if a node of a cluster took it with it."""
        newest = self._published[-1]
        if f"v{newest}" not in [one["sample_id"] for one in self._plane.list_samples(PARTITION)]:
            self._begin()  # an id is used once
            self._published.clear()
            self.publish(self._newest, newest)


def fetch(plane: DataPlaneClient, version: int) -> Any:
    """The weights of a version, as they were published. Raises ``DataPlaneError`` if it is no longer there."""
    meta = BatchMeta(PARTITION, (f"v{version}",), (FIELD,))
    return plane.get_samples(meta, [FIELD])[FIELD].to_list()[0]["weights"]


def fetch_next(plane: DataPlaneClient, reader: str, timeout_s: float | None = None) -> tuple[int, Any]:
    """The newest version that this reader has not had, and its weights; waits until there is one.

    Raises ``ClaimTimeoutError``.
    """
    while True:
        meta = plane.claim_meta(PARTITION, reader, [FIELD], 1000, min_batch=1, timeout_s=timeout_s)
        with contextlib.suppress(LeaseLostError, SampleError):  # cleared meanwhile: there is a newer one
            version = int(meta.sample_ids[-1].removeprefix("v"))
            found = fetch(plane, version)
            plane.ack(meta)
            return version, found
