"""A plane of a million samples whose host is killed: how long until a client that connects has its answer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.dataplane.ledger import KINDS, PUT
from benchmarks.dataplane.places import cpu_s, hosts_of, kill_host, place
from benchmarks.trial_overhead.measure import Line
from tunegym.dataplane import DataPlaneClient, connect

MANY = 1_000_000
MOST_S = 5.0
PARTITION, TASK = "rollouts", "train"
_CLAIM = 4096


def measured(quick: bool) -> Iterator[Line]:
    samples = MANY // 10 if quick else MANY
    for kind in KINDS:
        with place() as folder:
            yield from killed(folder, kind, samples)


def killed(folder: Path, kind: str, samples: int) -> Iterator[Line]:
    url = f"mmap://{folder}"
    with connect(url) as plane:
        _fill(plane, kind, samples)
        expected = plane.stats()
        begun = time.monotonic()
        kill_host(folder)
        with connect(url) as other:
            found = other.stats()
            taken = time.monotonic() - begun
            (host,) = hosts_of(folder)
            used = cpu_s(host)
    for key in ("produced", "resident"):
        assert found[PARTITION][key] == expected[PARTITION][key], f"{key} differs"
    assert found[PARTITION]["resident"] == samples
    what = f"recovery of {samples:,}, {kind} ids"
    yield Line(what, "s", taken, "", None, (), MOST_S)
    yield Line(f"{what}, CPU", "s", used, "", None, (), None)


def _fill(plane: DataPlaneClient, kind: str, samples: int) -> None:
    """In puts of 512; some are claimed, and some of those are acked."""
    plane.register_partition(PARTITION, ["value"], [TASK])
    ids = KINDS[kind](0)
    for start in range(0, samples, PUT):
        batch = list(itertools.islice(ids, min(PUT, samples - start)))
        plane.put_samples(PARTITION, batch, {"value": np.arange(len(batch))}, {"weight_version": start // PUT})
    for number in range(4):
        claimed = plane.claim_meta(PARTITION, TASK, ["value"], _CLAIM)
        if number % 2:
            plane.ack(claimed, version=number)
