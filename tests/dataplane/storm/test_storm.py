"""P3, P15, P16: every process is killed again and again, and every sample counts once."""

from __future__ import annotations

import multiprocessing
import os
import random
import runpy
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.dataplane.durable import hosts_of, kill_host, without_hosts
from tests.dataplane.storm import roles
from tests.dataplane.storm.roles import PRODUCERS, SCORERS, P, Place

from tunegym.dataplane import connect
from tunegym.testing.dataplane import until

SHARED_MEMORY = Path("/dev/shm")
HOST = "host"
KINDS = ("producer", "score", "train", HOST)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tunegym.dataplane.hosts.client"])  # importing takes as long as some processes live


class Storm:
    """Runs the processes of one plane, starts those again that were killed, and kills them one by one."""

    def __init__(self, place: Place, samples: int, seed: int) -> None:
        self.place = place
        self.each = samples // PRODUCERS
        self.kills: Counter[str] = Counter()
        self.stats: dict[str, Any] = {}
        self._rng = random.Random(seed)
        self._roles: dict[str, tuple[Any, ...]] = {"train": ("train",)}
        self._roles |= {f"producer-{at}": ("produce", at, self.each) for at in range(PRODUCERS)}
        self._roles |= {f"score-{at}": ("score",) for at in range(SCORERS)}
        self._running: dict[str, BaseProcess] = {}

    def run(self, every_s: float, most: float) -> None:
        """Let all samples pass, and kill a process every so often, at most so many times."""
        self.place.own.mkdir()
        self.place.weights.write_bytes(b"0")
        with connect(self.place.url, linger_s=roles.LINGER_S) as plane:
            roles.register(plane)
            try:
                for name in self._roles:
                    self._start(name)
                sealed, due = False, time.monotonic() + every_s
                while self.kills.total() < 2 * len(KINDS) or not (sealed and plane.stats()[P]["resident"] == 0):
                    if self.kills.total() < most and time.monotonic() >= due:
                        due = time.monotonic() + every_s
                        self._strike()
                    self._restart_killed()
                    if not sealed and not any(name.startswith("producer") for name in self._running):
                        plane.seal(P)
                        sealed = True
                    time.sleep(0.02)
                self.stats = plane.stats()[P]
                self.place.stop.touch()
                until(lambda: not self._restart_killed(), "the consumers end")
            finally:
                for process in self._running.values():
                    process.kill()

    def _start(self, name: str) -> None:
        function, *arguments = self._roles[name]
        role = {"ROLE": (function, self.place.plane, self.place.own, *arguments)}
        process = CONTEXT.Process(target=runpy.run_path, args=(roles.__file__, role, "__main__"), daemon=True)
        process.start()
        self._running[name] = process

    def _restart_killed(self) -> bool:
        """Start those again that were killed; whether any process runs."""
        for name, process in list(self._running.items()):
            if process.exitcode is not None:
                del self._running[name]
                assert process.exitcode in (0, -signal.SIGKILL), f"{name} ended with {process.exitcode}"
                if process.exitcode:
                    self._start(name)
        return bool(self._running)

    def _strike(self) -> None:
        """Kill a process: at first one of each kind in turn, twice, then any."""
        names, count = [*self._running, HOST], self.kills.total()
        if count < 2 * len(KINDS):
            names = [name for name in names if name.startswith(KINDS[count % len(KINDS)])] or names
        name = self._rng.choice(names)
        self.kills[next(kind for kind in KINDS if name.startswith(kind))] += 1
        if name != HOST:
            self._running[name].kill()
            return
        for _ in range(1 + (self._rng.random() < 0.3)):  # sometimes also the next host, while it starts
            until(lambda: bool(hosts_of(self.place.plane)), "a client starts the host")
            kill_host(self.place.plane)

    def check(self) -> None:
        """Every sample is in the model once, or was dropped and counted; no process and no byte is left."""
        assert self.kills.keys() >= set(KINDS), self.kills
        ids = {one for producer in range(PRODUCERS) for one in roles.named(producer, 0, self.each)}
        model = Counter(self.place.model())
        assert [one for one, count in model.items() if count > 1] == [], "trained twice"
        assert model.keys() <= ids
        dropped, gone = ids - model.keys(), {"stale": 0, "orphaned": 0, **self.stats["gone"]}
        assert self.stats["produced"] == len(ids)
        assert gone.keys() == {"consumed", "stale", "orphaned"}, gone
        assert gone["consumed"] == len(model), gone
        assert gone["stale"] + gone["orphaned"] == len(dropped), f"{len(dropped)} were dropped: {gone}"
        assert {one for one in ids if roles.is_stuck(one)} <= dropped, "trained on samples that are too old"
        until(lambda: not hosts_of(self.place.plane), "the host ends when its last client is gone")
        with connect(self.place.url, linger_s=0.2) as plane:
            assert plane.stats()[P]["bytes"] == 0, plane.stats()[P]
        until(lambda: not hosts_of(self.place.plane), "the host ends")
        assert list((self.place.plane / "segments").iterdir()) == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
    with tempfile.TemporaryDirectory(prefix="tunegym-storm-", dir=where) as folder, without_hosts(Path(folder)):
        yield Place(Path(folder) / "plane", tmp_path / "own")


@pytest.mark.slow
@pytest.mark.invariant
def test_short_storm(place: Place) -> None:
    storm = Storm(place, samples=12_000, seed=5)
    storm.run(every_s=0.5, most=12)
    storm.check()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_long_storm(place: Place) -> None:
    """200,000 samples, and a kill every second. ``STORM_SEED`` in the environment chooses which."""
    storm = Storm(place, samples=200_000, seed=int(os.environ.get("STORM_SEED", "1")))
    storm.run(every_s=1.0, most=float("inf"))
    storm.check()
