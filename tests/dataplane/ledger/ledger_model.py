"""A simple model of a ledger: one object per sample, no arrays, no queues.

It follows a ledger: it gets each request with its result, asserts that the result was allowed, and compares the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put
from tunegym.dataplane.model import PartitionSpec, tags_by_sample
from tunegym.dataplane.predicate import Predicate

FREE, LEASED, ACKED, DONE, COVERED = "free", "leased", "acked", "done", "covered"


@dataclass
class Sample:
    """One sample: its state for each task, and the blocks of its fields."""

    name: str
    group: str | None
    states: dict[str, str]
    alive: bool = True
    reason: str = ""
    blocks: dict[str, int] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)


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
        self.members: Counter[str] = Counter()
        self.freed: Counter[int] = Counter()
        self.blocks: set[int] = set()
        self.retained: list[str] = []
        self.epoch = 0
        self.sealed = False

    # requests -----------------------------------------------------------------------------------------

    def put(self, request: Put) -> None:
        number, tags, new = int(request.location["n"]), request.tags or {}, self.new(request)
        assert self.room(new)
        while new and self.spec.capacity is not None and len(self.samples) + new > self.spec.capacity:
            del self.samples[self.retained.pop(0)]
        for at, name in enumerate(request.sample_ids):
            if name not in self.samples:
                assert name not in self.used
                assert not self.sealed
                group = None if request.group_ids is None else request.group_ids[at]
                if group is not None:
                    self.members[group] += 1
                self.samples[name] = Sample(name, group, dict.fromkeys(self.spec.tasks, FREE))
                self.used.add(name)
            sample = self.samples[name]
            assert sample.alive
            sample.blocks.update(dict.fromkeys(request.shapes, number))
            sample.tags.update(tags if isinstance(tags, Mapping) else tags[at])
        self.blocks.add(number)
        self._collect()

    def claim(self, request: Claim, grant: Grant, expires: float) -> None:
        ready, names = self.ready(request.task_name, request.fields, request.where), grant.sample_ids
        assert len(set(names)) == len(names)
        assert set(names) <= set(ready), (names, ready)
        if self.members:
            groups = {self.samples[name].group for name in names}
            assert set(names) == {name for name in ready if self.samples[name].group in groups}
        else:
            assert len(names) == min(request.batch_size, len(ready))
        assert len(names) <= request.batch_size
        assert len(names) >= request.min_batch or (self.sealed and names)
        assert list(tags_by_sample(grant.tags, len(names)) or [{}] * len(names)) == [
            self.samples[name].tags for name in names
        ]
        assert grant.groups is None or grant.groups == [self.samples[name].group for name in names]
        for name in names:
            self.samples[name].states[request.task_name] = LEASED
            self.samples[name].leases[request.task_name] = grant.lease
        self.expires[grant.lease], self.owners[grant.lease] = expires, request.owner

    def ack(self, task: str, names: list[str], version: int | None) -> None:
        for name in names:
            sample = self.samples[name]
            del sample.leases[task]
            sample.states[task] = DONE if version is None else ACKED
            if version is not None:
                sample.versions[task] = version
            if set(sample.states.values()) == {DONE}:
                self._clear(sample, "consumed")
                self.retained.append(name)
        self._collect()

    def release(self, task: str, names: Collection[str]) -> int:
        return self._end(lambda sample, own, _: own == task and sample.name in names)

    def held(self, task: str, name: str, lease: int) -> bool:
        return name in self.samples and self.samples[name].leases.get(task) == lease

    def extend(self, task: str, names: list[str], expires: float) -> None:
        for lease in {self.samples[name].leases[task] for name in names}:
            self.expires[lease] = max(self.expires[lease], expires)

    def expire(self, now: float) -> None:
        self._end(lambda _, __, lease: self.expires[lease] <= now)

    def owner_gone(self, owner: str) -> int:
        return self._end(lambda _, __, lease: self.owners[lease] == owner)

    def _end(self, ends: Callable[[Sample, str, int], bool], attempt: bool = True) -> int:
        """Give back what the leases hold that end, unless it was the last attempt of a sample or one of its group."""
        ended = [(one, *lease) for one in self.samples.values() for lease in one.leases.items() if ends(one, *lease)]
        for sample, task, _ in ended:
            del sample.leases[task]
            sample.states[task] = FREE
            sample.attempts[task] += attempt
        dead: list[Sample] = []
        for sample, task, _ in ended:
            if attempt and sample.attempts[task] >= (self.spec.max_attempts or 1000):
                dead += [
                    one for one in self.alive(task, FREE) if one is sample or (one.group and one.group == sample.group)
                ]
        back = [task for sample, task, _ in ended if sample not in dead]
        self.redelivered.update(back)
        for sample in dead:
            if sample.alive:
                self._clear(sample, "dead")
        self._collect()
        return len(back)

    def clear(self, names: list[str], reason: str) -> int:
        alive = [self.samples[name] for name in set(names) if name in self.samples and self.samples[name].alive]
        for sample in alive:
            self._clear(sample, reason)
        before = len(self.retained)
        self.retained = [name for name in self.retained if name not in names]
        self._collect()
        return len(alive) + before - len(self.retained)

    def commit(self, task: str, version: int) -> int:
        self.committed[task] = max(version, self.committed.get(task, version))
        covered = [one for one in self.samples.values() if one.versions.get(task, version + 1) <= version]
        for sample in covered:
            del sample.versions[task]
            sample.states[task] = COVERED
        self._collect()
        return len(covered)

    def rewind(self, task: str, to_version: int) -> tuple[int, int]:
        self._end(lambda _, own, __: own == task, attempt=False)
        back = [one for one in self.samples.values() if one.versions.get(task, to_version) > to_version]
        for sample in back:
            del sample.versions[task]
            sample.states[task] = FREE
            if not sample.alive and sample.reason != "orphaned":
                sample.alive = True
                self.gone[sample.reason] -= 1
        free = [one for one in self.samples.values() if one.states[task] == FREE]
        late = [one for one in free if one.tags.get("weight_version", 0) > to_version]
        kept, orphans = [one for one in back if one.alive and one not in late], [one for one in late if one.alive]
        for sample in late:
            if not sample.alive:  # cleared, and kept for another task: its weights are gone all the same
                self.gone[sample.reason] -= 1
            self._clear(sample, "orphaned")
        self.redelivered[task] += len(kept)
        self.epoch += 1
        self._collect()
        return len(kept), len(orphans)

    def move(self, names: list[str], old: int, new: int) -> None:
        assert names
        for name in names:
            blocks = self.samples[name].blocks
            assert old in blocks.values()
            blocks.update({field: new for field, number in blocks.items() if number == old})
        self.blocks.add(new)
        self._collect()

    # consequences -------------------------------------------------------------------------------------

    def _clear(self, sample: Sample, reason: str) -> None:
        for task in sample.leases:
            sample.states[task] = FREE
        sample.leases.clear()
        sample.alive, sample.reason = False, reason
        self.gone[reason] += 1

    def _collect(self) -> None:
        """Forget samples that no rewind brings back, and the bytes that no sample needs."""
        for name, sample in list(self.samples.items()):
            if sample.alive and set(sample.states.values()) <= {DONE, COVERED}:
                self._clear(sample, "consumed")
            if not sample.alive and ACKED not in sample.states.values() and name not in self.retained:
                del self.samples[name]
        left = {sample.group for sample in self.samples.values()}
        for group in [one for one in self.members if one not in left and self.is_whole(one)]:
            del self.members[group]
        wanted = {number for sample in self.samples.values() for number in sample.blocks.values()}
        self.freed.update(self.blocks - wanted)
        self.blocks &= wanted

    def new(self, request: Put) -> int:
        """The number of new samples in a put."""
        return sum(name not in self.samples for name in request.sample_ids)

    def room(self, count: int) -> bool:
        """Whether so many samples fit."""
        resident = len(self.samples) - len(self.retained)
        return not count or self.spec.capacity is None or resident + count <= self.spec.capacity

    def is_whole(self, group: str) -> bool:
        """Whether all members of a group were put."""
        return self.members[group] >= (self.spec.group_size or 0)

    def alive(self, task: str = "", *states: str) -> list[Sample]:
        return [one for one in self.samples.values() if one.alive and (not task or one.states[task] in states)]

    def ready(self, task: str, fields: Collection[str], where: Predicate | None = None) -> list[str]:
        """The samples that a claim could get: they have the fields and match, and so do their whole groups."""
        unfit = self.alive(task, LEASED)
        found = []
        for one in self.alive(task, FREE):
            fits = set(fields) <= set(one.blocks) and (where is None or matches(where, one.tags))
            (found if fits else unfit).append(one)
        spoilt = {one.group for one in unfit} | {group for group in self.members if not self.is_whole(group)}
        return [one.name for one in found if one.group is None or one.group not in spoilt]

    def check(self, ledger: Ledger, now: float) -> None:
        """Assert that a ledger counts the same."""
        partition, alive = self.spec.partition_id, self.alive()
        stats = ledger.stats(now)[partition]
        counts = {
            "alive": len(alive),
            "resident": len(self.samples) - len(self.retained),
            "retained": len(self.retained),
            "produced": len(self.used),
            "gone": {reason: count for reason, count in self.gone.items() if count},
            "blocks": len(self.blocks),
            "epoch": self.epoch,
            "sealed": self.sealed,
        }
        assert {name: stats[name] for name in counts} == counts
        assert self.gone.total() + len(alive) == len(self.used)
        for task, found in stats["tasks"].items():
            counts = {
                "free": len(self.alive(task, FREE)),
                "leased": len(self.alive(task, LEASED)),
                "acked": len(self.alive(task, ACKED, DONE, COVERED)),
                "redelivered": self.redelivered[task],
                "committed": self.committed.get(task),
            }
            assert {name: found[name] for name in counts} == counts
            for fields, count in found["ready"].items():
                assert count == len(self.ready(task, [one for one in fields.split(",") if one])), (task, fields)
            assert ledger.consumed(partition, [task]) == (len(alive) == counts["acked"])
        held = {lease for one in alive for lease in one.leases.values()}
        assert ledger.next_deadline() <= min((self.expires[lease] for lease in held), default=float("inf"))
        for sample in [*alive, *(self.samples[name] for name in self.retained)]:
            if sample.blocks:
                found = ledger.locate(partition, [sample.name], list(sample.blocks))
                for name, number in sample.blocks.items():
                    assert found["locations"][found["fields"][name][0][0]]["n"] == number


def matches(where: Predicate, tags: Mapping[str, Any]) -> bool:
    """Whether a sample with these tags is wanted."""
    found = where.mask(lambda name: (np.array([tags.get(name)], dtype=object), np.array([tags.get(name) is not None])))
    return bool(found[0])
