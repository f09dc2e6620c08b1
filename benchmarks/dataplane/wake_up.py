"""Waiting claims: how soon they wake up, and what they cost a put."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from benchmarks.dataplane.batches import KINDS
from benchmarks.dataplane.pipe import Child
from benchmarks.dataplane.places import place
from benchmarks.trial_overhead.measure import Line

MOST_WAKE_MS = 20.0
"""From the beginning of a put until the claim that it completes has returned, in 95 of 100 cases."""
MOST_PUT = 2.0
"""A put while claims wait, in times a put without; claims that wait by tag are for information."""
CLAIMS = 8
_PUTS = 20


def measured(quick: bool) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        url = f"mmap://{stack.enter_context(place())}"
        producer = stack.enter_context(Child("benchmarks.dataplane.ours", url))
        consumer = stack.enter_context(Child("benchmarks.dataplane.ours", url))
        yield from wake_ups(producer, consumer, 50 if quick else 300)
        for choosy in (False, True):
            for kind in ("single", "jagged"):
                yield put_while_waiting(producer, consumer, kind, choosy, 3 if quick else 9)


def wake_ups(producer: Child, consumer: Child, times: int) -> Iterator[Line]:
    taken = []
    for _ in range(times):
        consumer.ask("wait")
        begun = producer.call("wake")
        taken.append(1e3 * (consumer.answer() - begun))
        consumer.call("done")
    bare = _ping_pong(times)
    for share, bound in ((50, None), (95, MOST_WAKE_MS)):
        ours, socket_s = (float(np.percentile(values, share)) for values in (taken, bare))
        yield Line(f"wake-up, p{share}", "ms", ours, "bare socket", socket_s, (), bound)


def _ping_pong(times: int) -> list[float]:
    """Milliseconds from here to another process and back by a local socket, after pauses as they are between claims."""
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        here.close()
        while there.recv(64):
            there.sendall(b"pong")
        os._exit(0)
    there.close()
    taken = []
    for _ in range(times):
        time.sleep(0.002)
        begun = time.monotonic()
        here.sendall(b"ping")
        here.recv(64)
        taken.append(1e3 * (time.monotonic() - begun))
    here.close()
    os.waitpid(child, 0)
    return taken


def put_while_waiting(producer: Child, consumer: Child, kind: str, choosy: bool, rounds: int) -> Line:
    """``choosy``: the claims choose by a tag; else there is never enough for them."""
    alone, beside = [], []
    producer.call("puts", kind=kind, times=2)
    for _ in range(rounds):
        alone.append(1e3 * median(producer.call("puts", kind=kind, times=_PUTS)))
        consumer.call("begin_waiting", claims=CLAIMS, kind=kind, choosy=choosy)
        beside.append(1e3 * median(producer.call("puts", kind=kind, times=_PUTS)))
        consumer.call("end_waiting")
    name = f"put while {CLAIMS} claims wait{' by tag' if choosy else ''}, {KINDS[kind].what}"
    ratios = tuple(one / other for one, other in zip(beside, alone, strict=True))
    return Line(name, "ms", median(beside), "nobody waits", median(alone), ratios, None if choosy else MOST_PUT)
