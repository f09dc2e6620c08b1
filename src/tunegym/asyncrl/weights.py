"""Weights on their way from the learner to collectors: through the plane's own storage, a sample for each version."""

from __future__ import annotations

import contextlib
from typing import Any

from tunegym.dataplane import BatchMeta, DataPlaneClient
from tunegym.dataplane.errors import UnknownPartitionError

PARTITION = FIELD = "weights"


class WeightPublisher:
    """The learner's side. Only the newest versions stay.

    Building it deletes what an earlier learner published: its last versions may be of weights that no checkpoint has.
    So publish the checkpoint's version first, and then ``rewind``.
    """

    def __init__(self, plane: DataPlaneClient, keep: int = 2) -> None:
        self._plane, self._keep = plane, keep
        self._published: list[int] = []
        with contextlib.suppress(UnknownPartitionError):
            plane.delete_partition(PARTITION)
        plane.register_partition(PARTITION, [FIELD], ["fetch"])

    def publish(self, weights: Any, version: int) -> None:
        """Make a version known: an array, or nested dicts and lists of arrays and tensors."""
        self._plane.put_samples(PARTITION, [f"v{version}"], {FIELD: [{"weights": weights}]})
        self._published.append(version)
        old, self._published = self._published[: -self._keep], self._published[-self._keep :]
        if old:
            self._plane.clear_samples(PARTITION, [f"v{one}" for one in old])


def fetch(plane: DataPlaneClient, version: int) -> Any:
    """The weights of a version, as they were published. Raises ``DataPlaneError`` if it is no longer there."""
    meta = BatchMeta(PARTITION, (f"v{version}",), (FIELD,))
    return plane.get_samples(meta, [FIELD])[FIELD].to_list()[0]["weights"]
