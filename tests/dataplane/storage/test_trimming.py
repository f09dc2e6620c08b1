"""Who has read something does not keep its bytes once they are let go of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tunegym.dataplane import BatchMeta, DataPlaneClient, connect
from tunegym.testing.dataplane import until
from tunegym.testing.durable_planes import without_hosts

pytestmark = pytest.mark.slow  # every test starts a host

MB = 1 << 20
COUNT = 20


def cleared(plane: DataPlaneClient, meta: BatchMeta) -> None:
    plane.clear_samples("p", meta.sample_ids)


def committed(plane: DataPlaneClient, meta: BatchMeta) -> None:
    plane.ack(meta, version=1)
    plane.commit("p", "train", 1)


def acked(plane: DataPlaneClient, meta: BatchMeta) -> None:
    plane.commit("p", "other", 1)
    plane.ack(meta)


def maps_of(folder: Path) -> int:
    """Bytes of the folder's files that this process maps."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            start, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


@pytest.mark.parametrize("let_go", [cleared, committed, acked])
def test_maps_go_with_the_samples(tmp_path: Path, let_go: Callable[[DataPlaneClient, BatchMeta], None]) -> None:
    tasks = ["train", "other"] if let_go is acked else ["train"]
    with without_hosts(tmp_path), connect(f"mmap://{tmp_path / 'plane'}", linger_s=0.2) as plane:
        plane.register_partition("p", ["x"], tasks)
        names = [f"s{at}" for at in range(COUNT)]
        for name in names:  # more than a segment holds
            plane.put_samples("p", [name], {"x": np.ones((1, MB), dtype=np.uint8)})
        if let_go is acked:
            plane.ack(plane.claim_meta("p", "other", ["x"], COUNT), version=1)
        claimed = plane.claim_meta("p", "train", ["x"], COUNT)
        assert plane.get_data(claimed)["x"].dense().sum() == COUNT * MB
        assert maps_of(tmp_path) >= COUNT * MB
        let_go(plane, claimed)
        # but for the segment that is still being filled; large maps go in a thread of their own
        until(lambda: maps_of(tmp_path) <= 8 * MB, "the maps are gone")


def test_space_is_there_when_it_is_needed(tmp_path: Path, mount: Callable[[Path, str], Path]) -> None:
    """Where little is free, nothing is given back later: each put finds the room that the ack before it made."""
    folder = mount(tmp_path / "disk", "size=80m") / "plane"
    with without_hosts(tmp_path), connect(f"mmap://{folder}", linger_s=0.2) as plane:
        plane.register_partition("p", ["x"], ["train"])
        for at in range(30):
            plane.put_samples("p", [f"s{at}"], {"x": np.full((1, 10 * MB), at, dtype=np.uint8)})
            claimed = plane.claim_meta("p", "train", ["x"], 1)
            assert (plane.get_data(claimed)["x"].dense()[0, ::MB] == at).all()
            plane.ack(claimed)
