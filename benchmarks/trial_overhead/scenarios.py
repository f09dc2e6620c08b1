"""Runs of the real path: a scenario file in a temporary folder, ``tunegym.run``, results beside it."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import tunegym
from benchmarks.trial_overhead.measure import cpu_s
from tunegym.app.run import Watch
from tunegym.tuning.model.trial import OpenTrial, Trial

MEMORY = "/dev/shm"
PREFIX = "tunegym-bench-"
ROOMS = {False: "TUNEGYM_BENCH_DISK", True: "TUNEGYM_BENCH_MEMORY"}
"""Where the folders are, on the disk and in memory; every measurement is a process of its own."""

NO_OP = """
def measure(algorithm, size, rate):
    return {"score": rate}
"""


class Stamps(Watch):
    """Stamps CPU time when a trial opens and when the last one closes, wall time at the first open and the last close.

    From one open to the next is one whole trial: what is left of it after its close (settling the cache)
    belongs to it, and the choice of the next action costs the same whatever that one turns out to be.
    """

    def __init__(self) -> None:
        self.opened = array("d")
        self.cached = bytearray()
        self.first_open = 0.0
        self.last_close = 0.0
        self.closed = 0.0

    def trial_opened(self, trial: OpenTrial) -> None:
        """One number, no more."""
        if not self.opened:
            self.first_open = time.monotonic()
        self.opened.append(time.process_time())

    def trial_closed(self, trial: Trial) -> None:
        """Hit or miss."""
        self.cached.append(trial.cached_from is not None)
        self.last_close = time.monotonic()
        self.closed = time.process_time()

    def costs(self) -> Iterator[tuple[float, bool]]:
        """CPU seconds and hit or miss of every trial but the last, in their order (at one slot)."""
        for index in range(len(self.opened) - 1):
            yield self.opened[index + 1] - self.opened[index], bool(self.cached[index])


@dataclass(frozen=True)
class Ran:
    """A finished run: its whole CPU time, from reading the file to the last report, and its stamps.

    Attributes:
        start_s: CPU time of this process until the first trial opens.
        answer_s: the same from the last trial's close on: the answer and the reports.
    """

    cpu_s: float
    stamps: Stamps
    start_s: float
    answer_s: float


@contextmanager
def rooms() -> Iterator[None]:
    """Room for the folders of all measurements, on the disk and in memory; removed at the very end.

    Not after each of them: making files is slower for minutes after many were deleted.
    """
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix=PREFIX) as disk, TemporaryDirectory(prefix=PREFIX, dir=memory) as shared:
        os.environ.update({ROOMS[False]: disk, ROOMS[True]: shared})
        yield


def folder(in_memory: bool = False) -> Path:
    """A fresh folder, on the disk or, where there is such a thing, on a file system in memory."""
    return Path(mkdtemp(dir=os.environ[ROOMS[in_memory]]))


def run(text: str, callable_source: str = "", in_memory: bool = False) -> Ran:
    """Run a scenario from its text."""
    place = folder(in_memory)
    (place / "bench_callable.py").write_text(callable_source, encoding="utf-8")
    (place / "scenario.toml").write_text(text, encoding="utf-8")
    run_it = tunegym.run  # the import happens here
    stamps = Stamps()
    before, began = cpu_s(), time.process_time()
    code = run_it(place / "scenario.toml", output=place / "results", watch=stamps)
    spent, ended = cpu_s() - before, time.process_time()
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")
    return Ran(spent, stamps, start_s=stamps.opened[0] - began, answer_s=ended - stamps.closed)
