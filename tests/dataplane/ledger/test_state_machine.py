"""A ledger does what a simple model does, in any order of calls, deaths and restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from tests.dataplane.ledger.ledger_model import LedgerModel

from tunegym.core import wire
from tunegym.dataplane import errors
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import Tag

TASKS, FIELDS, OWNERS = ("train", "judge"), ("x", "y"), ("one", "two", "three")
SHAPES = {"x": ("int64", 1), "y": ("float32", 1)}
WHERES = (
    None,
    None,
    Tag("weight_version") >= 2,
    ~(Tag("weight_version") == 1),
    Tag("weight_version").isin([1, 3]) | (Tag("kind") == "odd"),
)
FIELD_SETS = (("x", "y"), ("x",), ("y",), ())
STEPS = {
    8: ("put_new", "claim_some", "settle_claims"),
    6: ("train",),
    4: ("put_known",),
    2: ("clear", "commit", "rewind", "pass_time", "move"),
    1: ("write_tags", "lose_owner", "give_up", "restart", "replay", "delete", "seal"),
}
"""How often each step is taken: mostly those that get samples through."""
pytestmark = pytest.mark.invariant


class LedgerMachine:
    """Producers, consumers, owners that die, time that passes, checkpoints and rewinds: a method is one step.

    Attributes:
        journal: the calls since the snapshot ``base``.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        capacity, group_size = chance.choice([None, 6, 9]), chance.choice([None, None, 2, 3])
        on_full = "raise" if capacity is not None and chance.random() < 0.3 else "block"
        self.spec = PartitionSpec("p", FIELDS, TASKS, capacity, group_size, on_full, chance.choice([None, None, 1, 3]))
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

    def do(self, name: str, *arguments: Any) -> Any:
        """Call the ledger, and write the call down."""
        result = getattr(self.ledger, name)(*arguments)
        self.journal.append((name, *arguments))
        return result

    def attempt(self, reasons: Mapping[type[Exception], Any], name: str, *arguments: Any, **options: Any) -> Any:
        """Call the ledger. It may refuse for one of the reasons that hold: then return its error; nothing changed."""
        before = snapshot(self.ledger)
        try:
            return getattr(self.ledger, name)(*arguments, **options)
        except errors.DataPlaneError as error:
            refusal = error
        assert reasons[type(refusal)], refusal
        assert snapshot(self.ledger) == before
        return refusal

    def version(self, low: int, high: int) -> int:
        """A version near the latest commits."""
        return max([0, *self.model.committed.values()]) + self.chance.randint(low, high)

    def some(self, known: Sequence[Any], least: int, most: int) -> list[Any]:
        return self.chance.sample(known, min(len(known), self.chance.randint(least, most)))

    # puts ---------------------------------------------------------------------------------------------

    def put(self, names: list[str], fields: Sequence[str], version: int, *, late: bool = False, **more: Any) -> None:
        self.block += 1
        tags = {"weight_version": version}
        tags = (None, tags, [tags] * len(names))[min(version, 2)]
        shapes, epoch, owner = {name: SHAPES[name] for name in fields}, self.model.epoch - late, OWNERS[self.block % 3]
        request = Put("p", names, shapes, {"n": self.block}, 10, tags=tags, epoch=epoch, owner=owner, **more)
        model, new, capacity = self.model, self.model.new(request), self.spec.capacity
        dead = {one for one in names if one in model.used} - {one.name for one in model.alive()}
        behind = any(isinstance(one.request, Put) for one in self.waiting)
        full = behind or not model.room(new)
        reasons = {
            errors.EpochError: late,
            errors.SealedError: model.sealed,
            errors.FullError: full,
            errors.SpecError: capacity is not None and new > capacity,
            errors.SampleError: dead or more.get("group_ids") is not None,
        }
        deadline, wait = self.now + 2.0, self.block % 4 != 0
        waiter = self.attempt(reasons, "put", request, self.now, deadline, wait=wait)
        if isinstance(waiter, errors.FullError):
            assert ("puts wait before" in str(waiter)) == behind
        if isinstance(waiter, errors.DataPlaneError):
            return
        assert not dead
        assert not (late and names)
        if waiter is None:
            assert not full or not new
            self.took(request)
            self.settle()
        else:
            assert full
            assert self.spec.on_full == "block"
            self.waiting.append(waiter)

    def took(self, request: Put) -> None:
        self.journal.append(("put", request, self.now))
        self.model.put(request)
        self.names += [name for name in request.sample_ids if name not in self.names]

    def put_new(self) -> None:
        count, group = self.chance.randint(0, 5), self.chance.randint(0, 3)
        names = [f"s{self.next + at:03d}" for at in range(count)]
        self.next += count
        groups = [f"g{(group + at) // 2}-{self.next // 4}" for at in range(count)] if self.grouped else None
        late, fields = self.chance.random() < 0.05, self.chance.choice([*FIELD_SETS, *FIELD_SETS[:1] * 5])
        self.put(names, fields, self.version(0, 2), late=late, group_ids=groups)

    def put_known(self) -> None:
        self.put(self.some(self.names, 0, 4), self.chance.choice(FIELD_SETS), self.chance.randint(0, 3))

    def write_tags(self) -> None:
        names = self.some([one.name for one in self.model.alive()], 1, 4)
        tags = [{"weight_version": self.chance.randint(1, 3)}, {"kind": self.chance.choice(["odd", "even", None])}] * 2
        self.do("write_tags", "p", names, tags[: len(names)], self.now)
        for name, own in zip(names, tags, strict=False):
            self.model.samples[name].tags.update(own)
        self.settle()

    # claims -------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Claim some samples, and ack them."""
        before, task = len(self.claims), self.chance.choice(TASKS)
        most = self.chance.randint(1, 4) * (self.spec.group_size or 1)
        self.claim(Claim("p", task, ("x",), most, 1, self.chance.choice(OWNERS), 5.0), wait=False)
        if own := self.claims[before:]:
            self.settle_these("ack", task, own, self.chance.choice([self.version(1, 3), self.version(1, 3), None]))

    def claim_some(self) -> None:
        pick, most = self.chance.choice, self.chance.randint(1, 6)
        least, lease_s = min(most, self.chance.randint(1, 6)), pick([1.0, 5.0, None])
        request = Claim("p", pick(TASKS), pick(FIELD_SETS), most, least, pick(OWNERS), lease_s, pick(WHERES))
        self.claim(request, wait=self.chance.random() < 0.5)

    def claim(self, request: Claim, *, wait: bool) -> None:
        behind = request.where is None and any(line(one.request) == line(request) for one in self.waiting)
        try:
            found = self.ledger.claim(request, self.now, self.now + 3.0, wait=wait)
        except errors.SpecError:
            return
        except errors.ClaimTimeoutError as late:
            assert not wait
            message = str(late)
            assert self.grouped or f"{len(self.ready(request))} of at least" in message
            if not behind:
                self.assert_not_ready(request)
        except errors.EndOfStreamError:
            self.assert_ended(request)
        else:
            if isinstance(found, Waiter):
                assert wait
                self.waiting.append(found)
            else:
                assert not behind
                self.got(request, found)

    def ready(self, request: Claim) -> list[str]:
        return self.model.ready(request.task_name, request.fields, request.where)

    def assert_not_ready(self, request: Claim) -> None:
        ready = self.ready(request)
        if not self.grouped:
            assert len(ready) < request.min_batch
            assert not (self.model.sealed and self.over(request))
            return
        sizes = Counter(self.model.samples[name].group for name in ready).values()
        least, most = request.min_batch, request.batch_size
        for size, count in Counter(sizes).items():
            assert min(count, most // size) * size < least
        # groups of different sizes are not packed as well as they could be
        assert sum(sizes) < least or max(sizes) > most - least + 1

    def over(self, request: Claim) -> bool:
        """Whether no more samples can become ready."""
        free, leased = (self.model.alive(request.task_name, state) for state in ("free", "leased"))
        return not leased and all(set(request.fields) <= set(one.blocks) for one in free)

    def assert_ended(self, request: Claim) -> None:
        assert self.model.sealed
        assert self.grouped or (self.over(request) and not self.ready(request))

    def got(self, request: Claim, grant: Grant) -> None:
        self.journal.append(("claim_again", request, grant.lease, grant.sample_ids, self.now))
        self.model.claim(request, grant, self.now + (float("inf") if request.lease_s is None else request.lease_s))
        self.claims += [(request.task_name, name, grant.lease) for name in grant.sample_ids]

    def settle_claims(self) -> None:
        """Settle claims of one task, some of which may be lost; mostly samples of one claim."""
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
        name, base = chance.choice(["ack", "ack", "release", "extend"]), self.model.committed.get(task, 0)
        version = chance.choice([None, base, base + 1, base + 2, base + 3]) if name == "ack" else None
        self.settle_these(name, task, own, version)

    def settle_these(self, name: str, task: str, claims: list[tuple[str, str, int]], version: int | None) -> None:
        ids, leases = [one[1] for one in claims], [one[2] for one in claims]
        held = all(self.model.held(*one) for one in claims)
        covered = version is not None and version <= self.model.committed.get(task, version - 1)
        more = {"ack": (version,), "release": (), "extend": (5.0,)}[name]
        arguments = ("p", task, ids, leases, *more, self.now)
        reasons = {errors.LeaseLostError: not held, errors.SpecError: covered}
        if self.attempt(reasons, name, *arguments) is None:
            assert held
            assert not covered
            self.journal.append((name, *arguments))
            getattr(self.model, name)(task, ids, *((self.now + 5.0,) if name == "extend" else more))
            self.settle()

    def give_up(self) -> None:
        for waiter in self.some(self.waiting, 1, 1):
            self.waiting.remove(waiter)
            self.ledger.give_up(waiter, self.now)
            self.settle()

    # the rest -----------------------------------------------------------------------------------------

    def clear(self) -> None:
        names, reason = self.some(self.names, 0, 5), self.chance.choice([None, "stale"])
        names += names[:1]
        assert self.do("clear", "p", names, reason, self.now) == self.model.clear(names, reason or "cleared")
        self.settle()

    def commit(self) -> None:
        task, version = self.chance.choice(TASKS), self.version(0, 1)
        assert self.do("commit", "p", task, version, self.now) == self.model.commit(task, version)
        self.settle()

    def rewind(self) -> None:
        task, version = self.chance.choice(TASKS), max(0, self.version(-1, 2))
        reasons = {errors.SpecError: version < self.model.committed.get(task, 0)}
        counts = self.attempt(reasons, "rewind", "p", task, version, self.now)
        if not isinstance(counts, errors.SpecError):
            self.journal.append(("rewind", "p", task, version, self.now))
            assert counts == self.model.rewind(task, version)
            self.settle()

    def seal(self) -> None:
        if self.chance.random() < 0.1:
            self.do("seal", "p", self.now)
            self.model.sealed = True
            self.settle()

    def pass_time(self) -> None:
        self.now += self.chance.choice([0.5, 1.0, 3.0])
        self.do("expire", self.now)
        self.model.expire(self.now)
        self.settle()

    def lose_owner(self) -> None:
        owner = self.chance.choice(OWNERS)
        assert self.do("owner_gone", owner, self.now) == self.model.owner_gone(owner)
        self.waiting = [one for one in self.waiting if one.request.owner != owner]
        self.settle()

    def move(self) -> None:
        """Copy the first samples that need a block to another."""
        samples = self.ledger.partitions["p"].samples
        for number in self.some(list(samples.blocks.known), 1, 1):
            self.block += 1
            count, old = self.chance.randint(1, 3), samples.blocks.known[number].location["n"]
            names = samples.names[samples.live(number)[0][:count]].tolist()
            self.do("move", "p", number, count, {"n": self.block}, 10)
            self.model.move(names, old, self.block)

    def delete(self) -> None:
        """Delete the partition and register it again: nothing is left, and claims are lost."""
        if self.chance.random() > 0.05:
            return
        self.do("delete", "p")
        settled = self.ledger.take_settled()
        assert settled == sorted(self.waiting, key=lambda one: one.number)
        assert all(isinstance(one.outcome, errors.UnknownPartitionError) for one in settled)
        self.waiting = []
        self.do("register", self.spec)
        fresh = LedgerModel(self.spec)
        fresh.freed = self.model.freed + Counter(self.model.blocks)
        self.model, self.names = fresh, []

    def restart(self) -> None:
        """Continue from a snapshot."""
        self.collect()
        self.base, self.journal = snapshot(self.ledger), []
        self.ledger = restore(self.base)
        assert snapshot(self.ledger) == self.base
        self.ask_again()

    def replay(self) -> None:
        """Continue from the last snapshot and the journal since."""
        self.collect()
        self.ledger = self.replayed()
        self.ledger.take_freed()
        self.ask_again()

    def replayed(self) -> Ledger:
        again = restore(self.base)
        for name, *arguments in self.journal:
            getattr(again, name)(*arguments)
            assert not again.take_settled()
        self.model.check(again, self.now)
        for task, name, lease in self.claims:
            if self.model.held(task, name, lease):
                again.extend("p", task, [name], [lease], 0.0, self.now)
        assert contents(again) == contents(self.ledger)
        return again

    def ask_again(self) -> None:
        """Repeat the requests that wait, as clients do."""
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            ask: Any = self.ledger.put if isinstance(waiter.request, Put) else self.ledger.claim
            again = ask(waiter.request, self.now, waiter.deadline, wait=True)
            assert isinstance(again, Waiter)
            self.waiting.append(again)

    # checks -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Check the outcomes of the requests that wait no longer."""
        for waiter in self.ledger.take_settled():
            request, outcome = waiter.request, waiter.outcome
            if outcome is None or isinstance(outcome, Grant):  # it did not overtake
                assert next(one for one in self.waiting if line(one.request) == line(request)) is waiter
            self.waiting.remove(waiter)
            assert waiter.settled
            if isinstance(outcome, Grant):
                self.got(request, outcome)
            elif outcome is None:
                self.took(request)
            elif isinstance(outcome, errors.EndOfStreamError):
                self.assert_ended(request)
            elif isinstance(outcome, errors.ClaimTimeoutError | errors.FullError):
                assert waiter.deadline is not None
                assert waiter.deadline <= self.now
            else:
                assert isinstance(outcome, errors.EpochError | errors.SealedError | errors.SampleError)

    def collect(self) -> None:
        for location in self.ledger.take_freed():
            self.freed[location["n"]] += 1

    def check(self) -> None:
        assert not self.ledger.take_settled()
        self.model.check(self.ledger, self.now)
        self.collect()
        assert self.freed == self.model.freed
        assert set(self.freed.values()) <= {1}
        first: dict[Any, Any] = {}
        for waiter in self.waiting:
            first.setdefault(line(waiter.request), waiter.request)
        for request in first.values():  # no request waits that could be served
            if isinstance(request, Put):
                assert not self.model.room(self.model.new(request))
            else:
                self.assert_not_ready(request)


def line(request: Any) -> Any:
    """Requests with an equal value wait for each other."""
    if isinstance(request, Put):
        return "put"
    return id(request) if request.where is not None else (request.task_name, frozenset(request.fields))


def contents(ledger: Ledger) -> Any:
    """The state of each sample, by its id."""
    header, (columns,) = wire.decode(snapshot(ledger), 1 << 30)
    (plain,) = orjson.loads(header)["partitions"]
    rows = columns["resident"].nonzero()[0]
    known = [columns[name][..., rows].T.tolist() for name in ("alive", "produced", "lengths", "states", "leases")]
    return dict(zip(plain["names"], zip(*known, strict=True), strict=True)), sorted(plain["retired"]), plain["gone"]


def run(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    machine = LedgerMachine(chance)
    weighted = [step for weight, names in STEPS.items() for step in names * weight]
    for step in chance.choices(weighted, k=steps):
        getattr(machine, step)()
        machine.check()
    machine.replayed()


@pytest.mark.parametrize("seed", range(40))
def test_ledger_follows_the_model(seed: int) -> None:
    run(seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
def test_ledger_follows_the_model_for_long(seed: int) -> None:
    run(seed, 400)
