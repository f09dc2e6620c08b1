"""P16: the journal of a ledger, and the service that replays it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import no_space

from tunegym.core.processes import boot_id
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.hosts import journal as module
from tunegym.dataplane.hosts import service
from tunegym.dataplane.hosts.client import _introduction as introduction
from tunegym.dataplane.hosts.journal import RECORD, LedgerJournal, ledger_file, make_journal
from tunegym.dataplane.hosts.service import Call, LedgerService
from tunegym.dataplane.storage.usage import SegmentUsage

pytestmark = pytest.mark.invariant  # P16


def opened(folder: Path) -> tuple[LedgerJournal, list[Any]]:
    """A journal, and its contents: the snapshot, if any, and the changes."""
    found: list[Any] = []
    if not list(folder.glob("*.journal")):
        make_journal(ledger_file(folder))
    journal = LedgerJournal(folder)
    journal.recover(found.append, found.append)
    return journal, found


def write(journal: LedgerJournal, *changes: Any) -> None:
    for change in changes:
        journal.add(change)
    journal.write()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def begun(folder: Path, rotated: bool) -> tuple[LedgerJournal, list[Any]]:
    """A journal with one change, before which it may have been rotated, and its contents."""
    journal, _ = opened(folder)
    if rotated:
        journal.rotate(b"before")
    write(journal, 1)
    return journal, [*[b"before"] * rotated, 1]


def test_snapshots_and_changes_come_back(tmp_path: Path) -> None:
    journal, found = begun(tmp_path, rotated=False)
    assert opened(tmp_path)[1] == found
    for number in (3, 4):
        journal.rotate(b"snapshot %d" % number)
        write(journal, number)
    assert opened(tmp_path)[1] == [b"snapshot 4", 4]
    assert names(tmp_path) == {"ledger-00000002.snapshot", "ledger-00000002.journal"}
    (tmp_path / "ledger-00000002.snapshot").unlink()
    with pytest.raises(StorageError, match=r"ledger-00000002.snapshot is missing"):
        opened(tmp_path)
    assert "ledger-00000002.journal" in names(tmp_path)


def test_journal_cut_at_any_byte_keeps_every_whole_change(tmp_path: Path) -> None:
    """It is cut by a killed writer, in the room that was allocated; a shorter file is cut by something else."""
    journal, _ = opened(tmp_path)
    place, ends = tmp_path / "ledger-00000000.journal", []
    begin = len(place.read_bytes().rstrip(b"\0"))
    for change in ("one", "two", "three"):
        write(journal, change)
        ends.append(len(place.read_bytes().rstrip(b"\0")))
    content = place.read_bytes()
    for size in range(ends[-1]):
        if len(content[:size].rstrip(b"\0")) not in (begin, *ends):  # at the end of a change nothing is missing
            place.write_bytes(content[:size])
            with pytest.raises(StorageError, match=rf"{place} is cut short"):
                opened(tmp_path)
    for size in range(begin, ends[-1] + 1):
        place.write_bytes(content[:size].ljust(len(content), b"\0"))
        again, found = opened(tmp_path)
        assert found == ["one", "two", "three"][: sum(end <= size for end in ends)]
        write(again, "more")
        assert opened(tmp_path)[1] == [*found, "more"]


def test_large_change_cut_by_a_killed_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for all of it is allocated before it is written."""
    journal, _ = begun(tmp_path, rotated=False)
    real = os.pwrite
    monkeypatch.setattr(
        module.os, "pwrite", lambda file, data, at: real(file, bytes(data)[: module.RESERVE], at) and 1 / 0
    )
    with pytest.raises(ZeroDivisionError):  # as if killed
        write(journal, "x" * 8 * module.RESERVE)
    monkeypatch.undo()
    assert opened(tmp_path)[1] == [1]


def test_damaged_head_is_refused(tmp_path: Path) -> None:
    """A damaged length must not look like a torn last change: the rest would be lost."""
    journal, _ = opened(tmp_path)
    place = tmp_path / "ledger-00000000.journal"
    begin = len(place.read_bytes().rstrip(b"\0"))
    write(journal, "one", "two")
    content = place.read_bytes()
    for at in range(begin, begin + RECORD.size):
        place.write_bytes(content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :])
        with pytest.raises(StorageError, match=rf"damaged at byte {begin}"):
            opened(tmp_path)


