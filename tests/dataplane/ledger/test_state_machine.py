"""A ledger does what a simple model does, whatever happens in whatever order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.dataplane.ledger.ledger_model import LedgerModel

from tunegym.core import wire
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
from tunegym.dataplane.ledger.snapshot import restore, snapshot
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
pytestmark = pytest.mark.invariant


class LedgerMachine:
    """Producers, consumers, owners that die, time that passes, checkpoints and rewinds: a method is one step."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        capacity, group_size = chance.choice([None, 6, 9]), chance.choice([None, None, 2, 3])
        on_full = "raise" if capacity is not None and chance.random() < 0.3 else "block"
        self.spec = PartitionSpec("p", FIELDS, TASKS, capacity, group_size, on_full)
        self.grouped = chance.random() < 0.3 or group_size is not None
        self.ledger = Ledger()
        self.ledger.register(self.spec)
        self.model = LedgerModel(self.spec)
        self.now = 0.0
        self.next = self.block = 0
        self.names: list[str] = []
        self.claims: list[tuple[str, str, int]] = []
        self.waiting: list[Waiter] = []
        self.freed: Counter[int] = Counter()
        self.journal: list[tuple[Any, ...]] = []
        self.base = snapshot(self.ledger)

    def version(self, low: int, high: int) -> int:
        """One near the latest commits, so that versions go on and on."""
        return max([0, *self.model.committed.values()]) + self.chance.randint(low, high)

    def some(self, known: Sequence[Any], least: int, most: int) -> list[Any]:
        return self.chance.sample(known, min(len(known), self.chance.randint(least, most)))

    # what is asked of it ------------------------------------------------------------------------------

    def put(self, names: list[str], fields: Sequence[str], version: int, **more: Any) -> None:
        self.block += 1
        tags = {"weight_version": version}
        tags = (None, tags, [tags] * len(names))[min(version, 2)]
        shapes, late, groups = {name: SHAPES[name] for name in fields}, more.pop("late", False), more.get("group_ids")
        epoch, owner = self.model.epoch - late, OWNERS[self.block % 3]
        request = Put("p", names, shapes, {"n": self.block}, 10, tags=tags, epoch=epoch, owner=owner, **more)
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
                self.settle()
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

    def put_new(self, fields: Sequence[str] | None = None, *, late: bool | None = None) -> None:
        count, group = self.chance.randint(0, 5), self.chance.randint(0, 3)
        names = [f"s{self.next + at:03d}" for at in range(count)]
        self.next += count
        groups = [f"g{(group + at) // 2}-{self.next // 4}" for at in range(count)] if self.grouped else None
        late = self.chance.random() < 0.1 if late is None else late
        fields = self.chance.choice(FIELD_SETS) if fields is None else fields
        self.put(names, fields, self.version(0, 2), late=late, group_ids=groups)

    def produce(self) -> None:
        self.put_new(("x", "y"), late=False)

    def put_known(self) -> None:
        self.put(self.some(self.names, 0, 4), self.chance.choice(FIELD_SETS), self.chance.randint(0, 3))

    def write_tags(self) -> None:
        names = self.some([name for name, one in self.model.samples.items() if one.alive], 1, 4)
        tags = [{"weight_version": self.chance.randint(1, 3)}, {"kind": self.chance.choice(["odd", "even", None])}] * 2
        tags = tags[: len(names)]
        self.ledger.write_tags("p", names, tags, self.now)
        self.journal.append(("write_tags", names, tags, self.now))
        for name, own in zip(names, tags, strict=True):
            self.model.samples[name].tags.update(own)
        self.settle()

    def train(self) -> None:
        """Claim something, and ack it."""
        before, task = len(self.claims), self.chance.choice(TASKS)
        most = self.chance.randint(1, 4) * (self.spec.group_size or 1)
        self.claim(Claim("p", task, ("x",), most, 1, self.chance.choice(OWNERS), 5.0), wait=False)
        own = self.claims[before:]
        if own:
            version = self.chance.choice([self.version(1, 3), self.version(1, 3), None])
            self.settle_these("ack", task, [one[1] for one in own], [one[2] for one in own], version)

    def claim_some(self) -> None:
        pick, most = self.chance.choice, self.chance.randint(1, 6)
        least, lease_s = min(most, self.chance.randint(1, 6)), pick([1.0, 5.0])
        request = Claim("p", pick(TASKS), pick(FIELD_SETS), most, least, pick(OWNERS), lease_s, pick(WHERES))
        self.claim(request, wait=self.chance.random() < 0.5)

    def claim(self, request: Claim, *, wait: bool) -> None:
        behind = request.where is None and any(self.line(one.request) == self.line(request) for one in self.waiting)
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
        self.claims += [(request.task_name, name, grant.lease) for name in grant.sample_ids]

    def settle_claims(self) -> None:
        """Claims of one task, some of which may be lost; of one claim, mostly."""
        chance = self.chance
        held = [one for one in self.claims if self.model.held(*one)]
        known = held if held and chance.randint(0, 4) else self.claims
        if not known:
            return
        task = chance.choice(known)[0]
        own = [one for one in known if one[0] == task]
        if chance.random() < 0.5:
            lease = chance.choice(own)[2]
            own = [one for one in own if one[2] == lease]
        own = self.some(own, 1, 4) if chance.random() < 0.5 else own
        what, base = chance.choice(["ack", "ack", "release", "extend"]), self.model.committed.get(task, 0)
        version = chance.choice([None, base, base + 1, base + 2, base + 3]) if what == "ack" else None
        self.settle_these(what, task, [one[1] for one in own], [one[2] for one in own], version)

    def settle_these(self, what: str, task: str, names: list[str], leases: list[int], version: int | None) -> None:
        held = all(self.model.held(task, *one) for one in zip(names, leases, strict=True))
        covered = version is not None and version <= self.model.committed.get(task, version - 1)
        more = {"ack": (version,), "release": (), "extend": (5.0,)}[what]
        before = self.plain()
        try:
            getattr(self.ledger, what)("p", task, names, leases, *more, self.now)
        except LeaseLostError:
            assert not held
            assert self.plain() == before
            return
        except SpecError:
            assert covered
            assert self.plain() == before
            return
        assert held
        assert not covered
        self.journal.append((what, task, names, leases, *more, self.now))
        if what == "extend":
            more = (self.now + 5.0,)
        getattr(self.model, what)(task, names, *more)
        self.settle()

    def clear(self) -> None:
        names, reason = self.some(self.names, 0, 5), self.chance.choice([None, "stale"])
        names += names[:1]
        count = self.ledger.clear("p", names, reason, self.now)
        self.journal.append(("clear", names, reason, self.now))
        assert count == self.model.clear(names, reason or "cleared")
        self.settle()

    def commit(self) -> None:
        task, version = self.chance.choice(TASKS), self.version(0, 1)
        count = self.ledger.commit("p", task, version, self.now)
        self.journal.append(("commit", task, version, self.now))
        assert count == self.model.commit(task, version)
        self.settle()

    def rewind(self) -> None:
        task, version = self.chance.choice(TASKS), max(0, self.version(-1, 2))
        try:
            counts = self.ledger.rewind("p", task, version, self.now)
        except SpecError:
            assert version < self.model.committed[task]
            return
        self.journal.append(("rewind", task, version, self.now))
        assert counts == self.model.rewind(task, version)
        self.settle()

    def seal(self) -> None:
        if self.chance.random() < 0.03:
            self.ledger.seal("p", self.now)
            self.journal.append(("seal", self.now))
            self.model.sealed = True
            self.settle()

    # what befalls it ----------------------------------------------------------------------------------

    def time_passes(self) -> None:
        self.now += self.chance.choice([0.5, 1.0, 3.0])
        self.ledger.expire(self.now)
        self.journal.append(("time", self.now))
        self.model.expire(self.now)
        self.settle()

    def owner_dies(self) -> None:
        owner = self.chance.choice(OWNERS)
        count = self.ledger.owner_gone(owner, self.now)
        self.journal.append(("gone", owner, self.now))
        assert count == self.model.owner_gone(owner)
        self.waiting = [one for one in self.waiting if one.request.owner != owner]
        self.settle()

    def give_up(self) -> None:
        for waiter in self.some(self.waiting, 1, 1):
            self.waiting.remove(waiter)
            self.ledger.give_up(waiter, self.now)
            self.settle()

    def start_again(self) -> None:
        """Continue from a snapshot; requests that wait are repeated."""
        self.collect()
        before = self.plain()
        self.base, self.journal = snapshot(self.ledger), []
        self.ledger = restore(self.base)
        assert self.plain() == before
        self.ask_again()

    def host_dies(self) -> None:
        """Replay the journal from the last snapshot; requests that wait are repeated."""
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

    def delete(self) -> None:
        """Register it again: nothing is left, and claims are lost."""
        if self.chance.random() > 0.05:
            return
        self.ledger.delete("p")
        settled = self.ledger.take_settled()
        assert settled == sorted(self.waiting, key=lambda one: one.number)
        assert all(isinstance(one.outcome, UnknownPartitionError) for one in settled)
        self.waiting = []
        self.ledger.register(self.spec)
        self.journal.append(("again",))
        fresh = LedgerModel(self.spec)
        fresh.freed = self.model.freed + Counter(self.model.blocks)
        self.model, self.names = fresh, []

    # what must hold -----------------------------------------------------------------------------------

    def plain(self) -> bytes:
        return snapshot(self.ledger)

    def settle(self) -> None:
        """Check the outcomes of the requests that wait no longer."""
        for waiter in self.ledger.take_settled():
            self.waiting.remove(waiter)
            request, outcome = waiter.request, waiter.outcome
            assert waiter.settled
            if isinstance(outcome, Grant):
                assert isinstance(request, Claim)
                self.got(request, outcome)
            elif outcome is None:
                assert isinstance(request, Put)
                self.took(request)
            elif isinstance(outcome, ClaimTimeoutError | FullError):
                assert waiter.deadline is not None
                assert waiter.deadline <= self.now
            elif isinstance(outcome, EndOfStreamError):
                assert isinstance(request, Claim)
                self.ended(request)
            else:
                assert isinstance(outcome, EpochError | SealedError | SampleError)

    def collect(self) -> None:
        for location in self.ledger.take_freed():
            self.freed[location["n"]] += 1

    def check(self) -> None:
        assert not self.ledger.take_settled()
        self.model.check(self.ledger, self.now)
        self.collect()
        assert self.freed == self.model.freed
        assert set(self.freed.values()) <= {1}
        lines: dict[Any, Any] = {}
        for waiter in self.waiting:
            lines.setdefault(self.line(waiter.request), waiter.request)
        for request in lines.values():  # no request waits that could be served
            if isinstance(request, Put):
                assert not self.model.room(self.model.new(request))
            else:
                self.lacks(request)

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
            assert again.claim_again(request, grant.lease, grant.sample_ids, now) == grant
        elif kind == "again":
            spec = again.partitions["p"].spec
            again.delete("p")
            again.register(spec)
        elif kind == "time":
            again.expire(*given)
        elif kind == "gone":
            again.owner_gone(*given)
        else:
            getattr(again, kind)("p", *given)


