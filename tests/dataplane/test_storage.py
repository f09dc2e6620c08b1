"""Storages: bytes come back exactly (P8, P10). Segments are unlinked when unused, whichever process dies (P16)."""

from __future__ import annotations

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
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import no_space
from tests.dataplane import values
from tests.strategies import same

from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import aligned, encode
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.storage import BlockGoneError, Location, Storage, mmap
from tunegym.dataplane.storage.memory import MemoryStorage
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.usage import SegmentUsage

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


# every storage ----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "mmap"])
def each(request: pytest.FixtureRequest, folder: Path) -> Iterator[Storage]:
    made = MemoryStorage() if request.param == "memory" else MmapStorage(folder)
    yield made
    made.close()
    made.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(values.any_values, min_size=1, max_size=4))
def test_columns_come_back_exactly(each: Storage, written: list[Any]) -> None:
    columns = {f"field {at}": encode(one) for at, one in enumerate(written)}
    location, nbytes = each.write("p", columns)
    each.settle(location)
    assert nbytes >= sum(column.nbytes for column in columns.values())
    read = each.read(orjson.loads(orjson.dumps(location)))
    for (name, column), given_values in zip(columns.items(), written, strict=True):
        assert (read[name].shape_key, read[name].lengths) == (column.shape_key, column.lengths)
        assert column.lengths is None or column.lengths == [len(row) for row in given_values]
        as_ = "torch" if isinstance(given_values[0], torch.Tensor) else "numpy"
        for one in (column, read[name]):
            rows = Rows([(one, list(range(column.rows))[::-1])])
            assert same(rows.to_list(as_), values.rows_of(given_values)[::-1])
        some = read[name].take(range(column.rows)[::2])
        assert (some.shape_key, some.nbytes <= read[name].nbytes) == (column.shape_key, True)
        assert same(Rows([(some, range(some.rows))]).to_list(as_), values.rows_of(given_values)[::2])


def test_written_bytes_never_change(each: Storage) -> None:
    """A producer may use its arrays again, and a reader can't write to its views."""
    array = np.arange(5)
    location, _ = each.write("p", {"a": encode(array), "o": encode([{"x": np.arange(2)}] * 5)})
    array += 1
    read = {name: Rows([(column, range(5))]) for name, column in each.read(location).items()}
    assert read["a"].dense().tolist() == [0, 1, 2, 3, 4]
    for view in (read["a"].dense(), read["o"].to_list()[0]["x"]):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_freed_bytes_are_gone_but_views_stay(each: Storage, folder: Path) -> None:
    array = np.random.default_rng(1).random((64, 1024))
    location, _ = each.write("p", {"a": encode(array)})
    each.settle(location)
    view = Rows([(each.read(location)["a"], range(64))]).dense()
    if isinstance(each, MmapStorage):
        each.close()
        usage, each = SegmentUsage(folder), MmapStorage(folder)
        usage.recover([location])
        usage.free([location])
        usage.sweep()
    each.free([location])
    each.trim()
    with pytest.raises(BlockGoneError):
        each.read(location)
    assert (view == array).all()


# segments ---------------------------------------------------------------------------------------------


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


def test_space_comes_back(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    """With a consumer that keeps up there are few segments, though 40 MB pass. One live block keeps its segment."""
    for number in range(40):
        location = put(storage, usage, number)
        assert value(storage, location) == number
        usage.free([location])
        usage.sweep()
        assert len(names(folder)) <= 3
    locations = [put(storage, usage, at) for at in range(20)]
    storage.close()
    usage.free(locations[1:])
    usage.sweep()
    assert names(folder) == [locations[0]["segment"]]
    usage.free(locations)
    assert names(folder) == []


def test_a_segment_with_room_is_used_again(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    """Also if nothing in it is needed at times. If its producer is idle, it goes, and the next put finds another."""
    segments = []
    for number in range(3):
        location = put(storage, usage, number)
        segments.append(location["segment"])
        usage.free([location])
    assert names(folder) == segments[:1] == segments[1:2] == segments[2:]
    usage.sweep()
    assert names(folder) == []
    assert value(storage, put(storage, usage, 9)) == 9


def test_a_put_on_its_way_keeps_its_segment(storage: MmapStorage, usage: SegmentUsage, folder: Path) -> None:
    """Written and not yet known to the ledger, while other puts fill the segment and are freed."""
    waiting, _ = storage.write("p", {"a": encode(np.full(MB, 7, dtype=np.uint8))})
    usage.free([put(storage, usage, at) for at in range(20)])
    usage.sweep()
    usage.keep(waiting)
    storage.settle(waiting)
    assert value(storage, waiting) == 7
    usage.free([waiting])
    usage.sweep()
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
while True:
    rows = [np.full(1000 + at, at) for at in range(50)]
    location, _ = storage.write("p", {"a": encode(rows), "o": encode([{"n": 0}] * 50)})
    print(orjson.dumps(location).decode(), flush=True)
    sys.stdin.readline()
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
        first.stdin.write("\n")
        first.stdin.flush()
        first.stdout.readline()  # the next block is written, and never told; or the producer died
        usage.sweep()
        assert late["segment"] in names(folder)
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
    usage.sweep()
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


@pytest.mark.parametrize("partial", [0, 1000])
def test_a_full_disk(
    storage: MmapStorage, usage: SegmentUsage, monkeypatch: pytest.MonkeyPatch, folder: Path, partial: int
) -> None:
    before = put(storage, usage, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", (lambda *rest: partial) if partial else no_space)
        patched.setattr(os, "pwrite", no_space)
        for size in (MB, MB, 20 * MB):
            with pytest.raises(StorageError, match="No space left") as error:
                put(storage, usage, 2, size)
            assert "make room" in (error.value.hint or "")
    after = put(storage, usage, 3)
    assert after["at"] == before["at"] + aligned(before["nbytes"])
    assert (value(storage, before), value(storage, after)) == (1, 3)
    assert len(names(folder)) == 1


def test_a_segment_swept_before_it_is_locked(
    storage: MmapStorage, usage: SegmentUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        usage.sweep()
        assert not os.fstat(descriptor).st_nlink
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert value(storage, put(storage, usage, 5)) == 5


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"something else", "is not a segment"),
        (16, b"\x07\0\0\0", "is not a segment"),
        (64, b"something else", "is damaged at 64"),
        (100, b"[[[[", "is damaged at 64"),
        *((size, None, "cut short") for size in (0, 10, 64, 100, MB // 2)),
    ],
)
def test_damaged_and_cut_segments_are_refused(
    storage: MmapStorage, usage: SegmentUsage, folder: Path, at: int, content: bytes | None, message: str, mapped: bool
) -> None:
    first, second = put(storage, usage, 1), put(storage, usage, 2)
    path = folder / first["segment"]
    if mapped and message != "is not a segment":  # the head is read once
        assert value(storage, second) == 2
    with path.open("r+b") as file:
        if content is None:
            file.truncate(at)
        else:
            file.seek(at)
            file.write(content)
    with pytest.raises(StorageError, match=message) as error:
        storage.read(first)
    assert error.value.hint


def test_other_files_are_left_alone(storage: MmapStorage, usage: SegmentUsage, folder: Path, tmp_path: Path) -> None:
    for name in ("../x.segment", "x"):
        for call in (storage.read, usage.keep):
            with pytest.raises(StorageError, match="is not a segment"):
                call({"segment": name, "at": 64, "nbytes": 100})
    (folder / "notes.txt").touch()
    usage.sweep()
    assert names(folder) == ["notes.txt"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't be used"):
        MmapStorage(tmp_path / "file")
