"""Segments: written once, mapped by readers, and unlinked when unused, whichever process dies meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import aligned, encode
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.storage import BlockGoneError, Location, mmap
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.segments import SegmentUsage

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def storage(folder: Path) -> Iterator[MmapStorage]:
    made = MmapStorage(folder)
    yield made
    made.close()


@pytest.fixture
def usage(folder: Path) -> SegmentUsage:
    return SegmentUsage(folder)


def put(storage: MmapStorage, usage: SegmentUsage, value: int, nbytes: int = MB) -> Location:
    location, _ = storage.write("p", {"a": encode(np.full(nbytes, value, dtype=np.uint8))})
    usage.keep(location)
    storage.settle(location)
    return location


def value(storage: MmapStorage, location: Location) -> int:
    found = storage.read(location)["a"].values
    assert (found == found[0]).all()
    return int(found[0])


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# space ------------------------------------------------------------------------------------------------


def test_space_comes_back(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    """With a consumer that keeps up there are few segments, though 40 MB pass."""
    reader = MmapStorage(folder)
    for number in range(40):
        location = put(storage, usage, number)
        assert value(reader, location) == number
        usage.free([location])
        usage.sweep()
        assert len(names(folder)) <= 3
    storage.close()
    usage.sweep()
    assert names(folder) == []
    reader.close()


def test_one_live_block_keeps_its_segment(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    locations = [put(storage, usage, at) for at in range(20)]
    storage.close()
    usage.free(locations[1:])
    assert names(folder) == [locations[0]["segment"]]
    usage.free(locations)
    assert names(folder) == []


def test_a_put_on_its_way_keeps_its_segment(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    """Written and not yet known to the ledger, while other puts fill the segment and are freed."""
    waiting, _ = storage.write("p", {"a": encode(np.full(MB, 7, dtype=np.uint8))})
    usage.free([put(storage, usage, at) for at in range(20)])
    usage.sweep()
    usage.keep(waiting)
    storage.settle(waiting)
    assert value(storage, waiting) == 7
    usage.free([waiting])
    assert waiting["segment"] not in names(folder)


def test_retired_and_surplus_segments_are_unmapped(
    storage: MmapStorage, usage: SegmentUsage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[-1] for line in lines if str(folder) in line}

    monkeypatch.setattr(mmap, "LARGEST", 8 * MB)  # a segment for each put
    monkeypatch.setattr(mmap, "MOST_MAPS", 2)
    reader = MmapStorage(folder)
    locations = [put(storage, usage, at, 5 * MB) for at in range(4)]
    assert [value(reader, one) for one in locations] == [0, 1, 2, 3]
    storage.close()
    assert len(mapped()) == 2
    usage.free(locations)
    reader.trim()
    assert not mapped()


# processes --------------------------------------------------------------------------------------------

PRODUCER = """
import os, signal, sys
from pathlib import Path
import numpy as np, orjson
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.storage.mmap import MmapStorage