def contents(ledger: Ledger) -> Any:
    """Everything that is known of each sample, by its id."""
    header, (columns,) = wire.decode(snapshot(ledger), 1 << 30)
    (plain,) = orjson.loads(header)["partitions"]
    rows = columns["resident"].nonzero()[0]
    known = [columns[name][..., rows].T.tolist() for name in ("alive", "produced", "lengths", "states", "leases")]
    return dict(zip(plain["names"], zip(*known, strict=True), strict=True)), sorted(plain["retired"]), plain["gone"]


def storm(chance: random.Random, steps: int) -> None:
    """Many steps, mostly of those that get samples through."""
    machine = LedgerMachine(chance)
    weights = {
        machine.produce: 6,
        machine.put_new: 3,
        machine.put_known: 4,
        machine.write_tags: 1,
        machine.train: 6,
        machine.claim_some: 8,
        machine.settle_claims: 8,
        machine.clear: 2,
        machine.commit: 2,
        machine.rewind: 1,
        machine.time_passes: 2,
        machine.owner_dies: 1,
        machine.give_up: 1,
        machine.start_again: 1,
        machine.host_dies: 1,
        machine.delete: 1,
        machine.seal: 1,
    }
    for step in chance.choices(list(weights), weights=list(weights.values()), k=steps):
        step()
        machine.check()
    machine.replayed()


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
def test_a_ledger_does_what_the_model_does(chance: random.Random) -> None:
    storm(chance, 40)


@pytest.mark.parametrize("seed", range(20))
def test_it_weathers_a_storm(seed: int) -> None:
    storm(random.Random(seed), 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
def test_it_weathers_a_long_storm(seed: int) -> None:
    storm(random.Random(seed), 400)
