from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tunegym.dataplane.hosts.clients import myself
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.keeper import Keeper
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.storage.live import LiveSegments


class Host:
    """A keeper that is called as its server does."""

    def __init__(self, folder: Path, rotate_bytes: int = 1 << 30) -> None:
        segments = folder / "segments"
        self.keeper = Keeper(LedgerJournal(folder, rotate_bytes), LiveSegments(segments), snapshot, restore)
        self.keeper.recover()
        self.keeper.join(myself("me"))
        self._number = 1000 * len(list(folder.glob("used-*")))
        (folder / f"used-{self._number}").touch()
        (segments / "one.segment").touch()

    def call(self, operation: str, **arguments: Any) -> Any:
        self._number += 1
        self.keeper.call("me", self._number, self._number, operation, arguments, 0.0)
        ((_, _, reply),) = self.keeper.take_replies()
        return reply.get("value", reply)

    def put(self, names: str, field: str = "tokens") -> None:
        location = {"segment": "one.segment", "at": ord(names[0]) + 1000 * len(names)}
        shapes = {field: ("int64", 1)}
        assert self.call("put", partition_id="p", sample_ids=list(names), shapes=shapes, location=location) is None

    def claim(self, count: int) -> dict[str, Any]:
        asked = {"partition_id": "p", "task_name": "train", "fields": ["tokens"], "owner": "me", "lease_s": 60.0}
        return self.call("claim", **asked, batch_size=count, min_batch=count)


SPEC = {"partition_id": "p", "fields": ["tokens", "prompt"], "tasks": ["train"]}


def test_samples_keep_their_order_through_the_death_of_a_host(tmp_path: Path) -> None:
    for rotate_bytes in (1 << 30, 1):
        folder = tmp_path / str(rotate_bytes)
        folder.mkdir()
        first = Host(folder, rotate_bytes)
        first.call("register", spec=SPEC)
        assert first.claim(1)["error"] == "ClaimTimeoutError"  # got nothing, and the order begins with it
        first.put("abcdef", "prompt")
        for name in "fedcba":  # they become ready in another order than they came in
            first.put(name)
        assert first.claim(2)["sample_ids"] == ["f", "e"]
        given_back = first.claim(2)
        assert given_back["sample_ids"] == ["d", "c"]
        batch = {"sample_ids": given_back["sample_ids"], "leases": given_back["leases"]}
        first.call("release", partition_id="p", task_name="train", **batch)
        first.keeper.close()  # without a word, as a killed one
        assert Host(folder, rotate_bytes).claim(4)["sample_ids"] == ["d", "c", "b", "a"]


def test_a_call_that_is_repeated_takes_effect_once(tmp_path: Path) -> None:
    first = Host(tmp_path)
    first.call("register", spec=SPEC)
    first.put("abcd")
    claimed = first.claim(2)
    number = first._number
    first.keeper.close()
    second = Host(tmp_path)
    asked = {"partition_id": "p", "task_name": "train", "fields": ["tokens"], "owner": "me", "lease_s": 60.0}
    second.keeper.call("me", number, number, "claim", {**asked, "batch_size": 2, "min_batch": 2}, 0.0)
    ((_, _, reply),) = second.keeper.take_replies()
    assert reply["value"] == claimed
    assert second.claim(2)["sample_ids"] == ["c", "d"]


def test_a_snapshot_that_cannot_be_written_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked is written down, and answered; the snapshot is tried again when there is more to gain."""
    first = Host(tmp_path, rotate_bytes=1000)
    first.call("register", spec=SPEC)
    tried = 0

    def full(*_: object) -> int:
        nonlocal tried
        tried += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        for name in "abcdefghijklmnop":
            first.put(name)
    assert 1 <= tried < 8
    assert (tmp_path / "ledger-00000000.journal").exists()
    assert Host(tmp_path).claim(16)["sample_ids"] == list("abcdefghijklmnop")
    for at in range(200):
        first.put(f"z{at}")
        if not (tmp_path / "ledger-00000000.journal").exists():
            break
    assert (tmp_path / "ledger-00000001.snapshot").exists()
