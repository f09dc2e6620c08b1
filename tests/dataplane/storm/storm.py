"""A storm over the processes of one plane: who runs, who is killed, what it all takes, and what must come of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.dataplane.durable import hosts_of
from tests.dataplane.storm.nursery import Nursery
from tests.dataplane.storm.parts import (
    CAPACITY,
    LENGTHS,
    LINGER_S,
    PRODUCERS,
    REQUIRED,
    SHORTEST,
    P,
    Place,
    is_stuck,
    named,
    register,
)
from tests.dataplane.storm.trainer import RANKS, checkpointed

from tunegym.core.processes import process_start_time
from tunegym.dataplane import DataPlaneClient, connect
from tunegym.dataplane.hosts.journal import SMALLEST
from tunegym.dataplane.storage import mmap
from tunegym.testing.dataplane import until

HOST = "host"
KINDS = ("producer", "score", "train", HOST)
WRITERS = PRODUCERS + RANKS
ID_BYTES = 160
"""Of an id that is remembered after its sample is gone."""
SAMPLE_BYTES = 8 * (SHORTEST + LENGTHS)


@dataclass
class Weather:
    """What was seen while the storm lasted.

    Attributes:
        kills: by kind.
        disk: bytes that the plane's folder takes.
        memory: bytes that the host's process has for itself.
    """

    seed: int
    samples: int
    kills: Counter[str] = field(default_factory=Counter)
    disk: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        room = {
            what: [one >> 20 for one in (*thirds(seen), max(seen))]
            for what, seen in (("disk", self.disk), ("host", self.memory))
            if seen
        }
        return (
            f"seed {self.seed}: {self.samples:,} samples in {self.seconds:.0f} s, kills {dict(self.kills)},"
            f" gone {self.stats.get('gone')}, epoch {self.stats.get('epoch')};"
            f" MB in the first third, in the last, at most: {room}"
        )


def thirds(seen: list[int]) -> tuple[int, int]:
    """The middle of the first and of the last third."""
    part = max(1, len(seen) // 3)
    return int(statistics.median(seen[:part])), int(statistics.median(seen[-part:]))


class Storm:
    """Runs the processes of one plane, starts again those that died, and kills them one by one."""

    def __init__(self, place: Place, samples: int, seed: int) -> None:
        self.place = place
        self.weather = Weather(seed, samples)
        self.each = samples // PRODUCERS
        self._rng = random.Random(seed)
        self._nursery = Nursery()
        self._roles = {f"producer-{at}": ["producer", str(at), str(self.each)] for at in range(PRODUCERS)}
        for task in REQUIRED:
            self._roles |= {f"{task}-{rank}": ["consumer", task, str(rank)] for rank in range(RANKS)}

    def run(self, every_s: float, most: int | None = None) -> None:
        """Let all samples pass; every so often somebody is killed, until the end, or so many times."""
        began = time.monotonic()
        self.place.own.mkdir()
        self.place.weights.write_bytes(b"0")
        with contextlib.closing(self._nursery), connect(self.place.url, linger_s=LINGER_S) as plane:
            register(plane)
            for name in self._roles:
                self._start(name)
            kills, sealed, due = 0, False, began + every_s
            while kills < (most or 0) or not (sealed and self._is_over(plane)):
                if (most is None or kills < most) and time.monotonic() >= due:
                    due = time.monotonic() + every_s
                    self._strike(kills)
                    kills += 1
                self._mend()
                self._look()
                if not sealed and not any(name.startswith("producer") for name in self._nursery.running):
                    plane.seal(P)
                    sealed = True
                time.sleep(0.02)
            self.weather.seconds = time.monotonic() - began
            self.weather.stats = plane.stats()[P]
            self.place.stop.touch()
            until(lambda: not self._mend(), "the consumers end")

    def _is_over(self, plane: DataPlaneClient) -> bool:
        return plane.stats()[P]["resident"] == 0

    # processes ----------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        role, *rest = self._roles[name]
        self._nursery.start(name, self._log(name), [role, str(self.place.plane), str(self.place.own), *rest])

    def _log(self, name: str) -> Path:
        return self.place.own / f"{name}.log"

    def _mend(self) -> bool:
        """Start again who was killed; whether anybody runs. Nobody may end in any other way than by a kill, or well."""
        for name, code in self._nursery.ended():
            if code == -signal.SIGKILL:
                self._start(name)
            else:
                assert code == 0, f"{name} ended with {code}: {self._log(name).read_text()[-4000:]}"
        return bool(self._nursery.running)

    def _strike(self, kill: int) -> None:
        """Kill one process: at first one of every kind in turn, twice, then anybody."""
        names = [*self._nursery.running, HOST]
        if kill < 2 * len(KINDS):
            kind = KINDS[kill % len(KINDS)]
            names = [name for name in names if name.startswith(kind)] or names
        name = self._rng.choice(names)
        self.weather.kills[next(kind for kind in KINDS if name.startswith(kind))] += 1
        if name != HOST:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._nursery.running[name], signal.SIGKILL)
            return
        self._strike_host()
        if self._rng.random() < 0.3:  # and the next one, while it starts
            self._strike_host()
            self.weather.kills["host while it starts"] += 1

    def _strike_host(self) -> None:
        until(lambda: bool(hosts_of(self.place.plane)), "somebody starts the host")
        hosts = {pid: process_start_time(pid) for pid in hosts_of(self.place.plane)}
        for pid in hosts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: all(process_start_time(pid) != start for pid, start in hosts.items()), "the host is dead")

    # what it takes ------------------------------------------------------------------------------------

    def _look(self) -> None:
        self.weather.disk.append(taken(self.place.plane))
        with contextlib.suppress(OSError):
            self.weather.memory += [own_memory(pid) for pid in hosts_of(self.place.plane)]


def taken(folder: Path) -> int:
    """What a folder takes on its disk."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(Path(place) / name).st_blocks * 512
    return total


