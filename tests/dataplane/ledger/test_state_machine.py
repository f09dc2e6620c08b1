"""A ledger does what a simple model does, whatever happens in whatever order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.dataplane.ledger.ledger_model import LedgerModel

from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EndOfStreamError,
    EpochError,
    FullError,
    LeaseLostError,
    SampleError,
    SealedError,
    SpecError,
    UnknownPartitionError,
)
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.snapshot import restore, save, snapshot
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import Tag

TASKS = ("train", "judge")
FIELDS = ("x", "y")
SHAPES = {"x": ("int64", 1), "y": ("float32", 1)}
OWNERS = ("one", "two", "three")
WHERES = (
    None,
    None,
    Tag("weight_version") >= 2,
    ~(Tag("weight_version") == 1),
    Tag("weight_version").isin([1, 3]) | (Tag("kind") == "odd"),
)
FIELD_SETS = (("x", "y"), ("x",), ("y",), ())


class LedgerMachine:
    """Producers, consumers, owners that die, time that passes, checkpoints and rewinds."""

    def __init__(
        self, capacity: int | None, group_size: int | None, grouped: bool, numbered: bool, raises: bool
    ) -> None:
        on_full = "raise" if raises and capacity is not None else "block"
        self.spec = PartitionSpec("p", FIELDS, TASKS, capacity, group_size, on_full)
        self.grouped = grouped or group_size is not None
        self.numbered = numbered
        self.ledger = Ledger()
        self.ledger.register(self.spec)
        self.model = LedgerModel(self.spec)
        self.now = 0.0
        self.next = 0
        self.block = 0
        self.names: list[str] = []
        self.claims: list[tuple[str, str, int]] = []
        self.waiting: list[Waiter] = []
        self.freed: Counter[int] = Counter()
        self.journal: list[tuple[Any, ...]] = []
        self.base = snapshot(self.ledger)

    # what is asked of it ------------------------------------------------------------------------------

    def put(
        self, names: list[str], fields: tuple[str, ...], groups: list[str] | None, version: int, late: bool
    ) -> None:
        self.block += 1
        shapes = {name: SHAPES[name] for name in fields}
        tags = {"weight_version": version}
        request = Put(
            "p",
            names,
            shapes,
            {"n": self.block},
            10,
            tags=(None, tags, [tags] * len(names))[min(version, 2)],
            group_ids=groups,
            epoch=self.model.epoch - late,
            owner=OWNERS[self.block % 3],
        )
        model = self.model
        dead = [one for one in names if one in model.used and not (one in model.samples and model.samples[one].alive)]
        behind = any(isinstance(one.request, Put) for one in self.waiting)
        before = self.plain()
        try:
            waiter = self.ledger.put(request, self.now, self.now + 2.0, wait=self.block % 4 != 0)
        except EpochError:
            assert late
        except SealedError:
            assert model.sealed
        except FullError:
            assert not model.room(model.new(request)) or behind
        except SpecError:
            assert self.spec.capacity is not None
            assert model.new(request) > self.spec.capacity
        except SampleError:
            assert dead or groups is not None
        else:
            assert not dead
            assert not (late and names)
            if waiter is None:
                assert model.room(model.new(request))
                assert not behind or not model.new(request)
                self.took(request)
                return
            assert not model.room(model.new(request)) or behind
            assert self.spec.on_full == "block"
            self.waiting.append(waiter)
            return
        assert self.plain() == before

    def took(self, request: Put) -> None:
        self.journal.append(("put", request, self.now))
        self.model.put(request)
        self.names += [name for name in request.sample_ids if name not in self.names]
        if not request.shapes or not request.sample_ids:
            assert request.location["n"] not in self.model.blocks
        self.settle()

    def put_new(self, count: int, fields: tuple[str, ...], version: int, late: bool, group: int) -> None:
        names = [f"s{self.next + at:03d}" if self.numbered else f"s{self.next + at}.{at}x" for at in range(count)]
        self.next += count
        groups = [f"g{(group + at) // 2}-{self.next // 4}" for at in range(count)] if self.grouped else None
        self.put(names, fields, groups, version, late)

    def produce(self, count: int, version: int) -> None:
        self.put_new(count, ("x", "y"), version, False, 0)

    def train(self, task: str, most: int, version: int | None, owner: str) -> None:
        """Claim something, and ack it."""
        before = len(self.claims)
        self.claim(task, ("x",), most * (self.spec.group_size or 1), 1, owner, 5.0, None, False)
        own = self.claims[before:]
        if own:
            self.settle_these("ack", task, [one[1] for one in own], [one[2] for one in own], version)

    def put_back(self, seed: int, fields: tuple[str, ...]) -> None:
        if self.names:
            chance = random.Random(seed)
            names = chance.sample(self.names, min(len(self.names), chance.randint(0, 4)))
            self.put(names, fields, None, chance.randint(0, 3), False)

    def write_tags(self, seed: int, version: int) -> None:
        alive = [name for name, one in self.model.samples.items() if one.alive]
        if alive:
            chance = random.Random(seed)
            names = chance.sample(alive, min(len(alive), chance.randint(1, 4)))
            tags = [{"weight_version": version}, {"kind": chance.choice(["odd", "even", None])}] * 2
            tags = tags[: len(names)]
            self.ledger.write_tags("p", names, tags, self.now)
            self.journal.append(("write_tags", names, tags, self.now))
            for name, given in zip(names, tags, strict=True):
                self.model.samples[name].tags.update(given)
            self.settle()

    def claim(
        self,
        task: str,
        fields: tuple[str, ...],
        most: int,
        least: int,
        owner: str,
        lease_s: float,
        where: Any,
        wait: bool,
    ) -> None:
        request = Claim("p", task, fields, most, min(most, least), owner, lease_s, where)
        behind = where is None and any(self.line(one.request) == self.line(request) for one in self.waiting)
        try:
            found = self.ledger.claim(request, self.now, self.now + 3.0, wait=wait)
        except SpecError:
            return
        except ClaimTimeoutError as late:
            assert not wait
            told = str(late)
            assert self.grouped or f"{len(self.model.ready(request))} of at least" in told
            if not behind:
                self.lacks(request)
        except EndOfStreamError:
            self.ended(request)
        else:
            if isinstance(found, Waiter):
                assert wait
                self.waiting.append(found)
            else:
                assert not behind
                self.got(request, found)

    def line(self, request: Any) -> Any:
        if isinstance(request, Put):
            return "put"
        return id(request) if request.where is not None else (request.task_name, frozenset(request.fields))

    def lacks(self, request: Claim) -> None:
        ready = self.model.ready(request)
        if not self.grouped:
            assert len(ready) < request.min_batch
            assert not (ready and self.model.sealed and self.over(request))
            return
        sizes = Counter(self.model.samples[name].group for name in ready).values()
        least, most = request.min_batch, request.batch_size
        for size, count in Counter(sizes).items():
            assert min(count, most // size) * size < least
        # groups of different sizes are not packed as well as they could be
        assert sum(sizes) < least or max(sizes) > most - least + 1

    def over(self, request: Claim) -> bool:
        """Whether no more can become ready."""
        alive = [one for one in self.model.samples.values() if one.alive]
        free = [one for one in alive if one.states[request.task_name] == "free"]
        leased = [one for one in alive if one.states[request.task_name] == "leased"]
        return not leased and all(set(request.fields) <= set(one.blocks) for one in free)

    def ended(self, request: Claim) -> None:
        assert self.model.sealed
        if not self.grouped:
            assert not self.model.ready(request)
            assert self.over(request)

    def got(self, request: Claim, grant: Grant) -> None:
        self.journal.append(("claim", request, grant, self.now))
        self.model.claim(request, grant, self.now + request.lease_s)
        self.claims += [
            (request.task_name, name, lease) for name, lease in zip(grant.sample_ids, grant.leases, strict=True)
        ]

    def some_claims(self, chance: random.Random) -> tuple[str, list[str], list[int]]:
        """Claims of one task, some of which may be lost; of one claim, mostly."""
        held = [one for one in self.claims if self.model.held(*one)]
        known = held if held and chance.randint(0, 4) else self.claims
        task = chance.choice(known)[0]
        own = [one for one in known if one[0] == task]
        if chance.random() < 0.5:
            lease = chance.choice(own)[2]
            own = [one for one in own if one[2] == lease]
        if chance.random() < 0.5:
            own = chance.sample(own, chance.randint(1, min(4, len(own))))
        return task, [one[1] for one in own], [one[2] for one in own]

    def settle_claims(self, seed: int, what: str) -> None:
        if not self.claims:
            return
        chance = random.Random(seed)
        task, names, leases = self.some_claims(chance)
        base = self.model.committed.get(task, 0)
        version = chance.choice([None, base, base + 1, base + 2, base + 3]) if what == "ack" else None
        self.settle_these(what, task, names, leases, version)

    def settle_these(self, what: str, task: str, names: list[str], leases: list[int], version: int | None) -> None:
        held = all(self.model.held(task, *one) for one in zip(names, leases, strict=True))
        covered = version is not None and version <= self.model.committed.get(task, version - 1)
        before = self.plain()
        try:
            if what == "ack":
                self.ledger.ack("p", task, names, leases, version, self.now)
            elif what == "release":
                self.ledger.release("p", task, names, leases, self.now)
            else:
                self.ledger.extend("p", task, names, leases, 5.0, self.now)
        except LeaseLostError:
            assert not held
            assert self.plain() == before
        except SpecError:
            assert covered
            assert self.plain() == before
        else:
            assert held
            assert not covered
            self.journal.append((what, task, names, leases, version, self.now))
            if what == "ack":
                self.model.ack(task, names, version)
            elif what == "release":
                self.model.release(task, names)
            else:
                self.model.extend(task, names, self.now + 5.0)
            self.settle()

    def clear(self, seed: int, reason: str | None) -> None:
        if self.names:
            chance = random.Random(seed)
            names = chance.choices(self.names, k=chance.randint(0, 5))
            count = self.ledger.clear("p", names, reason, self.now)
            self.journal.append(("clear", names, reason, self.now))
            assert count == self.model.clear(names, reason or "cleared")
            self.settle()

    def commit(self, task: str, version: int) -> None:
        count = self.ledger.commit("p", task, version, self.now)
        self.journal.append(("commit", task, version, self.now))
        assert count == self.model.commit(task, version)
        self.settle()

    def rewind(self, task: str, version: int) -> None:
        try:
            counts = self.ledger.rewind("p", task, version, self.now)
        except SpecError:
            assert version < self.model.committed[task]
            return
        self.journal.append(("rewind", task, version, self.now))
        assert counts == self.model.rewind(task, version)
        self.settle()

    def seal(self, chance: int) -> None:
        if chance == 9:
            self.ledger.seal("p", self.now)
            self.journal.append(("seal", self.now))
            self.model.sealed = True
            self.settle()

    # what befalls it ----------------------------------------------------------------------------------

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.expire(self.now)
        self.journal.append(("time", self.now))
        self.model.expire(self.now)
        self.settle()

    def owner_dies(self, owner: str) -> None:
        count = self.ledger.owner_gone(owner, self.now)
        self.journal.append(("gone", owner, self.now))
        assert count == self.model.owner_gone(owner)
        self.waiting = [one for one in self.waiting if one.request.owner != owner]
        self.settle()

    def give_up(self, seed: int) -> None:
        if self.waiting:
            waiter = random.Random(seed).choice(self.waiting)
            self.waiting.remove(waiter)
            self.ledger.give_up(waiter, self.now)
            self.settle()

    def start_again(self) -> None:
        """From a snapshot, from which the journal goes on; whoever waits asks again."""
        self.collect()
        before = self.plain()
        self.base, self.journal = snapshot(self.ledger), []
        self.ledger = restore(self.base)
        assert self.plain() == before
        self.ask_again()

    def host_dies(self) -> None:
        """What took effect is done again, from the last snapshot on; whoever waits asks again."""
        self.collect()
        self.ledger = self.replayed()
        self.ledger.take_freed()
        self.ask_again()

    def ask_again(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            request = waiter.request
            ask = self.ledger.put if isinstance(request, Put) else self.ledger.claim
            again = ask(request, self.now, waiter.deadline, wait=True)
            assert isinstance(again, Waiter)
            self.waiting.append(again)

    def delete(self, chance: int) -> None:
        """And make it anew: nothing is left, and what was claimed is lost."""
        if chance != 9:
            return
        self.ledger.delete("p")
        settled = self.ledger.take_settled()
        assert settled == sorted(self.waiting, key=lambda one: one.number)
        assert all(isinstance(one.outcome, UnknownPartitionError) for one in settled)
        self.waiting = []
        self.ledger.register(self.spec)
        self.journal.append(("anew",))
        fresh = LedgerModel(self.spec)
        fresh.freed = self.model.freed + Counter(self.model.blocks)
        self.model, self.names = fresh, []

    # what must hold -----------------------------------------------------------------------------------

    def plain(self) -> bytes:
        return snapshot(self.ledger)

    def settle(self) -> None:
        """Those who wait no more: what they got was allowed."""
        for waiter in self.ledger.take_settled():
            self.waiting.remove(waiter)
            request, outcome = waiter.request, waiter.outcome
            assert waiter.settled
            if isinstance(outcome, Grant):
                assert isinstance(request, Claim)
                self.got(request, outcome)
            elif outcome is None:
                assert isinstance(request, Put)
                self.took_waiting(request)
            elif isinstance(outcome, ClaimTimeoutError | FullError):
                assert waiter.deadline is not None
                assert waiter.deadline <= self.now
            elif isinstance(outcome, EndOfStreamError):
                assert isinstance(request, Claim)
                self.ended(request)
            else:
                assert isinstance(outcome, EpochError | SealedError | SampleError)

    def took_waiting(self, request: Put) -> None:
        self.journal.append(("put", request, self.now))
        self.model.put(request)
        self.names += [name for name in request.sample_ids if name not in self.names]

    def collect(self) -> None:
        for location in self.ledger.take_freed():
            self.freed[location["n"]] += 1

    def counts_are_right(self) -> None:
        assert not self.ledger.take_settled()
        self.model.check(self.ledger, self.now)

    def bytes_are_freed_once(self) -> None:
        self.collect()
        assert self.freed == self.model.freed
        assert set(self.freed.values()) <= {1}

    def nobody_waits_in_vain(self) -> None:
        seen = set()
        for waiter in self.waiting:
            line = self.line(waiter.request)
            if line in seen:
                continue
            seen.add(line)
            if isinstance(waiter.request, Put):
                assert not self.model.room(self.model.new(waiter.request))
            else:
                self.lacks(waiter.request)

    def replayed(self) -> Ledger:
        """The ledger that the last snapshot and the journal since lead to: the same one."""
        again = restore(self.base)
        for change in self.journal:
            self.repeat(again, *change)
            assert not again.take_settled()
        self.model.check(again, self.now)
        for task, name, lease in self.claims:
            if self.model.held(task, name, lease):
                again.extend("p", task, [name], [lease], 0.0, self.now)
        assert contents(again) == contents(self.ledger)
        return again

    @staticmethod
    def repeat(again: Ledger, kind: str, *given: Any) -> None:
        if kind == "put":
            request, now = given
            assert again.put(request, now) is None
        elif kind == "claim":
            request, grant, now = given
            assert again.claim_again(request, grant.lease, grant.sample_ids, now).plain() == grant.plain()
        elif kind == "anew":
            (spec,) = again.specs()
            again.delete("p")
            again.register(spec)
        elif kind == "time":
            again.expire(*given)
        elif kind == "gone":
            again.owner_gone(*given)
        elif kind == "release":
            task, names, leases, _, now = given
            again.release("p", task, names, leases, now)
        elif kind == "extend":
            task, names, leases, _, now = given
            again.extend("p", task, names, leases, 5.0, now)
        else:
            getattr(again, kind)("p", *given)


def contents(ledger: Ledger) -> Any:
    """Everything that is known of each sample, by its id."""
    header, (columns,) = save(ledger)
    (plain,) = header["partitions"]
    rows = columns["resident"].nonzero()[0]
    known = [columns[name][..., rows].T.tolist() for name in ("alive", "produced", "lengths", "states", "leases")]
    return dict(zip(plain["names"], zip(*known, strict=True), strict=True)), sorted(plain["retired"]), plain["gone"]


def storm(chance: random.Random, steps: int) -> None:
    """Many steps, mostly of those that get samples through."""
    pick = chance.choice
    grouped, numbered, raises = chance.random() < 0.3, chance.random() < 0.5, chance.random() < 0.3
    machine = LedgerMachine(pick([None, 6, 9]), pick([None, None, 2, 3]), grouped, numbered, raises)

    def version(low: int, high: int) -> int:
        """One near the latest commits, so that versions go on and on."""
        return max([0, *machine.model.committed.values()]) + chance.randint(low, high)

    steps_of: dict[Callable[[], None], int] = {
        lambda: machine.produce(chance.randint(1, 5), version(0, 2)): 6,
        lambda: machine.put_new(
            chance.randint(0, 5), pick(FIELD_SETS), version(0, 2), chance.random() < 0.1, chance.randint(0, 3)
        ): 3,
        lambda: machine.put_back(chance.randrange(2**16), pick(FIELD_SETS)): 4,
        lambda: machine.write_tags(chance.randrange(2**16), chance.randint(1, 3)): 1,
        lambda: machine.train(
            pick(TASKS), chance.randint(1, 4), pick([version(1, 3), version(1, 3), None]), pick(OWNERS)
        ): 6,
        lambda: machine.claim(
            pick(TASKS),
            pick(FIELD_SETS),
            chance.randint(1, 6),
            chance.randint(1, 6),
            pick(OWNERS),
            pick([1.0, 5.0]),
            pick(WHERES),
            chance.random() < 0.5,
        ): 8,
        lambda: machine.settle_claims(chance.randrange(2**16), pick(["ack", "ack", "release", "extend"])): 8,
        lambda: machine.clear(chance.randrange(2**16), pick([None, "stale"])): 2,
        lambda: machine.commit(pick(TASKS), version(0, 1)): 2,
        lambda: machine.rewind(pick(TASKS), version(0, 2)): 1,
        lambda: machine.time_passes(pick([0.5, 1.0, 3.0])): 2,
        lambda: machine.owner_dies(pick(OWNERS)): 1,
        lambda: machine.give_up(chance.randrange(2**16)): 1,
        machine.start_again: 1,
        machine.host_dies: 1,
        lambda: machine.delete(9 if chance.random() < 0.05 else 0): 1,
        lambda: machine.seal(9 if chance.random() < 0.03 else 0): 1,
    }
    for step in chance.choices(list(steps_of), weights=list(steps_of.values()), k=steps):
        step()
        machine.counts_are_right()
        machine.bytes_are_freed_once()
        machine.nobody_waits_in_vain()
    machine.replayed()


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
def test_a_ledger_does_what_the_model_does(chance: random.Random) -> None:
    storm(chance, 40)


@pytest.mark.parametrize("seed", range(20))
def test_it_weathers_a_storm(seed: int) -> None:
    storm(random.Random(seed), 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
def test_it_weathers_a_long_storm(seed: int) -> None:
    storm(random.Random(seed), 400)
