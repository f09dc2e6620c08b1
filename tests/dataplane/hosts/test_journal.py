from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.hosts import journal as module
from tunegym.dataplane.hosts.journal import RECORD, LedgerJournal

pytestmark = pytest.mark.invariant  # P16


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def begun(folder: Path) -> tuple[LedgerJournal, list[Any]]:
    """A journal, and what it had: the snapshot, if any, and the changes."""
    found: list[Any] = []
    journal = LedgerJournal(folder)
    journal.recover(found.append, found.append)
    return journal, found


def written(journal: LedgerJournal, *changes: Any) -> None:
    for change in changes:
        journal.add(change)
    journal.write()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_changes_and_snapshots_come_back(tmp_path: Path) -> None:
    journal, found = begun(tmp_path)
    assert found == []
    written(journal, 1, 2)
    assert begun(tmp_path)[1] == [1, 2]
    journal.rotate(b"two")
    written(journal, 3)
    journal.rotate(b"three")
    written(journal, 4, 5)
    assert begun(tmp_path)[1] == [b"three", 4, 5]
    assert names(tmp_path) == {"ledger-00000002.snapshot", "ledger-00000002.journal"}


def test_a_journal_cut_anywhere_has_every_whole_change(tmp_path: Path) -> None:
    journal, _ = begun(tmp_path)
    ends = []
    for change in ("one", "two", "three"):
        written(journal, change)
        ends.append(len((tmp_path / "ledger-00000000.journal").read_bytes().rstrip(b"\0")))
    content = (tmp_path / "ledger-00000000.journal").read_bytes()
    for size in range(ends[-1] + 1):
        (tmp_path / "ledger-00000000.journal").write_bytes(content[:size].ljust(len(content), b"\0"))
        again, found = begun(tmp_path)
        assert found == ["one", "two", "three"][: sum(end <= size for end in ends)]
        written(again, "more")
        assert begun(tmp_path)[1] == [*found, "more"]


@pytest.mark.parametrize("at", range(RECORD.size))
def test_a_damaged_head_is_told(tmp_path: Path, at: int) -> None:
    """One that only says that more follows than there is looks like a torn change, and the rest would be lost."""
    journal, _ = begun(tmp_path)
    written(journal, "one", "two")
    place = tmp_path / "ledger-00000000.journal"
    content = bytearray(place.read_bytes())
    content[at] ^= 0x40
    place.write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged at byte 0"):
        begun(tmp_path)


def test_a_full_disk_has_room_for_what_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = begun(tmp_path)
    real = os.pwrite

    def within(file: int, data: Any, at: int) -> int:
        return real(file, data, at) if at + len(data) <= os.fstat(file).st_size else full()

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "posix_fallocate", full)
        patched.setattr(module.os, "pwrite", within)
        journal.check_room()
        change = "x" * (module.RESERVE // 4)
        for _ in range(5):
            written(journal, change)
        with pytest.raises(StorageError, match="No space left") as error:
            journal.check_room()
        assert "clearing" in (error.value.hint or "")
        written(journal, change)
        with pytest.raises(StorageError, match="No space left"):
            written(journal, change * 2)
        assert begun(tmp_path)[1] == [change] * 6
    journal.check_room()
    written(journal, change * 2)
    assert begun(tmp_path)[1] == [*[change] * 6, change * 2]


def test_a_missing_snapshot_is_told(tmp_path: Path) -> None:
    journal, _ = begun(tmp_path)
    journal.rotate(b"snapshot")
    written(journal, 1)
    (tmp_path / "ledger-00000001.snapshot").unlink()
    with pytest.raises(StorageError, match=r"ledger-00000001.snapshot is missing"):
        begun(tmp_path)
    assert "ledger-00000001.journal" in names(tmp_path)


@pytest.mark.parametrize("step", ["journal", "snapshot", "name"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_rotation_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, before: int
) -> None:
    journal, _ = begun(tmp_path)
    if before:
        journal.rotate(b"before")
    written(journal, 1)
    there = names(tmp_path)
    with monkeypatch.context() as patched:
        if step == "journal":
            patched.setattr(module.os, "open", full)
        else:
            patched.setattr(Path, "write_bytes" if step == "snapshot" else "replace", full)
        with pytest.raises(StorageError, match="No space left"):
            journal.rotate(b"next")
    assert names(tmp_path) == there
    written(journal, 2)
    expected = [*([b"before"] if before else []), 1, 2]
    assert begun(tmp_path)[1] == expected
    journal.rotate(b"next")
    written(journal, 3)
    assert begun(tmp_path)[1] == [b"next", 3]


@pytest.mark.parametrize("before", [0, 1])
def test_a_host_that_was_killed_while_it_rotated(tmp_path: Path, before: int) -> None:
    """Before the snapshot has its name nothing of it counts, and afterwards nothing before it."""
    journal, _ = begun(tmp_path)
    if before:
        journal.rotate(b"before")
    written(journal, 1)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / f"ledger-{before + 1:08d}.journal").touch()
    (tmp_path / f"ledger-{before + 1:08d}.new").write_bytes(b"half of it")
    assert begun(tmp_path)[1] == [*([b"before"] if before else []), 1]
    assert names(tmp_path) == kept.keys()
    journal.rotate(b"next")
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert begun(tmp_path)[1] == [b"next"]
    assert not names(tmp_path) & kept.keys()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = begun(tmp_path)
    written(journal, 1)
    real, calls = os.pwrite, iter([3])

    def nearly_full(file: int, data: Any, at: int) -> int:
        size = next(calls, None)
        return full() if size is None else real(file, bytes(data)[:size], at)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "pwrite", nearly_full)
        with pytest.raises(StorageError, match="No space left"):
            written(journal, 2)
    written(journal, 3)
    assert begun(tmp_path)[1] == [1, 3]