def own_memory(pid: int) -> int:
    """What a process has for itself, without what it maps of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


# what must come of it ---------------------------------------------------------------------------------


def check_kills(storm: Storm) -> None:
    """Nobody was spared."""
    assert storm.weather.kills.keys() >= set(KINDS), storm.weather.kills


def check_models(storm: Storm) -> None:
    """Each id is in each task's model exactly once, but for those that were dropped; and those are counted."""
    ids = {one for producer in range(PRODUCERS) for one in named(producer, 0, storm.each)}
    models = {task: checkpointed(storm.place.model(task)) for task in REQUIRED}
    for task, model in models.items():
        twice = [one for one, count in model.items() if count > 1]
        assert not twice, f"{len(twice)} are twice in the model of {task}: {twice[:5]}"
        assert model.keys() <= ids, f"{task} has what nobody produced: {list(model.keys() - ids)[:5]}"
    stats, trained = storm.weather.stats, models["train"].keys()
    assert stats["produced"] == len(ids), f"{stats['produced']} of {len(ids)} were produced"
    gone = {"stale": 0, "orphaned": 0, **stats["gone"]}
    assert gone.keys() == {"consumed", "stale", "orphaned"}, gone
    assert gone["consumed"] == len(trained), f"{len(trained)} are in the model of train: {gone}"
    dropped = ids - trained
    assert gone["stale"] + gone["orphaned"] == len(dropped), f"{len(dropped)} were dropped: {gone}"
    stuck = {one for one in ids if is_stuck(one)}
    assert stuck <= dropped, "what was hopelessly old was trained on"
    assert gone["stale"] >= len(stuck) - gone["orphaned"], f"{len(stuck)} were hopelessly old: {gone}"
    lost = ids - models["score"].keys() - dropped
    assert not lost, f"{len(lost)} were lost by score: {list(lost)[:5]}"


def check_room(storm: Storm) -> None:
    """Disk and memory are bounded by the capacity; only the remembered ids grow, up to a million."""
    weather = storm.weather
    # Of each writer a segment that is filled, the next one, and what one that died left; the capacity, in segments that
    # are half used up; and the journal, its snapshot, and the next one.
    most = 2 * CAPACITY * SAMPLE_BYTES + 4 * WRITERS * mmap.SMALLEST + 4 * SMALLEST
    assert max(weather.disk) < most, f"{max(weather.disk):,} bytes on the disk, and {most:,} are enough"
    for what, seen, ids in (("disk", weather.disk, 0), ("memory", weather.memory, weather.samples * ID_BYTES)):
        first, last = thirds(seen)
        assert last < 1.3 * first + (8 << 20) + ids, f"{what}: {first:,} bytes at first, {last:,} in the end"


def check_leftovers(storm: Storm) -> None:
    """No process is left, nor any sample's bytes."""
    until(lambda: not hosts_of(storm.place.plane), "the host ends when its last client is gone")
    with connect(storm.place.url, linger_s=0.2) as plane:
        assert plane.stats()[P]["bytes"] == 0, plane.stats()[P]
    until(lambda: not hosts_of(storm.place.plane), "the host ends")
    left = [path.name for path in (storm.place.plane / "segments").iterdir()]
    assert not left, f"segments of nobody: {left}"
    assert taken(storm.place.plane) < 2 * SMALLEST, f"{taken(storm.place.plane):,} bytes for nothing"
