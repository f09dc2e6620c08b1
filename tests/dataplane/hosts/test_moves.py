"""Rows are moved out of mostly dead segments: space comes back, views stay (P10), and no death loses a row (P16)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dataplane.durable import kill_host, without_hosts

from tunegym.dataplane import BatchMeta, DataPlaneClient, connect
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.errors import FullError, StorageError
from tunegym.dataplane.hosts.journal import LedgerJournal, ledger_file, make_journal
from tunegym.dataplane.hosts.service import Call, LedgerService
from tunegym.dataplane.storage import usage
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.usage import SegmentUsage
from tunegym.testing.dataplane import PATIENCE_S, until

pytestmark = pytest.mark.invariant  # P10, P16
MB = 1 << 20


def tokens(number: int) -> np.ndarray:
    return np.arange(number, 3 * number)


def log(number: int) -> dict[str, Any]:
    return {"n": number, "state": np.full(number % 5, number), "raw": bytes([number % 256] * 3)}


def on_disk(folder: Path) -> int:
    sizes = []
    for path in (folder / "segments").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sizes.append(512 * path.stat().st_blocks)
    return sum(sizes)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "segments").iterdir()}


# a service, driven step by step -----------------------------------------------------------------------


class Service:
    """The service of a plane in a folder, with a producer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not list(folder.glob("*.journal")):
            make_journal(ledger_file(folder))
        self.segments = SegmentUsage(folder / "segments")
        self.service = LedgerService(LedgerJournal(folder), self.segments)
        self.service.recover()
        self.service.join({"name": "me", "pid": 1, "start": "", "boot": ""})
        self.storage = MmapStorage(folder / "segments")
        self.number = 0

    def call(self, operation: str, **arguments: Any) -> Any:
        self.number += 1
        self.service.call(Call("me", self.number, (), operation, arguments), 0.0)
        ((_, reply),) = self.service.take_replies()
        return reply["value"]

    def put(self, numbers: range) -> None:
        """Two fields, in one block."""
        columns = {"tokens": encode([tokens(one) for one in numbers]), "log": encode([log(one) for one in numbers])}
        shapes = {name: column.shape_key for name, column in columns.items()}
        location, nbytes = self.storage.write("p", columns)
        ids = [str(one) for one in numbers]
        self.call("put", partition_id="p", sample_ids=ids, shapes=shapes, location=location, nbytes=nbytes)
        self.storage.settle(location)

    def rewrite(self, number: int) -> None:
        """One field of one sample, elsewhere."""
        location, nbytes = self.storage.write("p", {"tokens": encode([tokens(number)])})
        shapes = {"tokens": ("int64", 1)}
        self.call("put", partition_id="p", sample_ids=[str(number)], shapes=shapes, location=location, nbytes=nbytes)
        self.storage.settle(location)

    def clear(self, numbers: list[int]) -> None:
        self.call("clear", partition_id="p", sample_ids=[str(one) for one in numbers], reason=None)

    def look(self) -> None:
        """Move all that is to be moved."""
        self.service.sweep()
        while self.service.move():
            self.service.take_replies()
        self.service.segments.sweep()

    def check(self, numbers: list[int]) -> None:
        """Every sample has its rows, in any order."""
        ids = [str(one) for one in numbers]
        found = self.call("locate", partition_id="p", sample_ids=ids, fields=["tokens", "log"])
        blocks = [self.storage.read(location) for location in found["locations"]]
        for name, wanted in (("tokens", tokens), ("log", log)):
            runs = found["fields"][name]
            rows = Rows([(blocks[at][name], range(*run) if len(run) == 2 else run[0]) for at, *run in runs])
            np.testing.assert_equal(rows.to_list(), [wanted(one) for one in numbers])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A plane whose two segments are mostly dead, with one field of a live sample elsewhere."""
    monkeypatch.setattr(usage, "SPARE_BYTES", 0)
    monkeypatch.setattr(usage, "PIECE_ROWS", 3)
    (tmp_path / "plane").mkdir()
    host = Service(tmp_path / "plane")
    host.call("register", spec={"partition_id": "p", "fields": ["tokens", "log"], "tasks": ["train"]})
    for first in range(0, 400, 100):
        host.put(range(first, first + 100))
        host.rewrite(first + 1)
        if first == 100:
            host.storage.close()
            host.storage = MmapStorage(host.folder / "segments")
    host.clear([one for one in range(400) if one % 20 not in (1, 5)])
    return host


LIVE = [one for one in range(400) if one % 20 in (1, 5)]


def test_moved_rows_are_the_same(host: Service) -> None:
    before, old = on_disk(host.folder), names(host.folder)
    host.look()
    assert names(host.folder) == old  # its rows may be consumed before the next look
    host.look()
    host.check(LIVE[::-1])
    assert not names(host.folder) & old
    stats = host.call("stats")["p"]
    assert stats["stored_bytes"] < 1.2 * stats["bytes"]
    assert on_disk(host.folder) < before / 3
    host.clear(LIVE)
    host.service.sweep()
    assert not names(host.folder)


def test_killed_host_loses_no_row_on_the_move(host: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied and not written down; written down and not freed; freed."""
    count, old = 0, names(host.folder)

    def killed_now() -> None:
        nonlocal count
        count += 1
        folder = host.folder.with_name(f"copy-{count}")
        shutil.copytree(host.folder, folder)
        again = Service(folder)
        again.check(LIVE)
        for _ in range(2):
            again.look()
        again.check(LIVE)
        assert not names(folder) & old
        shutil.rmtree(folder)

    free = host.segments.free

    def freed(locations: Any) -> None:
        killed_now()
        free(locations)

    monkeypatch.setattr(host.segments, "free", freed)
    for _ in range(2):
        host.service.sweep()
        while host.service.move():
            killed_now()
            host.service.take_replies()
            killed_now()
    assert count > 10
    host.check(LIVE)


