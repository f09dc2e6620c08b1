"""The peers: ``python -m benchmarks.dataplane.on_ray``, driven by ``pipe``.

A Ray of its own on this machine, TransferQueue in it, and actors: a producer and a consumer for TransferQueue and for
Ray's object store, each a process. All get their batches in the form that they take fastest, made before.
"""

from __future__ import annotations

import logging
import os
import tempfile
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np

from benchmarks.dataplane.batches import KINDS, timed, touched
from benchmarks.dataplane.pipe import serve
from benchmarks.trial_overhead.measure import ROOT
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode

os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# By name: they are in no extra that developers install, and type checkers would miss them.
ray, torch, tq, omegaconf, tensordict = (
    cast("Any", import_module(name)) for name in ("ray", "torch", "transfer_queue", "omegaconf", "tensordict")
)

PARTITION, TASK = "rollouts", "train"
STORE_BYTES = 2 << 30
LOOPBACK = "127.0.0.2"
"""Ray takes 127.0.0.1 for the machine's address, and this one as it is."""


class QueueParty:
    """One process at TransferQueue."""

    def __init__(self) -> None:
        tq.init()
        self._client: Any = tq.get_client()
        self._batches: dict[str, Any] = {}
        self._claimed: list[Any] = []

    def _fields(self, kind: str) -> Any:
        if kind not in self._batches:
            columns = {name: _tensor(rows) for name, rows in KINDS[kind].fields().items()}
            self._batches[kind] = tensordict.TensorDict(columns, batch_size=KINDS[kind].rows)
        return self._batches[kind]

    def put(self, kind: str) -> float:
        fields = self._fields(kind)
        return timed(partial(self._client.put, fields, partition_id=PARTITION), KINDS[kind].rows)[0]

    def claim(self, kind: str, count: int) -> float:
        fields = list(self._fields(kind).keys())
        claim = partial(self._client.get_meta, fields, count, PARTITION, task_name=TASK)
        taken, meta = timed(claim, 1)
        assert meta.size == count
        self._claimed.append(meta)
        return taken

    def get(self, kind: str, first: bool = False) -> float:
        """As it gives them: nested tensors, not padded."""
        meta = self._claimed[0] if first else tq.BatchMeta.concat(self._claimed)
        taken, found = timed(lambda: self._client.get_data(meta), meta.size)
        for name, rows in self._fields(kind).items():
            for at in (0, meta.size - 1):
                assert torch.equal(found[name][at].reshape(-1), rows[at].reshape(-1))
        return taken

    def done(self) -> None:
        self._client.clear_partition(PARTITION)
        self._claimed.clear()


class StoreParty:
    """One process at Ray's object store."""

    def __init__(self) -> None:
        self._batches: dict[str, dict[str, Any]] = {}

    def _fields(self, kind: str) -> dict[str, Any]:
        if kind not in self._batches:
            fields = KINDS[kind].fields()
            self._batches[kind] = fields if KINDS[kind].jagged else {name: np.array(fields[name]) for name in fields}
        return self._batches[kind]

    def put(self, kind: str) -> tuple[float, Any]:
        taken, reference = timed(partial(ray.put, self._fields(kind)), KINDS[kind].rows)
        return taken, [reference]

    def get(self, kind: str, references: Any) -> float:
        """As they were put: views."""

        def read() -> None:
            for name, rows in ray.get(references[0]).items():
                for array in rows if KINDS[kind].jagged else [rows]:
                    touched({name: array})

        return timed(read, KINDS[kind].rows)[0]

    def padded(self, kind: str, references: Any) -> float:
        """As ours are."""

        def read() -> dict[str, Any]:
            found = ray.get(references[0])
            return touched({name: Rows([(encode(rows), range(len(rows)))]).padded() for name, rows in found.items()})

        return timed(read, KINDS[kind].rows)[0]


def _tensor(rows: Any) -> Any:
    tensors = [torch.from_numpy(row) for row in rows]
    if len({len(one) for one in tensors}) == 1:
        return torch.stack(tensors)
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


class Peers:
    """Both of them, each with a producer and a consumer.

    Args:
        folder: for Ray's files. Its name is short: there will be sockets in it.
    """

    def __init__(self, folder: str) -> None:
        os.environ["PYTHONPATH"] = str(ROOT)  # for the actors
        ray.init(
            address="local",
            _temp_dir=folder,
            include_dashboard=False,
            num_cpus=8,
            _node_ip_address=LOOPBACK,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        # A claim of what isn't there is answered at once: the other mode sleeps, and everybody's put with it.
        tq.init(omegaconf.OmegaConf.create({"controller": {"polling_mode": True}}))
        queue, store = (ray.remote(num_cpus=0)(one) for one in (QueueParty, StoreParty))
        self._queue = [queue.remote(), queue.remote()]
        self._store = [store.remote(), store.remote()]
        self._reference: Any = None

    def ready(self) -> None:
        """All of it is there."""

    def queue(self, method: str, **arguments: Any) -> Any:
        actor = self._queue[0] if method == "put" else self._queue[1]
        return ray.get(getattr(actor, method).remote(**arguments))

    def store(self, method: str, kind: str) -> float:
        if method == "put":
            taken, self._reference = ray.get(self._store[0].put.remote(kind))
            return taken
        return ray.get(getattr(self._store[1], method).remote(kind, self._reference))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            serve(Peers(folder))
        finally:
            tq.close()
            ray.shutdown()


if __name__ == "__main__":
    main()