def test_full_disk_keeps_room_for_changes_that_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    real = os.pwrite

    def within(file: int, data: Any, at: int) -> int:
        return real(file, data, at) if at + len(data) <= os.fstat(file).st_size else no_space()

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "posix_fallocate", no_space)
        patched.setattr(module.os, "pwrite", within)
        journal.check_room()
        change = "x" * (module.RESERVE // 4)
        for _ in range(5):
            write(journal, change)
        with pytest.raises(StorageError, match="No space left") as error:
            journal.check_room()
        assert "clearing" in (error.value.hint or "")
        write(journal, change)
        with pytest.raises(StorageError, match="No space left"):
            write(journal, change * 2)
        assert opened(tmp_path)[1] == [change] * 6
    journal.check_room()
    write(journal, change * 2)
    assert opened(tmp_path)[1] == [*[change] * 6, change * 2]


def test_partial_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = begun(tmp_path, rotated=False)
    real, calls = os.pwrite, iter([3])

    def nearly_full(file: int, data: Any, at: int) -> int:
        size = next(calls, None)
        return no_space() if size is None else real(file, bytes(data)[:size], at)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "pwrite", nearly_full)
        with pytest.raises(StorageError, match="No space left"):
            write(journal, 2)
    write(journal, 3)
    assert opened(tmp_path)[1] == [1, 3]


@pytest.mark.parametrize("step", [(module.os, "open"), (Path, "write_bytes"), (Path, "replace")])
@pytest.mark.parametrize("before", [False, True])
def test_failed_rotation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], before: bool
) -> None:
    (journal, found), there = begun(tmp_path, before), names(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(*step, no_space)
        with pytest.raises(StorageError, match="No space left"):
            journal.rotate(b"next")
    assert names(tmp_path) == there
    write(journal, 2)
    assert opened(tmp_path)[1] == [*found, 2]
    journal.rotate(b"next")
    write(journal, 3)
    assert opened(tmp_path)[1] == [b"next", 3]


@pytest.mark.parametrize("before", [False, True])
def test_rotation_counts_when_its_snapshot_has_its_name(tmp_path: Path, before: bool) -> None:
    journal, found = begun(tmp_path, before)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / f"ledger-{before + 1:08d}.journal").touch()
    (tmp_path / f"ledger-{before + 1:08d}.new").write_bytes(b"half of it")
    assert opened(tmp_path)[1] == found
    assert names(tmp_path) == kept.keys()
    journal.rotate(b"next")
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert opened(tmp_path)[1] == [b"next"]
    assert not names(tmp_path) & kept.keys()


# the service ------------------------------------------------------------------------------------------

SPEC = {"partition_id": "p", "fields": ["tokens", "prompt"], "tasks": ["train"]}
LOCATION = {"segment": "one.segment", "at": 7, "nbytes": 8, "partition": "p"}


class Service:
    """A recovered service, called as its server does."""

    def __init__(self, folder: Path, rotate_bytes: int = 1 << 30) -> None:
        if not list(folder.glob("*.journal")):
            make_journal(ledger_file(folder))
        self.service = LedgerService(LedgerJournal(folder, rotate_bytes), SegmentUsage(folder / "segments"))
        self.service.recover()
        self.service.join(introduction("me"))
        self.pending: list[int] = []
        self.number = 1000 * len(list(folder.glob("used-*")))
        (folder / f"used-{self.number}").touch()
        (folder / "segments" / "one.segment").touch()
        if not self.number:
            self.call("register", spec={**SPEC, "capacity": 20})

    def call(self, operation: str, /, **arguments: Any) -> Any:
        self.number += 1
        self.service.call(Call("me", self.number, self.pending, operation, arguments), 0.0)
        return self.replies()["me", self.number]

    def replies(self) -> dict[tuple[str, int], Any]:
        return {(call.name, call.number): reply.get("value", reply) for call, reply in self.service.take_replies()}

    def put(self, ids: str) -> None:
        location = {**LOCATION, "at": ord(ids[0])}
        shapes = {"tokens": ("int64", 1)}
        assert self.call("put", partition_id="p", sample_ids=list(ids), shapes=shapes, location=location) == {
            "epoch": 0
        }

    def claim(self, count: int) -> dict[str, Any]:
        return self.call("claim", **claim_of(count))

    def leased(self) -> int:
        return self.call("stats")["p"]["tasks"]["train"]["leased"]


def claim_of(count: int) -> dict[str, Any]:
    asked = {"partition_id": "p", "task_name": "train", "fields": ["tokens"], "owner": "me", "lease_s": 60.0}
    return {**asked, "batch_size": count, "min_batch": count}


