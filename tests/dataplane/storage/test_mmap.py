"""Segments: written once, mapped by others, unlinked when nobody wants them, whoever dies meanwhile."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tunegym.dataplane.encoding import encode
from tunegym.dataplane.errors import ClosedError, StorageError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.storage import files, freeing, reading, writing
from tunegym.dataplane.storage.base import BlockGoneError, Location
from tunegym.dataplane.storage.live import LiveSegments
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.testing.dataplane import until

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
def live(folder: Path) -> LiveSegments:
    return LiveSegments(folder)


def put(storage: MmapStorage, live: LiveSegments, value: int, nbytes: int = MB) -> Location:
    location, _ = storage.write("p", {"a": encode(np.full(nbytes, value, dtype=np.uint8))})
    live.keep(location)
    storage.settle(location)
    return location


def value(storage: MmapStorage, location: Location) -> int:
    found = Rows([storage.read(location, "a", range(1000))]).dense()
    assert (found == found[0]).all()
    return int(found[0])


def taken(folder: Path) -> int:
    """What the folder takes on its disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


# space ------------------------------------------------------------------------------------------------


def test_puts_share_a_segment(storage: MmapStorage, live: LiveSegments) -> None:
    locations = [put(storage, live, at, 1000) for at in range(20)]
    assert len({location["segment"] for location in locations}) == 1
    assert all(location["at"] % 64 == 0 for location in locations)
    assert [value(storage, location) for location in locations] == list(range(20))


