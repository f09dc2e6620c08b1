"""CPU and memory of the ledger alone, per sample.

A life is all that a ledger does for a sample: its part of a put of 512 (three fields, a length and a tag), of a claim
of 64 and its ack into a version for one task, and of a commit that lets it go. The ids are made before; the clock is
the process's CPU time. The ledgers of a comparison take turns, and the best of many rounds counts: machines are busy.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.trial_overhead.measure import Line
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.model import PartitionSpec
from tunegym.dataplane.predicate import Tag

PUT, CLAIM = 512, 64
FIELDS = ("tokens", "logprobs", "mask")
SHAPES = {"tokens": ("<i8", 1), "logprobs": ("<f4", 1), "mask": ("|b1", 1)}
ROUND = 8 * PUT
FEW, MANY = 1_000, 1_000_000
UNWANTED = 300_000
LIFE_US, SAMPLE_BYTES = 4.0, 500.0
SPEC = PartitionSpec("rollouts", FIELDS, ("train",))
WANTED = Claim("rollouts", "train", ("tokens", "logprobs"), CLAIM, CLAIM, "trainer", 60.0)


def sequential(producer: int) -> Iterator[str]:
    """Ids of 20 letters that are numbered."""
    return (f"rollout-{producer}-{number:010d}" for number in itertools.count())


def arbitrary(producer: int) -> Iterator[str]:
    """Ids of 20 letters that have nothing in common."""
    chance = random.Random(producer)
    return (f"{chance.getrandbits(80):020x}" for _ in itertools.count())


class Flow:
    """A ledger with so many samples in it, and what goes through it."""

    def __init__(self, ids: Callable[[int], Iterator[str]], producers: int, resident: int) -> None:
        self.ledger = Ledger()
        self.ledger.register(SPEC)
        self._ids = [ids(number) for number in range(producers)]
        self._turn = itertools.cycle(range(producers))
        self._lengths, self._tags = list(range(PUT)), [{"weight_version": 1}] * PUT
        self._version = 0
        for _ in range(-(-resident // PUT)):
            self.put(self.batch())

    def batch(self) -> list[str]:
        """The next ids."""
        return list(itertools.islice(self._ids[next(self._turn)], PUT))

    def put(self, batch: list[str]) -> None:
        """Samples of these ids."""
        location = {"segment": 1, "offset": 0}
        put = Put("rollouts", batch, SHAPES, location, 1 << 20, self._lengths, self._tags)
        self.ledger.put(put, time.monotonic())

    def round(self) -> float:
        """So many lives: microseconds for each."""
        batches = [self.batch() for _ in range(ROUND // PUT)]
        self._version += 1
        begun = time.process_time()
        for batch in batches:
            self.put(batch)
        for _ in range(ROUND // CLAIM):
            grant = self.ledger.claim(WANTED, time.monotonic())
            assert isinstance(grant, Grant)
            leases = [grant.lease] * CLAIM
            self.ledger.ack("rollouts", "train", grant.sample_ids, leases, self._version, time.monotonic())
        self.ledger.commit("rollouts", "train", self._version, time.monotonic())
        self.ledger.take_freed()
        return (time.process_time() - begun) / ROUND * 1e6


def compared(flows: list[Flow], rounds: int) -> list[float]:
    """The best round of each, in turns."""
    best = [float("inf")] * len(flows)
    for _ in range(rounds):
        for at, flow in enumerate(flows):
            best[at] = min(best[at], flow.round())
    return best


def memory(kind: str) -> float:
    """Bytes for each of a million samples, in a process of its own."""
    code = f"from benchmarks.dataplane.ledger import grown; print(grown({kind!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def grown(kind: str) -> float:
    """How much larger this process is with a million samples than with few, for each."""
    Flow(KINDS[kind], 1, FEW)
    gc.collect()
    before = _resident_bytes()
    flow = Flow(KINDS[kind], 1, MANY)
    gc.collect()
    after = _resident_bytes()
    del flow
    return (after - before) / MANY


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def snapshots(kind: str, rounds: int) -> tuple[float, float]:
    """Seconds of CPU to write a million samples down, and to have them back."""
    flow = Flow(KINDS[kind], 1, MANY)
    best = [float("inf")] * 2
    for _ in range(rounds):
        times = [time.process_time()]
        data = snapshot(flow.ledger)
        times.append(time.process_time())
        restore(data)
        times.append(time.process_time())
        best = [min(old, after - before) for old, (before, after) in zip(best, itertools.pairwise(times), strict=True)]
    return best[0], best[1]


def beside_waiting(rounds: int) -> float:
    """How much longer a put takes while 8 claims wait, each by a predicate that nothing of what is there fulfils."""
    flows = [Flow(sequential, 1, UNWANTED) for _ in range(2)]
    for number in range(8):
        wanted = WANTED._replace(min_batch=1, where=Tag("weight_version") == 10 + number)
        flows[1].ledger.claim(wanted, time.monotonic(), wait=True)
    best = [float("inf")] * 2
    for _ in range(rounds):
        for at, flow in enumerate(flows):
            batch = flow.batch()
            begun = time.process_time()
            flow.put(batch)
            best[at] = min(best[at], time.process_time() - begun)
    return best[1] / best[0]


KINDS: dict[str, Callable[[int], Iterator[str]]] = {"sequential": sequential, "arbitrary": arbitrary}


def measured(quick: bool) -> Iterator[Line]:
    """Every bound in turn."""
    rounds = 15 if quick else 60
    for kind in KINDS:
        cases = [(1, FEW), (8, FEW), (1, MANY), (8, MANY)]
        costs = compared([Flow(KINDS[kind], *case) for case in cases], rounds)
        for (producers, resident), cost in zip(cases, costs, strict=True):
            yield _line(f"a life, {kind}, {producers} producers, {resident:,} resident", cost, "us", LIFE_US)
        yield _line(f"memory, {kind}", memory(kind), "bytes", SAMPLE_BYTES)
        write_s, read_s = snapshots(kind, 2 if quick else 5)
        yield _line(f"snapshot of a million, {kind}", write_s, "s", None)
        yield _line(f"the million back, {kind}", read_s, "s", None)
    yield _line(f"a put while 8 predicates wait, {UNWANTED:,} unwanted", beside_waiting(4 * rounds), "times", None)


def _line(name: str, value: float, unit: str, bound: float | None) -> Line:
    return Line(name, unit, value, "", None, (), bound)
