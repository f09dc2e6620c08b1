"""What a client does at its host and its storage for puts, claims and reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tunegym.core.interrupts import interrupts_deferred
from tunegym.dataplane import arguments
from tunegym.dataplane.encoding import Column
from tunegym.dataplane.errors import DataPlaneError, EpochError, SpecError, UnknownPartitionError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.hosts.base import Handle, Host
from tunegym.dataplane.hosts.latencies import BEGAN
from tunegym.dataplane.hosts.operations import runs_of
from tunegym.dataplane.ledger.placing import Run
from tunegym.dataplane.ledger.requests import tags_of, tickets_of
from tunegym.dataplane.model import BatchMeta, Tags
from tunegym.dataplane.predicate import Predicate
from tunegym.dataplane.storage.base import BlockGoneError, Location, Storage

READ_TRIES = 20
"""How often bytes are looked for again that went between the look at the ledger and the read."""


class Calls:
    """The calls of one client. Any thread may make them.

    Attributes:
        epochs: of the partitions, as this producer knows them.
    """

    def __init__(self, host: Host, storage: Storage, owner: str, lease_s: float) -> None:
        self._host = host
        self._storage = storage
        self._owner = owner
        self._lease_s = lease_s
        self.epochs: dict[str, int] = {}

    def put(
        self,
        handle: Handle,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        tags: Tags | Sequence[Tags] | None,
        group_ids: Sequence[str] | None,
        timeout_s: float | None,
        given_lengths: Sequence[int] | None,
        given_epoch: int | None,
    ) -> BatchMeta:
        """See ``DataPlaneClient.put_samples``. Whoever has the handle may abandon it."""
        began = time.monotonic()
        arguments.checked_name("partition_id", partition_id)
        wait_s = arguments.checked_seconds("timeout_s", timeout_s)
        ids = arguments.checked_ids(sample_ids)
        columns = arguments.checked_columns(fields, len(ids))
        plain = arguments.checked_tag_list(tags, len(ids))
        each = tags_of(plain, len(ids))
        groups = arguments.checked_groups(group_ids, len(ids))
        lengths = arguments.checked_lengths(given_lengths, len(ids))
        if lengths is None:
            lengths = _lengths_of(columns)
        epoch = self.epochs.setdefault(partition_id, 0)  # what wasn't there when it joined had not been rewound
        if given_epoch is not None:
            epoch = arguments.checked_integer("epoch", given_epoch, 0)
        meta = BatchMeta(
            partition_id,
            tuple(ids),
            tuple(fields),
            sequence_lengths=None if lengths is None else tuple(lengths),
            tags=None if each is None else tuple(each),
            group_ids=None if groups is None else tuple(groups),
            epoch=epoch,
        )
        if not ids:
            return meta
        request = {
            "partition_id": partition_id,
            "sample_ids": ids,
            "shapes": {name: column.shape_key for name, column in columns.items()},
            "lengths": lengths,
            "tags": plain,
            "group_ids": groups,
            "epoch": epoch,
            "owner": self._owner,
            "lengths_given": given_lengths is not None,
            BEGAN: began,
        }
        location: Location | None = None
        try:
            with interrupts_deferred():
                location, request["nbytes"] = self._storage.write(partition_id, columns)
            self._host.call("put", {**request, "location": location}, wait_s, handle)
            self._storage.settle(location)
        except DataPlaneError as error:
            if location is not None:
                self._storage.free([location])
            if isinstance(error, EpochError) and given_epoch is None:
                with contextlib.suppress(DataPlaneError):
                    # Now, and not with the next put: before that weights are fetched. And no other partition's.
                    self.epochs[partition_id] = self.epoch(partition_id)
            raise
        except BaseException:
            taken = self._host.abandon(handle)
            if location is not None:
                (self._storage.settle if taken else self._free)(location)
            raise
        return meta

    def _free(self, location: Location) -> None:
        self._storage.free([location])

    def claim(
        self,
        handle: Handle,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        where: Predicate | None,
        min_batch: int | None,
        timeout_s: float | None,
    ) -> BatchMeta:
        """See ``DataPlaneClient.claim_meta``. Whoever has the handle may abandon it."""
        began = time.monotonic()
        if where is not None and not isinstance(where, Predicate):
            raise SpecError(
                f"where is {where!r:.60}, no predicate", hint='write for example Tag("weight_version") >= 3'
            )
        fields = arguments.checked_names("required_fields", required_fields)
        most, least = arguments.checked_batch(batch_size, min_batch)
        given = {
            **of(partition_id),
            "task_name": arguments.checked_name("task_name", task_name),
            "fields": fields,
            "batch_size": most,
            "min_batch": least,
            "owner": self._owner,
            "lease_s": self._lease_s,
            "where": None if where is None else where.plain(),
            BEGAN: began,
        }
        wait_s = arguments.checked_seconds("timeout_s", timeout_s)
        try:
            found = self._host.call("claim", given, wait_s, handle)
            ids = tuple(found["sample_ids"])
            each = tags_of(found["tags"], len(ids))
            return BatchMeta(
                partition_id,
                ids,
                tuple(fields),
                task_name,
                None if found["lengths"] is None else tuple(found["lengths"]),
                None if each is None else tuple(each),
                None if found["groups"] is None else tuple(found["groups"]),
                leases=tuple(tickets_of(found["leases"])),
                epoch=found["epoch"],
            )
        except DataPlaneError:
            raise
        except BaseException:
            self._host.abandon(handle)
            raise

    def epoch(self, partition_id: str) -> int:
        """See ``DataPlaneClient.epoch``. The client's own stays as it is: other threads may still have old weights."""
        arguments.checked_name("partition_id", partition_id)
        epochs = {one["partition_id"]: one["epoch"] for one in self._host.call("specs", {})}
        if partition_id not in epochs:
            known = ", ".join(epochs) or "none"
            raise UnknownPartitionError(f"there is no partition {partition_id!r}", hint=f"registered: {known}")
        return epochs[partition_id]

    def see_epochs(self) -> None:
        """Be of the present epochs. Weights that are fetched from here on are of these, or later ones.

        A partition that was never seen was not rewound by then.
        """
        specs = self._host.call("specs", {})
        self.epochs.update({one["partition_id"]: one["epoch"] for one in specs})

    def read(self, meta: BatchMeta, fields: list[str]) -> dict[str, Rows]:
        """See ``DataPlaneClient.get_samples``."""
        for _ in range(READ_TRIES):
            with contextlib.suppress(BlockGoneError):  # written again, or cleared, in between: the next look tells
                return self._read(meta, fields)
        return self._read(meta, fields)

    def _read(self, meta: BatchMeta, fields: list[str]) -> dict[str, Rows]:
        given = {"partition_id": meta.partition_id, "sample_ids": list(meta.sample_ids), "fields": fields}
        found = self._host.call("locate", given)
        locations, runs = dict(found["blocks"]), [runs_of(one) for one in found["runs"]]
        return {name: self._gathered(name, runs[found["fields"][name]], locations) for name in fields}

    def _gathered(self, name: str, runs: Sequence[Run], locations: Mapping[int, Mapping[str, Any]]) -> Rows:
        """Runs of one block at a time, in the order of the batch; each block is looked for once."""
        blocks = dict.fromkeys(block for block, _ in runs)
        columns = {block: self._storage.read(locations[block], name, ()).column for block in blocks}
        return Rows([(columns[block], places) for block, places in runs])


def of(partition_id: str, task_name: str | None = None) -> dict[str, Any]:
    """What names a partition, or a task of it."""
    named = {"partition_id": arguments.checked_name("partition_id", partition_id)}
    return named if task_name is None else {**named, "task_name": arguments.checked_name("task_name", task_name)}


def _lengths_of(columns: Mapping[str, Column]) -> list[int] | None:
    """Of the first column whose rows differ in theirs; else that was given row by row; else that has any."""
    known = [column for column in columns.values() if column.lengths is not None]
    if not known:
        return None
    listed = next((column for column in known if column.listed), known[0])
    counted = next((column for column in known if column.kind == "jagged"), listed)
    return list(counted.lengths or ())