def test_space_comes_back_while_producing(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    """A consumer that keeps up: at any time there are a few segments, though 60 MB went through."""
    most = 0
    reader = MmapStorage(folder)
    for number in range(60):
        location = put(storage, live, number % 250)
        assert value(reader, location) == number % 250
        live.free([location])
        most = max(most, len(list(folder.iterdir())))
    assert most <= 3
    storage.close()
    live.sweep()
    assert list(folder.iterdir()) == []
    reader.close()


def test_one_live_block_keeps_its_segment(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    locations = [put(storage, live, at) for at in range(20)]
    storage.close()
    live.free(locations[1:])
    reader = MmapStorage(folder)
    assert value(reader, locations[0]) == 0
    assert [path.name for path in folder.iterdir()] == [locations[0]["segment"]]
    live.free(locations)
    assert list(folder.iterdir()) == []
    reader.close()


def test_a_finished_segment_takes_what_it_holds(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    put(storage, live, 1, 1000)
    storage.close()
    assert taken(folder) <= 8192


def test_an_open_segment_stays(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    """All of its blocks are dead, and still the producer may add to it."""
    live.free([put(storage, live, 1)])
    live.sweep()
    location = put(storage, live, 2)
    assert value(storage, location) == 2


def test_a_put_on_its_way_is_safe(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    """Written and not yet known to the ledger, while other puts fill the segment and die."""
    waiting, _ = storage.write("p", {"a": encode(np.full(MB, 7, dtype=np.uint8))})
    others = [put(storage, live, at) for at in range(20)]
    live.free(others)
    live.sweep()
    live.keep(waiting)
    storage.settle(waiting)
    storage.settle(waiting)
    assert value(storage, waiting) == 7
    live.free([waiting])
    live.sweep()
    assert not (folder / waiting["segment"]).exists()


def test_a_refused_put_keeps_nothing(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    location, _ = storage.write("p", {"a": encode(np.zeros(5 * MB, dtype=np.uint8))})
    storage.free([location])
    storage.close()
    live.sweep()
    assert list(folder.iterdir()) == []


def test_larger_puts_get_larger_segments(storage: MmapStorage, live: LiveSegments) -> None:
    locations = [put(storage, live, at, size) for at, size in enumerate([1000, 6 * MB, 1000, 40 * MB, 1000])]
    assert [value(storage, location) for location in locations] == list(range(5))


def test_held_views_and_the_space_of_all_others(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    locations = [put(storage, live, at) for at in range(20)]
    views = [Rows([storage.read(one, "a", range(MB))]).dense() for one in locations[::7]]
    storage.close()
    live.free(locations)
    assert taken(folder) == 0
    assert [int(view[-1]) for view in views] == [0, 7, 14]


def test_maps_of_unlinked_segments_are_let_go(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = MmapStorage(folder)
    locations = [put(storage, live, at, 5 * MB) for at in range(4)]
    assert [value(reader, one) for one in locations] == [0, 1, 2, 3]
    storage.close()
    live.free(locations)
    assert _maps_of(folder)
    reader.trim()
    until(lambda: not _maps_of(folder), "the maps are gone")
    monkeypatch.setattr(reading, "MOST_MAPS", 2)
    other = MmapStorage(folder)
    more = [put(other, live, at, 70 * MB) for at in range(4)]
    assert [value(reader, one) for one in more] == [0, 1, 2, 3]
    assert len({line.split()[-1] for line in _maps_of(folder)}) <= 2
    other.close()
    reader.close()


def test_a_view_outlives_the_map_that_it_was_read_from(
    storage: MmapStorage, live: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    location = put(storage, live, 7, 9 * MB)
    held = storage.read(location, "a", [0]).column.values
    storage._writer.close()
    live.free([location])
    storage.trim()
    freeing.wait(30.0)
    assert (held == 7).all()


def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is given back is in a thread of its own."""
    monkeypatch.setattr(freeing, "LARGE", 1)
    monkeypatch.setattr(freeing, "_SPARE", 0)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Maps that are let go of wait for this."""
    in_threads(monkeypatch)
    gate, fade = threading.Event(), reading._Map.fade

    def late(self: reading._Map) -> None:
        assert gate.wait(30)
        fade(self)

    monkeypatch.setattr(reading._Map, "fade", late)
    yield gate
    gate.set()
    freeing.wait(30.0)


def unlinked(storage: MmapStorage, live: LiveSegments, folder: Path, count: int) -> None:
    """So many segments that were read and are gone."""
    for at in range(count):
        producer = MmapStorage(folder)
        location = put(producer, live, at)
        assert value(storage, location) == at
        producer.close()
        live.free([location])


def test_who_needs_a_descriptor_waits_for_maps_that_are_just_let_go_of(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch, held_up: threading.Event
) -> None:
    counted(monkeypatch, most=4)
    unlinked(storage, live, folder, 4)
    location = put(storage, live, 9)
    threading.Timer(0.2, held_up.set).start()
    assert value(storage, location) == 9


def test_a_fork_has_no_maps_that_are_just_let_go_of(
    storage: MmapStorage, live: LiveSegments, folder: Path, held_up: threading.Event
) -> None:
    unlinked(storage, live, folder, 3)
    storage.trim()
    assert len(_maps_of(folder)) == 3
    child = os.fork()
    if not child:
        os._exit(len(_maps_of(folder)))
    assert ended_well(child)
    held_up.set()
    until(lambda: not _maps_of(folder), "the maps are gone")
    assert reading._fading == []


@pytest.mark.parametrize("large", [False, True])
def test_pages_that_can_not_be_let_go_of_one_by_one(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """As those of a process that has locked its memory."""
    if large:
        in_threads(monkeypatch)
    monkeypatch.setattr(reading.mmap, "MADV_DONTNEED", 12345)
    unlinked(storage, live, folder, 2)
    storage.trim()
    freeing.wait(30.0)
    assert _maps_of(folder) == []


def _maps_of(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


# other processes --------------------------------------------------------------------------------------

PRODUCER = """
import sys
from pathlib import Path
import numpy as np, orjson
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.storage.mmap import MmapStorage

storage = MmapStorage(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    rows = [np.full(1000 + at, number) for at in range(50)]
    location, _ = storage.write("p", {"a": encode(rows), "o": encode([{"n": number}] * 50)})
    sys.stdout.buffer.write(orjson.dumps(location) + b"\\n")
    sys.stdout.flush()
    if sys.stdin.readline() != "go on\\n":
        break
    storage.settle(location)
"""


def producer(folder: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRODUCER, str(folder), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return orjson.loads(process.stdout.readline())


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_from_another_process(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    process = producer(folder, 20)
    locations = []
    for number in range(20):
        locations.append(hear(process))
        live.keep(locations[-1])
        go_on(process)
        rows = Rows([storage.read(locations[-1], "a", range(50))])
        assert rows.lengths == list(range(1000, 1050))
        assert {int(row[0]) for row in rows} == {number}
        assert storage.read(locations[-1], "o", [49]).column.object_rows([49]) == [{"n": number}]
    end(process)
    live.free(locations)
    live.sweep()
    assert list(folder.iterdir()) == []


def test_a_producer_that_is_killed(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    """What the ledger took stays; what it had not heard of goes, and a put that comes too late is refused."""
    process = producer(folder, 20)
    kept = hear(process)
    live.keep(kept)
    go_on(process)
    hear(process)  # written, and never told
    other = producer(folder, 20)
    late = hear(other)
    live.sweep()
    assert len(list(folder.glob("*.segment"))) == 2
    for one in (process, other):
        end(one)
    live.sweep()
    with pytest.raises(BlockGoneError, match="gone"):
        live.keep(late)
    assert [path.name for path in folder.iterdir()] == [kept["segment"]]
    assert len(Rows([storage.read(kept, "a", range(50))]).to_list()) == 50
    live.free([kept])
    assert list(folder.iterdir()) == []


def test_killed_in_the_middle_of_a_write(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    code = PRODUCER.replace(
        "for number",
        """
import os, signal
from tunegym.dataplane.storage import writing
whole = os.pwritev
def half(descriptor, pieces, at):
    if at > 10_000:
        whole(descriptor, pieces[: len(pieces) // 2], at)
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(descriptor, pieces, at)
os.pwritev = half
for number""",
        1,
    )
    command = [sys.executable, "-c", code, str(folder), "20"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    kept = hear(process)
    live.keep(kept)
    go_on(process)
    assert process.wait() == -signal.SIGKILL
    assert [int(row[0]) for row in Rows([storage.read(kept, "a", range(50))])] == [0] * 50
    with pytest.raises(StorageError):
        storage.read({**kept, "at": kept["at"] + kept["nbytes"] + 64}, "a", [0])
    live.free([kept])
    assert list(folder.iterdir()) == []
    end(process)


def test_a_new_host(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    locations = [put(storage, live, at) for at in range(20)]
    dead = {locations[0]["segment"], locations[-1]["segment"]}
    waiting, _ = storage.write("p", {"a": encode(np.zeros(1000, dtype=np.uint8))})
    again = LiveSegments(folder)
    kept = [one for one in locations if one["segment"] not in dead]
    missing = {**locations[0], "segment": "gone-1.segment"}
    assert again.recover([*kept, missing]) == ["gone-1.segment"]
    names = {path.name for path in folder.iterdir()}
    assert locations[0]["segment"] not in names
    assert waiting["segment"] in names  # its producer lives
    again.keep(waiting)
    assert [value(storage, one) for one in kept] == [locations.index(one) for one in kept]


def test_a_child_of_a_producer(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    """A forked child writes to segments of its own, and doesn't keep its parent's."""
    first = put(storage, live, 1)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        own, _ = storage.write("p", {"a": encode(np.full(MB, 2, dtype=np.uint8))})
        os.write(theirs, orjson.dumps(own))
        signal.pause()
    own = orjson.loads(os.read(ours, 10_000))
    live.keep(own)
    assert own["segment"] != first["segment"]
    assert (value(storage, first), value(storage, own)) == (1, 2)
    storage.close()
    live.free([first])
    assert not (folder / first["segment"]).exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert value(MmapStorage(folder), own) == 2


# what goes wrong --------------------------------------------------------------------------------------


def test_only_for_its_owner(storage: MmapStorage, live: LiveSegments, folder: Path) -> None:
    put(storage, live, 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.storage.mmap import MmapStorage

limit = 4 << 20
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
storage = MmapStorage(Path(sys.argv[1]))
location, _ = storage.write("p", {"a": encode(np.ones(1000))})
try:
    storage.write("p", {"a": encode(np.ones(1 << 20))})
except StorageError as error:
    print(error)
more, _ = storage.write("p", {"a": encode(np.full(1000, 2.0))})
print([Rows([storage.read(one, "a", range(1000))]).dense().sum() for one in (location, more)])
"""


def test_a_file_at_its_limit(folder: Path) -> None:
    told = subprocess.check_output([sys.executable, "-c", LIMITED, str(folder)], text=True)
    assert "can't be written: File too large" in told
    assert "hint: make room" in told
    assert told.splitlines()[-1].replace("np.float64", "") in ("[1000.0, 2000.0]", "[(1000.0), (2000.0)]")


@pytest.mark.parametrize("partial", [0, 1000])
def test_a_full_disk(
    storage: MmapStorage, live: LiveSegments, monkeypatch: pytest.MonkeyPatch, folder: Path, partial: int
) -> None:
    before = put(storage, live, 1)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "pwritev", (lambda *rest: partial) if partial else full)
        patched.setattr(writing.os, "pwrite", full)
        patched.setattr(writing.os, "posix_fallocate", full)
        for _ in range(3):
            with pytest.raises(StorageError, match="No space left") as error:
                put(storage, live, 2)
            assert "make room" in (error.value.hint or "")
        with pytest.raises(StorageError, match="No space left"):
            put(storage, live, 2, 20 * MB)
    after = put(storage, live, 3)
    assert after["at"] == before["at"] + writing.aligned(before["nbytes"])
    assert (value(storage, before), value(storage, after)) == (1, 3)
    assert len(list(folder.iterdir())) <= 2


@pytest.fixture
def small_disk(tmp_path: Path, mount: Callable[[Path, str], Path]) -> Path:
    """A file system of 16 MB."""
    return mount(tmp_path / "disk", "size=16m")


def test_a_small_disk_that_is_full(small_disk: Path) -> None:
    """Nearly all of it can be used, nothing that was written is lost, and it goes on when there is room."""
    storage, live = MmapStorage(small_disk / "s"), LiveSegments(small_disk / "s")
    locations: list[Location] = []

    def fill() -> None:
        while True:
            locations.append(put(storage, live, len(locations)))

    with pytest.raises(StorageError, match="No space left"):
        fill()
    assert 12 <= len(locations) <= 15
    assert [value(storage, one) for one in locations] == list(range(len(locations)))
    live.free(locations[:8])
    storage.trim()
    locations = [*locations[8:], *(put(storage, live, at) for at in range(100, 103))]
    assert [value(storage, one) for one in locations][-3:] == [100, 101, 102]
    storage.close()


def test_a_segment_that_is_taken_for_a_dead_ones(
    storage: MmapStorage, live: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host sweeps in between its making and its lock."""
    lock = files.fcntl.flock
    swept = []

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(files.fcntl, "flock", lock)
        live.sweep()
        swept.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(files.fcntl, "flock", late)
    location = put(storage, live, 5)
    assert swept
    assert value(storage, location) == 5


def test_a_write_that_is_interrupted(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "pwritev", interrupted)
        with pytest.raises(KeyboardInterrupt):
            put(storage, live, 1)
    put(storage, live, 2, 5 * MB)
    live.sweep()
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"something else", "is no segment"),
        (16, b"\x07\0\0\0", "has format 7"),
        (64, b"something else", "is damaged at 64"),
        (100, b"[[[[", "is damaged at 64"),
    ],
)
def test_a_segment_that_was_spoilt(
    storage: MmapStorage, live: LiveSegments, folder: Path, at: int, content: bytes, message: str
) -> None:
    location = put(storage, live, 1)
    with (folder / location["segment"]).open("r+b") as file:
        file.seek(at)
        file.write(content)
    with pytest.raises(StorageError, match=message) as error:
        storage.read(location, "a", [0])
    assert error.value.hint


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("size", [0, 10, 64, 100, MB // 2])
def test_a_segment_that_was_cut(
    storage: MmapStorage, live: LiveSegments, folder: Path, size: int, mapped: bool
) -> None:
    first, second = put(storage, live, 1, 10), put(storage, live, 2)
    if mapped:
        assert value_of_ten(storage, first) == 1
    os.truncate(folder / first["segment"], size)
    with pytest.raises(StorageError, match="cut short"):
        storage.read(second, "a", [0])


def value_of_ten(storage: MmapStorage, location: Location) -> int:
    return int(Rows([storage.read(location, "a", range(10))]).dense()[0])


def test_a_producer_cuts_a_segment_while_it_is_mapped(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = put(storage, live, 7)
    path = folder / location["segment"]

    def check_head(found: bytes, of: Path) -> None:
        del found, of
        os.truncate(path, location["at"] + location["nbytes"])

    monkeypatch.setattr(reading, "check_head", check_head)
    assert value(storage, location) == 7


def test_names_that_lead_elsewhere(storage: MmapStorage) -> None:
    for name in ("../x.segment", "x"):
        with pytest.raises(StorageError, match="is no segment"):
            storage.read({"segment": name, "at": 64, "nbytes": 100}, "a", [0])


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't be used"):
        MmapStorage(tmp_path / "file")


def test_closed(storage: MmapStorage, live: LiveSegments) -> None:
    location = put(storage, live, 1)
    storage.close()
    with pytest.raises(ClosedError):
        storage.read(location, "a", [0])
    with pytest.raises(ClosedError):
        put(storage, live, 1)
    storage.settle(location)
    storage.trim()


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_can_close_what_a_thread_was_reading(storage: MmapStorage, live: LiveSegments) -> None:
    """That thread is not there, and the lock that it held is."""
    location = put(storage, live, 3)
    assert value(storage, location) == 3
    with storage._reader._guard:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            right = value(storage, location) == 3
            storage.close()
            os._exit(not right)
    assert ended_well(child)
    assert value(storage, location) == 3


def test_a_segment_that_is_just_made_is_not_a_forks(
    storage: MmapStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock would last as long as the child."""
    real, well = files.head, []

    def forking() -> bytes:
        child = os.fork()
        if not child:
            os._exit(holds(folder))
        well.append(ended_well(child))
        return real()

    monkeypatch.setattr(files, "head", forking)
    storage.write("p", {"a": encode(np.zeros(10, dtype=np.uint8))})
    assert well == [True]


def holds(folder: Path) -> bool:
    """Whether this process has an open file of the folder."""
    held = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return any(name.startswith(str(folder)) for name in held)


def test_a_segment_that_is_just_closed_is_not_a_forks(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages would be kept as long as the child; and what has its descriptor meanwhile must stay open."""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(files, "later", lambda nbytes, place, free: waiting.append(free))
    for at in range(12):
        live.free([put(storage, live, at)])
    assert waiting
    freeing.wait(30.0)  # what the host has unlinked here is closed
    child = os.fork()
    if not child:
        os._exit(holds(folder))
    assert ended_well(child)
    segment = next(one for one in files._segments if one._give_back in waiting)
    closed = segment.descriptor
    with open(os.devnull, "rb") as other:
        os.dup2(other.fileno(), closed)
        child = os.fork()
        if not child:
            os._exit(os.path.realpath(f"/proc/self/fd/{closed}") != os.devnull)
        assert ended_well(child)
    for free in waiting:
        free()
    storage.close()
    live.sweep()
    assert (taken(folder), holds(folder)) == (0, False)


def test_what_is_large_is_given_back_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And at once if it is small, somebody may miss it, many are at it already, or there are no more threads."""
    by: list[str] = []
    gate = threading.Event()

    def free() -> None:
        by.append(threading.current_thread().name)
        assert threading.current_thread() is threading.main_thread() or gate.wait(30)

    own = threading.current_thread().name
    freeing.later(freeing.LARGE - 1, tmp_path, free)
    with monkeypatch.context() as scarce:
        scarce.setattr(freeing, "_SPARE", 1 << 60)
        freeing.later(freeing.LARGE, tmp_path, free)
    freeing.later(freeing.LARGE, tmp_path / "gone", free)
    assert by == [own] * 3
    by.clear()
    monkeypatch.setattr(freeing, "_SPARE", 0)
    for _ in range(freeing._MOST + 1):
        freeing.later(freeing.LARGE, tmp_path, free)
    until(lambda: len(by) == freeing._MOST + 1, "all are at it")
    assert sorted(by) == sorted([*[freeing._NAME] * freeing._MOST, own])
    freeing.wait(0.0)
    assert len(freeing._threads()) == freeing._MOST
    gate.set()
    freeing.wait(30.0)
    assert freeing._threads() == []

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    freeing.later(freeing.LARGE, tmp_path, free)
    assert by[-1] == own


# many producers, and strange ones ---------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, most: int = 1000) -> list[Path]:
    """Which segments are mapped, as often as they are; no more than ``most`` at a time can be."""
    mapped: list[Path] = []
    at_hand: weakref.WeakSet[reading._Map] = weakref.WeakSet()

    class Counted(reading._Map):
        def __init__(self, path: Path) -> None:
            if len(at_hand) >= most:
                raise OSError(errno.EMFILE, "too many")
            super().__init__(path)
            at_hand.add(self)
            mapped.append(path)

    monkeypatch.setattr(reading, "_Map", Counted)
    return mapped


def test_the_segments_of_many_producers_stay_mapped(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = [MmapStorage(folder) for _ in range(40)]
    locations = [put(producer, live, at, 1000) for at, producer in enumerate(producers)]
    mapped = counted(monkeypatch)
    for _ in range(3):
        assert [value(storage, location) for location in locations] == list(range(40))
    assert len(mapped) == 40
    for producer in producers:
        producer.close()


def test_maps_are_let_go_of_where_too_many_files_are_open(
    storage: MmapStorage, live: LiveSegments, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = [MmapStorage(folder) for _ in range(10)]
    locations = [put(producer, live, at, 1000) for at, producer in enumerate(producers)]
    counted(monkeypatch, most=4)
    assert [value(storage, location) for location in locations] == list(range(10))
    for producer in producers:
        producer.close()


@pytest.mark.parametrize("name", ["../victim.segment", "/victim.segment", "victim", "", "a\0.segment", 3, None])
def test_what_is_no_segment_is_not_touched(live: LiveSegments, folder: Path, name: Any) -> None:
    victim = folder.parent / "victim.segment"
    victim.write_bytes(b"somebody's")
    location = {"segment": str(victim) if name == "/victim.segment" else name, "at": 64, "nbytes": 100}
    with pytest.raises(StorageError, match="is no segment"):
        live.keep(location)
    live.free([location])
    if isinstance(name, str) and name:
        live.recover([location])
        live.free([location])
    assert victim.exists()
