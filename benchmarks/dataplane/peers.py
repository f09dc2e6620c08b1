"""The mmap plane beside TransferQueue and Ray's object store: put, claim of 64, get, in processes of their own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.dataplane.batches import CLAIM, KINDS
from benchmarks.dataplane.pipe import Child
from benchmarks.dataplane.places import place
from benchmarks.trial_overhead.measure import Line, Numbers, middle

QUEUE, STORE, COPY, WRITE = "TransferQueue", "Ray's store", "numpy's copy", "bare write"
LEAST_TIMES = 8.0
"""Jagged puts and all gets, in times TransferQueue's speed. Dense puts have no bound: a bare write can't meet it."""
MOST_CLAIM = 0.3
"""Claims, as a part of TransferQueue's latency."""
LEAST_COPY = 0.15
"""The padded read, of the speed of numpy's copy of the same bytes."""

ROUNDS = {True: 3, False: 7}
"""Of a quick run, and of a whole one."""

Pass = Callable[[str], Numbers]
"""A batch of a kind through a system, from put to gone: seconds by what was done."""


def measured(quick: bool) -> Iterator[Line]:
    """Every kind of batch, in turn through each system."""
    missing = [name for name in ("ray", "tensordict", "transfer_queue") if find_spec(name) is None]
    if missing:
        print(
            f"no peers beside ours: {', '.join(missing)} not installed (pip install 'tunegym[cluster]')",
            file=sys.stderr,
        )
    with contextlib.ExitStack() as stack:
        passes = {"ours": _ours(stack)}
        if not missing:
            passes |= _on_ray(stack)
        for kind in KINDS:
            rounds = _rounds(kind, passes, ROUNDS[quick])
            yield from _lines(kind, rounds)


def _ours(stack: contextlib.ExitStack) -> Pass:
    url = f"mmap://{stack.enter_context(place())}"
    producer = stack.enter_context(Child("benchmarks.dataplane.ours", url))
    consumer = stack.enter_context(Child("benchmarks.dataplane.ours", url))

    def through(kind: str) -> Numbers:
        bare = {"copy": consumer.call("copy", kind=kind), "write": producer.call("write", kind=kind)}
        return bare | _through(kind, producer.call, consumer.call, padded=KINDS[kind].jagged)

    return through


def _on_ray(stack: contextlib.ExitStack) -> dict[str, Pass]:
    peers = stack.enter_context(Child("benchmarks.dataplane.on_ray"))
    peers.call("ready")

    def ask(method: str, **arguments: Any) -> Any:
        return peers.call("queue", method=method, **arguments)

    def store(kind: str) -> Numbers:
        actions = ("put", "get", "padded") if KINDS[kind].jagged else ("put", "get")
        return {what: peers.call("store", method=what, kind=kind) for what in actions}

    return {QUEUE: lambda kind: _through(kind, ask, ask), STORE: store}


def _through(kind: str, produce: Callable[..., Any], consume: Callable[..., Any], *, padded: bool = False) -> Numbers:
    """Put; claim it all in parts; read the first part, and all of it, and perhaps that padded; let it go."""
    rows = KINDS[kind].rows
    part = min(rows, CLAIM)
    put_s = produce("put", kind=kind)
    claims = [consume("claim", kind=kind, count=part) for _ in range(rows // part)]
    first_s = consume("get", kind=kind, first=True)
    found = {"put": put_s, "claim": median(claims), "get of 64": first_s, "get": consume("get", kind=kind)}
    if padded:
        found["padded"] = consume("padded", kind=kind)
    consume("done")
    return found


def _rounds(kind: str, passes: dict[str, Pass], rounds: int) -> dict[str, list[Numbers]]:
    """The best of each round, the systems in turn: machines are busy. What the first batches take is not counted."""
    found: dict[str, list[Numbers]] = {name: [] for name in passes}
    for through in passes.values():
        for _ in range(2):
            through(kind)
    for _ in range(rounds):
        for name, through in passes.items():
            taken = [through(kind) for _ in range(KINDS[kind].repeats)]
            found[name].append({what: min(one[what] for one in taken) for what in taken[0]})
    return found


def _lines(kind: str, rounds: dict[str, list[Numbers]]) -> Iterator[Line]:
    what, batch = KINDS[kind].what, KINDS[kind].rows > 1
    ours = rounds["ours"]

    def line(action: str, peer: str, bound: float | None, key: str = "", *, faster: bool = True) -> Line:
        """``faster``: how many times as fast; else which part of the time."""
        theirs = rounds.get(peer, ours)
        key, name = key or action, f"{action}, {what}"
        both = list(zip(ours, theirs, strict=True))
        ratios = [their[key] / our[action] if faster else our[action] / their[key] for our, their in both]
        return Line(
            name, "ms", 1e3 * middle(ours, action), peer, 1e3 * middle(theirs, key), tuple(ratios), bound, faster
        )

    least = LEAST_TIMES if batch else None
    if QUEUE in rounds:
        yield line("put", QUEUE, least if KINDS[kind].jagged else None)
        yield line("get", QUEUE, least)
        if batch:
            yield line("get of 64", QUEUE, None)
        yield line("claim", QUEUE, MOST_CLAIM if batch else None, faster=False)
        yield line("put", STORE, None)
        yield line("get", STORE, None)
    if batch:
        yield line("put", WRITE, None, "write")
    if kind == "jagged":
        if QUEUE in rounds:
            yield line("padded", QUEUE, None, "get")
            yield line("padded", STORE, None)
        yield line("padded", COPY, LEAST_COPY, "copy")