whole = os.pwritev
def half(descriptor, pieces, at):
    if at > 10_000 and sys.argv[2] == "half":
        whole(descriptor, pieces[: len(pieces) // 2], at)
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(descriptor, pieces, at)
os.pwritev = half

storage = MmapStorage(Path(sys.argv[1]))
for number in range(20):
    rows = [np.full(1000 + at, number) for at in range(50)]
    location, _ = storage.write("p", {"a": encode(rows), "o": encode([{"n": number}] * 50)})
    print(orjson.dumps(location).decode(), flush=True)
    if sys.stdin.readline() != "go on\\n":
        break
    storage.settle(location)
"""


@pytest.mark.slow
@pytest.mark.invariant
@pytest.mark.parametrize("how", ["whole", "half"])
def test_a_killed_producer(storage: MmapStorage, usage: SegmentUsage, folder: Path, how: str) -> None:
    """Known blocks stay, unknown and half-written ones go, and a put that arrives too late is refused."""
    command = [sys.executable, "-c", PRODUCER, str(folder)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, how], **pipes) as first, subprocess.Popen([*command, "whole"], **pipes) as second:
        kept, late = orjson.loads(first.stdout.readline()), orjson.loads(second.stdout.readline())
        usage.keep(kept)
        first.stdin.write("go on\n")
        first.stdin.flush()
        first.stdout.readline()  # the next block is written, and never told; or the producer died
        usage.sweep()
        assert len(names(folder)) == 2
        first.kill()
        second.kill()
    assert first.returncode == -signal.SIGKILL
    usage.sweep()
    with pytest.raises(BlockGoneError, match="gone"):
        usage.keep(late)
    assert names(folder) == [kept["segment"]]
    assert Rows([(storage.read(kept)["a"], range(50))]).lengths == list(range(1000, 1050))
    assert storage.read(kept)["o"].object_rows([49]) == [{"n": 0}]
    with pytest.raises(StorageError):
        storage.read({**kept, "at": kept["at"] + kept["nbytes"] + 64})
    usage.free([kept])
    assert names(folder) == []


@pytest.mark.invariant
def test_a_new_host(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    locations = [put(storage, usage, at) for at in range(20)]
    dead = {locations[0]["segment"], locations[-1]["segment"]}
    waiting, _ = storage.write("p", {"a": encode(np.zeros(1000, dtype=np.uint8))})
    again = SegmentUsage(folder)
    kept = [one for one in locations if one["segment"] not in dead]
    missing = {**locations[0], "segment": "gone-1.segment"}
    assert again.recover([*kept, missing]) == ["gone-1.segment"]
    assert locations[0]["segment"] not in names(folder)
    assert waiting["segment"] in names(folder), "its producer is alive"
    again.keep(waiting)
    assert [value(storage, one) for one in kept] == [locations.index(one) for one in kept]


# failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [0, 1000])
def test_a_full_disk(
    storage: MmapStorage, usage: SegmentUsage, monkeypatch: pytest.MonkeyPatch, folder: Path, partial: int
) -> None:
    before = put(storage, usage, 1)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", (lambda *rest: partial) if partial else full)
        patched.setattr(os, "pwrite", full)
        for size in (MB, MB, 20 * MB):
            with pytest.raises(StorageError, match="No space left") as error:
                put(storage, usage, 2, size)
            assert "make room" in (error.value.hint or "")
    after = put(storage, usage, 3)
    assert after["at"] == before["at"] + aligned(before["nbytes"])
    assert (value(storage, before), value(storage, after)) == (1, 3)
    assert len(names(folder)) <= 2


def test_a_segment_swept_before_it_is_locked(
    storage: MmapStorage, usage: SegmentUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    swept: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        usage.sweep()
        swept.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    location = put(storage, usage, 5)
    assert swept
    assert value(storage, location) == 5


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"something else", "is not a segment"),
        (16, b"\x07\0\0\0", "has format 7"),
        (64, b"something else", "is damaged at 64"),
        (100, b"[[[[", "is damaged at 64"),
    ],
)
def test_a_damaged_segment(
    storage: MmapStorage, usage: SegmentUsage, folder: Path, at: int, content: bytes, message: str
) -> None:
    location = put(storage, usage, 1)
    with (folder / location["segment"]).open("r+b") as file:
        file.seek(at)
        file.write(content)
    with pytest.raises(StorageError, match=message) as error:
        storage.read(location)
    assert error.value.hint


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("size", [0, 10, 64, 100, MB // 2])
def test_a_cut_segment(storage: MmapStorage, usage: SegmentUsage, folder: Path, size: int, mapped: bool) -> None:
    first, second = put(storage, usage, 1, 10), put(storage, usage, 2)
    if mapped:
        assert value(storage, first) == 1
    os.truncate(folder / first["segment"], size)
    with pytest.raises(StorageError, match="cut short"):
        storage.read(second)


def test_other_files_are_left_alone(storage: MmapStorage, usage: SegmentUsage, folder: Path, tmp_path: Path) -> None:
    for name in ("../x.segment", "x"):
        with pytest.raises(StorageError, match="is not a segment"):
            storage.read({"segment": name, "at": 64, "nbytes": 100})
        with pytest.raises(StorageError, match="is not a segment"):
            usage.keep({"segment": name, "at": 64})
    (folder / "notes.txt").touch()
    usage.sweep()
    assert names(folder) == ["notes.txt"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't be used"):
        MmapStorage(tmp_path / "file")