@pytest.mark.parametrize("rotate_bytes", [1 << 30, 1], ids=["journal", "snapshot"])
def test_repeated_call_takes_effect_once(tmp_path: Path, rotate_bytes: int) -> None:
    first = Service(tmp_path, rotate_bytes)
    first.put("abcdef")
    given_back = first.claim(2)
    batch = {"sample_ids": given_back["sample_ids"], "leases": [given_back["lease"]] * 2}
    first.call("release", partition_id="p", task_name="train", **batch)
    claimed, number = first.claim(2), first.number
    assert claimed["sample_ids"] == ["a", "b"]
    first.service.close()  # as if killed
    second = Service(tmp_path)
    second.service.call(Call("me", number, [], "claim", claim_of(2)), 0.0)
    assert second.replies() == {("me", number): claimed}
    second.pending = [number]
    assert second.claim(2)["sample_ids"] == ["c", "d"]
    assert second.call("give_up", partition_id="p", operation="claim", number=number) is True
    assert (second.leased(), second.claim(2)["sample_ids"]) == (2, ["a", "b"])


@pytest.mark.parametrize("dies", [False, True])
def test_given_up_claim_gives_back_what_is_left(tmp_path: Path, dies: bool) -> None:
    host = Service(tmp_path)
    host.put("abcd")
    host.claim(4)
    host.pending = [host.number]
    given = {"partition_id": "p", "operation": "claim", "number": host.number}
    assert host.call("clear", partition_id="p", sample_ids=["b"], reason=None) == 1
    assert host.call("give_up", **given) is True
    if dies:
        host.service.close()
        host = Service(tmp_path)
        host.pending = [given["number"]]
        assert host.call("give_up", **given) is True  # repeated, since the client did not get the answer
    assert host.leased() == 0
    assert sorted(host.claim(3)["sample_ids"]) == ["a", "c", "d"]


def test_failed_snapshot_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are written to the journal and answered; the snapshot is tried again when the journal has doubled."""
    first, tried = Service(tmp_path, rotate_bytes=1000), []

    def failing(path: Path, _: bytes) -> int:
        tried.append(path)
        return no_space()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", failing)
        for name in "abcdefghijklmnop":
            first.put(name)
    assert 1 <= len(tried) < 8
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy)
    assert Service(copy).claim(16)["sample_ids"] == list("abcdefghijklmnop")
    while (tmp_path / "ledger-00000000.journal").exists():
        first.call("write_tags", partition_id="p", sample_ids=["a"], tags=[{"text": "x" * 100}])
    first.service.close()
    assert Service(tmp_path).call("stats")["p"]["alive"] == 16


def test_a_host_that_does_not_run_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, or between two hosts: the owner can't extend its lease of 60 s."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def run(host: Service, seconds: float) -> int:
        until = clock.now + seconds
        while clock.now < until:
            clock.now = min(until, clock.now + host.service.pass_time())
        host.service.pass_time()
        return host.leased()

    host = Service(tmp_path)
    host.put("ab")
    host.claim(2)
    assert run(host, 55.0) == 2
    clock.now += 3600.0
    assert run(host, 4.0) == 2
    host.service.close()
    clock.now += 3600.0
    host = Service(tmp_path)
    assert run(host, 55.0) == 2
    assert run(host, 6.0) == 0


@pytest.mark.parametrize("rotate_bytes", [1 << 30, 1], ids=["journal", "snapshot"])
def test_producer_is_told_once_what_is_lost(tmp_path: Path, rotate_bytes: int) -> None:
    """Whenever the host dies: before it tells, or before the producer has the answer."""

    def put(host: Service, name: str) -> Any:
        location = {**LOCATION, "at": ord(name), "unit": name, "owner": "me"}
        return host.call("put", partition_id="p", sample_ids=[name], shapes={"tokens": ("int64", 1)}, location=location)

    host = Service(tmp_path, rotate_bytes)
    for name in "abc":
        assert put(host, name) == {"epoch": 0}
    for unit in "ab":
        host.service.lose({"unit": unit})
    host.service.take_replies()
    host.service.close()
    host = Service(tmp_path, rotate_bytes)
    assert host.call("stats")["p"]["gone"] == {"lost": 2}
    told, number = put(host, "d"), host.number
    assert (told["error"], told["sample_ids"]) == ("LostError", ("a", "b"))
    host.service.close()
    host = Service(tmp_path, rotate_bytes)
    host.service.call(Call("me", number, [], "put", {"partition_id": "p"}), 0.0)
    (again,) = host.replies().values()
    assert (again["error"], list(again["sample_ids"])) == ("LostError", ["a", "b"])
    assert put(host, "d") == {"epoch": 0}
    assert host.claim(2)["sample_ids"] == ["c", "d"]


def test_a_client_that_cannot_be_seen_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client in another container, after the host was started again: it has some minutes, and not for ever."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: clock.now))
    host = Service(tmp_path)
    host.service.join({**introduction("contained"), "boot": boot_id().partition("/")[0] + "/another"})
    host.replies()
    host.service.close()
    caller = Service(tmp_path).service.callers["contained"]
    for seconds, alive in ((0.0, True), (service.IDLE_S, True), (service.ABSENT_S, False)):
        clock.now += seconds
        assert caller.alive() is alive
