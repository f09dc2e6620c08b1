"""Everybody dies, again and again, and every sample counts once.

What the processes do is in ``parts``, how a task's model survives its trainer in ``trainer``, who is killed in
``storm``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dataplane.durable import without_hosts
from tests.dataplane.storm.parts import Place
from tests.dataplane.storm.storm import Storm, check_kills, check_leftovers, check_models, check_room

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
    with tempfile.TemporaryDirectory(prefix="tunegym-storm-", dir=where) as folder, without_hosts(Path(folder)):
        yield Place(Path(folder) / "plane", tmp_path / "own")


def blow(storm: Storm, every_s: float, most: int | None = None) -> None:
    """Run it, and say how it was: pytest shows that with what failed."""
    try:
        storm.run(every_s, most)
    finally:
        print(storm.weather)  # noqa: T201 - see above
    check_kills(storm)


@pytest.mark.slow
@pytest.mark.invariant
def test_a_gust(place: Place) -> None:
    """A few thousand samples, and twelve kills."""
    storm = Storm(place, samples=12_000, seed=5)
    blow(storm, every_s=0.5, most=12)
    check_models(storm)
    check_leftovers(storm)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_storm(place: Place) -> None:
    """200,000 samples, and every second one process is killed. ``STORM_SEED`` in the environment chooses which."""
    storm = Storm(place, samples=200_000, seed=int(os.environ.get("STORM_SEED", "1")))
    blow(storm, every_s=1.0)
    check_models(storm)
    check_room(storm)
    check_leftovers(storm)