def test_damaged_segment_is_left_alone(host: Service) -> None:
    """Its rows can't be copied; those of others are."""
    (first,), (second,) = (
        host.call("locate", partition_id="p", sample_ids=[one], fields=["log"])["locations"] for one in ("5", "205")
    )
    with (host.folder / "segments" / first["segment"]).open("r+b") as file:
        file.seek(64)
        file.write(b"something else")
    for _ in range(3):
        host.look()
    assert first["segment"] in names(host.folder)
    assert second["segment"] not in names(host.folder)
    host.check([one for one in LIVE if one >= 200])
    with pytest.raises(StorageError):
        host.check([5])


def test_no_room_for_copies(host: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(MmapStorage, "write", full)
        for _ in range(3):
            host.look()
    host.check(LIVE)
    host.look()
    host.check(LIVE)
    assert host.call("stats")["p"]["blocks"] > 8


# the process ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with without_hosts(tmp_path):
        yield tmp_path / "plane"


@pytest.fixture
def join(folder: Path) -> Iterator[Callable[..., DataPlaneClient]]:
    """Connects clients, and closes them in the end."""
    with contextlib.ExitStack() as clients:
        yield lambda how=connect: clients.enter_context(how(f"mmap://{folder}", linger_s=0.2))


def put(plane: DataPlaneClient, first: int, count: int, **more: Any) -> BatchMeta:
    rows = [np.full(2000 + one, one, dtype=np.int64) for one in range(first, first + count)]
    ids = [f"s-{one}" for one in range(first, first + count)]
    return plane.put_samples("p", ids, {"x": rows}, **more)


def check(plane: DataPlaneClient, meta: BatchMeta) -> None:
    for name, row in zip(meta.sample_ids, plane.get_samples(meta, ["x"])["x"].to_list(), strict=True):
        number = int(name[2:])
        assert (len(row), set(row.tolist())) == (2000 + number, {number})


@pytest.mark.slow
def test_space_comes_back_although_hosts_are_killed(folder: Path, join: Callable[..., DataPlaneClient]) -> None:
    """The producer is alive and idle. A view of a segment that is gone stays valid."""
    plane = join()
    plane.register_partition("p", ["x"], ["train"])
    metas = [put(plane, first, 200) for first in range(0, 2000, 200)]
    kept = BatchMeta.concat([meta.subset([0, 150]) for meta in metas])
    view = plane.get_samples(metas[3], ["x"])["x"].to_list()[7]
    before = on_disk(folder)
    assert before > 40 * MB
    plane.clear_samples("p", [one for meta in metas for one in meta.sample_ids if one not in kept.sample_ids])
    for _ in range(4):
        check(plane, kept)
        kill_host(folder)
    until(lambda: plane.stats()["p"]["stored_bytes"] < MB, "the rows are moved")
    until(lambda: on_disk(folder) < MB, "the old segments are unlinked")
    check(plane, kept)
    check(join(), kept)
    assert set(view.tolist()) == {607}
    plane.close()


@pytest.mark.slow
def test_refused_puts_get_the_room_of_dead_rows(join: Callable[..., DataPlaneClient]) -> None:
    plane = join()
    plane.register_partition("p", ["x"], ["train"], on_full="raise", capacity_bytes=8 * MB)
    metas = [put(plane, first, 100) for first in range(0, 400, 100)]
    for meta in metas:
        plane.clear_samples("p", meta.sample_ids[1:])

    def fits() -> bool:
        with contextlib.suppress(FullError):
            return bool(put(plane, 400, 100))
        return False

    assert not fits()
    until(fits, "the rows are moved")


@pytest.mark.slow
@pytest.mark.parametrize("acked", [False, True])
def test_puts_that_wait_for_bytes_get_the_room_of_dead_rows(
    folder: Path, join: Callable[..., DataPlaneClient], acked: bool
) -> None:
    """Of each put one sample stays, and hosts are killed while they move rows. Without moves puts wait for ever."""
    plane = join()
    plane.register_partition("p", ["x"], ["train"], capacity_bytes=8 * MB)
    kept = []
    with ThreadPoolExecutor(1) as threads:
        for first in range(0, 1000, 100):
            waiting = threads.submit(put, plane, first, 100, timeout_s=PATIENCE_S)
            for _ in range(2):
                time.sleep(first / 2000)  # at different moments
                kill_host(folder)
            meta = waiting.result()
            if acked:
                plane.ack(plane.claim_meta("p", "train", ["x"], 100).slice(1))
            else:
                plane.clear_samples("p", meta.sample_ids[1:])
            kept.append(meta.subset([0]))
            assert plane.stats()["p"]["stored_bytes"] <= 8 * MB
    check(plane, BatchMeta.concat(kept))
