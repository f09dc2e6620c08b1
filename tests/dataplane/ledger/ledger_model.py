"""A simple model of a ledger: one object per sample, no arrays, no queues.

It follows a ledger: it gets each request with its result, asserts that the result was allowed, and compares the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import Predicate

FREE, LEASED, ACKED, DONE, COVERED = "free", "leased", "acked", "done", "covered"


@dataclass
class Sample:
    """One sample: what each task has done with it, and where its fields are."""

    name: str
    group: str | None
    alive: bool = True
    blocks: dict[str, int] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    reason: str = ""


class LedgerModel:
    """One partition, the slow way."""

    def __init__(self, spec: PartitionSpec) -> None:
        self.spec = spec
        self.samples: dict[str, Sample] = {}
        self.used: set[str] = set()
        self.expires: dict[int, float] = {}
        self.owners: dict[int, str] = {}
        self.gone: Counter[str] = Counter()
        self.redelivered: Counter[str] = Counter()
        self.committed: dict[str, int] = {}
        self.group_sizes: dict[str, int] = {}
        self.freed: Counter[int] = Counter()
        self.blocks: set[int] = set()
        self.epoch = 0
        self.sealed = False

    # requests -----------------------------------------------------------------------------------------

    def put(self, request: Put) -> None:
        number = int(request.location["n"])
        assert self.room(self.new(request))
        for at, name in enumerate(request.sample_ids):
            sample = self.samples.get(name)
            if sample is None:
                assert name not in self.used
                assert not self.sealed
                group = None if request.group_ids is None else request.group_ids[at]
                if group is not None:
                    size = self.spec.group_size
                    self.group_sizes.setdefault(group, size or 0)
                    self.group_sizes[group] += not size
                sample = self.samples[name] = Sample(name, group, states=dict.fromkeys(self.spec.tasks, FREE))
                self.used.add(name)
            assert sample.alive
            for one in request.shapes:
                sample.blocks[one] = number
            if request.tags is not None:
                own = request.tags if isinstance(request.tags, Mapping) else request.tags[at]
                sample.tags.update(own)
        self.blocks.add(number)
        self._collect()

    def claim(self, request: Claim, grant: Grant, expires: float) -> None:
        ready = self.ready(request)
        names = grant.sample_ids
        assert len(set(names)) == len(names)
        assert set(names) <= set(ready), (names, ready)
        if self.spec.group_size is None and not self.group_sizes:
            assert len(names) == min(request.batch_size, len(ready))
        else:
            groups = {self.samples[name].group for name in names}
            assert set(names) == {name for name in ready if self.samples[name].group in groups}
        assert len(names) <= request.batch_size
        assert len(names) >= request.min_batch or (self.sealed and names)
        assert (grant.tags or [{}] * len(names)) == [self.samples[name].tags for name in names]
        assert grant.groups is None or grant.groups == [self.samples[name].group for name in names]
        for name in names:
            sample = self.samples[name]
            sample.states[request.task_name] = LEASED
            sample.leases[request.task_name] = grant.lease
        self.expires[grant.lease], self.owners[grant.lease] = expires, request.owner

    def ack(self, task: str, names: list[str], version: int | None) -> None:
        for name in names:
            sample = self.samples[name]
            self._settle(sample, task)
            sample.states[task] = DONE if version is None else ACKED
            if version is not None:
                sample.versions[task] = version
            states = set(sample.states.values())
            if version is None and states <= {DONE, COVERED}:
                self._clear(sample, "consumed")
        self._collect()

    def release(self, task: str, names: list[str]) -> None:
        for name in names:
            self._settle(self.samples[name], task)
            self.redelivered[task] += 1

    def held(self, task: str, name: str, lease: int) -> bool:
        sample = self.samples.get(name)
        return sample is not None and sample.leases.get(task) == lease

    def extend(self, task: str, names: list[str], expires: float) -> None:
        for lease in {self.samples[name].leases[task] for name in names}:
            self.expires[lease] = max(self.expires[lease], expires)

    def expire(self, now: float) -> None:
        self._end({lease for lease, expires in self.expires.items() if expires <= now})

    def owner_gone(self, owner: str) -> int:
        return self._end({lease for lease, one in self.owners.items() if one == owner})

    def _end(self, leases: set[int]) -> int:
        count = 0
        for sample in self.samples.values():
            for task, lease in list(sample.leases.items()):
                if lease in leases:
                    self._settle(sample, task)
                    self.redelivered[task] += 1
                    count += 1
        return count

    def clear(self, names: list[str], reason: str) -> int:
        alive = [self.samples[name] for name in set(names) if name in self.samples and self.samples[name].alive]
        for sample in alive:
            self._clear(sample, reason)
        self._collect()
        return len(alive)

    def commit(self, task: str, version: int) -> int:
        self.committed[task] = max(version, self.committed.get(task, version))
        covered = [one for one in self.samples.values() if one.versions.get(task, version + 1) <= version]
        for sample in covered:
            del sample.versions[task]
            sample.states[task] = COVERED
            if sample.alive and set(sample.states.values()) <= {DONE, COVERED}:
                self._clear(sample, "consumed")
        self._collect()
        return len(covered)

    def rewind(self, task: str, to_version: int) -> tuple[int, int]:
        self._end({lease for one in self.samples.values() for name, lease in one.leases.items() if name == task})
        back = [one for one in self.samples.values() if one.versions.get(task, to_version) > to_version]
        for sample in back:
            del sample.versions[task]
            sample.states[task] = FREE
            if not sample.alive and sample.reason != "orphaned":
                sample.alive = True
                self.gone[sample.reason] -= 1
                if sample.group is not None:
                    self.group_sizes[sample.group] += 1
        orphans = [
            one
            for one in self.samples.values()
            if one.alive and one.states[task] == FREE and one.tags.get("weight_version", 0) > to_version
        ]
        kept = [one for one in back if one.alive and one not in orphans]
        for sample in orphans:
            self._clear(sample, "orphaned")
        for sample in self.samples.values():  # cleared, and kept for another task: its weights are gone all the same
            later = sample.tags.get("weight_version", 0) > to_version
            if not sample.alive and sample.states[task] == FREE and later:
                self.gone[sample.reason] -= 1
                self.gone["orphaned"] += 1
                sample.reason = "orphaned"
        self.redelivered[task] += len(kept)
        self.epoch += 1
        self._collect()
        return len(kept), len(orphans)

    # consequences -------------------------------------------------------------------------------------

    def _settle(self, sample: Sample, task: str) -> None:
        lease = sample.leases.pop(task)
        sample.states[task] = FREE
        if not any(lease in one.leases.values() for one in self.samples.values()):
            del self.expires[lease], self.owners[lease]

    def _clear(self, sample: Sample, reason: str) -> None:
        for task in list(sample.leases):
            self._settle(sample, task)
        sample.alive = False
        sample.reason = reason
        self.gone[reason] += 1
        if sample.group is not None:
            self.group_sizes[sample.group] -= 1

    def _collect(self) -> None:
        """Forget what no rewind brings back, and the bytes that no sample needs."""
        for name, sample in list(self.samples.items()):
            if not sample.alive and ACKED not in sample.states.values():
                del self.samples[name]
        groups = {sample.group for sample in self.samples.values()}
        for group, size in list(self.group_sizes.items()):
            if not size and group not in groups:
                del self.group_sizes[group]
        wanted = {number for sample in self.samples.values() for number in sample.blocks.values()}
        for number in self.blocks - wanted:
            self.freed[number] += 1
        self.blocks &= wanted

    def new(self, request: Put) -> int:
        """The number of new samples in a put."""
        return sum(name not in self.samples for name in request.sample_ids)

    def room(self, count: int) -> bool:
        """Whether so many samples fit."""
        return not count or self.spec.capacity is None or len(self.samples) + count <= self.spec.capacity

    def ready(self, request: Claim) -> list[str]:
        """The samples that a claim could get."""
        found = self.claimable(request.task_name, set(request.fields))
        where = request.where
        if where is None:
            return found
        unwanted = {name for name in found if not matches(where, self.samples[name].tags)}
        groups = {self.samples[name].group for name in unwanted} - {None}
        return [name for name in found if name not in unwanted and self.samples[name].group not in groups]

    def claimable(self, task: str, fields: set[str]) -> list[str]:
        """The samples that have the fields, in groups that are whole for the task."""
        alive = [one for one in self.samples.values() if one.alive]
        spoilt = {one.group for one in alive if one.states[task] == LEASED}
        spoilt |= {one.group for one in alive if one.states[task] == FREE and not fields <= set(one.blocks)}
        sizes = Counter(one.group for one in alive)
        spoilt |= {group for group, size in self.group_sizes.items() if sizes[group] != size}
        return [
            one.name
            for one in alive
            if one.states[task] == FREE and fields <= set(one.blocks) and (one.group is None or one.group not in spoilt)
        ]

    def check(self, ledger: Ledger, now: float) -> None:
        """Assert that a ledger counts the same."""
        stats = ledger.stats(now)[self.spec.partition_id]
        alive = [one for one in self.samples.values() if one.alive]
        assert stats["alive"] == len(alive)
        assert stats["resident"] == len(self.samples)
        assert stats["produced"] == len(self.used)
        assert sum(stats["gone"].values()) + len(alive) == len(self.used)
        assert stats["gone"] == {reason: count for reason, count in self.gone.items() if count}
        assert stats["blocks"] == len(self.blocks)
        assert (stats["epoch"], stats["sealed"]) == (self.epoch, self.sealed)
        for task, found in stats["tasks"].items():
            counts = Counter(one.states[task] for one in alive)
            assert found["leased"] == counts[LEASED]
            assert found["acked"] == counts[ACKED] + counts[DONE] + counts[COVERED]
            assert found["free"] == counts[FREE]
            assert found["redelivered"] == self.redelivered[task]
            assert found["committed"] == self.committed.get(task)
            for fields, count in found["ready"].items():
                assert count == len(self.claimable(task, {one for one in fields.split(",") if one})), (task, fields)
            acked = ledger.consumed(self.spec.partition_id, [task])
            assert acked == (counts[FREE] + counts[LEASED] == 0)
        assert ledger.next_deadline() <= min(self.expires.values(), default=float("inf"))
        for sample in alive:
            if sample.blocks:
                found = ledger.locate(self.spec.partition_id, [sample.name], list(sample.blocks))
                for name, number in sample.blocks.items():
                    assert found["locations"][found["fields"][name][0][0]]["n"] == number


def matches(where: Predicate, tags: Mapping[str, Any]) -> bool:
    """Whether a sample with these tags is wanted."""
    found = where.mask(lambda name: (np.array([tags.get(name)], dtype=object), np.array([tags.get(name) is not None])))
    return bool(found[0])
