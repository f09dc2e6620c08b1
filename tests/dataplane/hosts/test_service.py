from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tunegym.dataplane.hosts.client import _introduction as introduction
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.service import Call, LedgerService
from tunegym.dataplane.storage.segments import SegmentUsage

pytestmark = pytest.mark.invariant  # P16


class Host:
    """A service that is called as its server does."""

    def __init__(self, folder: Path, rotate_bytes: int = 1 << 30) -> None:
        segments = folder / "segments"
        self.service = LedgerService(LedgerJournal(folder, rotate_bytes), SegmentUsage(segments))
        self.service.recover()
        self.service.join(introduction("me"))
        self.pending: list[int] = []
        self._number = 1000 * len(list(folder.glob("used-*")))
        (folder / f"used-{self._number}").touch()
        (segments / "one.segment").touch()

    def call(self, operation: str, /, **arguments: Any) -> Any:
        self._number += 1
        self.service.call(Call("me", self._number, self.pending, operation, arguments), 0.0)
        ((_, reply),) = self.service.take_replies()
        return reply.get("value", reply)

    def wait(
        self, number: int, operation: str, name: str = "me", pending: Sequence[int] = (), **arguments: Any
    ) -> None:
        """A call that may wait for ever."""
        self.service.call(Call(name, number, pending, operation, arguments), None)

    def heard(self) -> dict[tuple[str, int], Any]:
        return {(call.name, call.number): reply.get("value", reply) for call, reply in self.service.take_replies()}

    def put(self, names: str, field: str = "tokens") -> None:
        location = {"segment": "one.segment", "at": ord(names[0]) + 1000 * len(names)}
        shapes = {field: ("int64", 1)}
        assert self.call("put", partition_id="p", sample_ids=list(names), shapes=shapes, location=location) is None

    def claim(self, count: int) -> dict[str, Any]:
        return self.call("claim", **asking(count))

    def leased(self) -> int:
        return self.call("stats")["p"]["tasks"]["train"]["leased"]


def asking(count: int, owner: str = "me") -> dict[str, Any]:
    asked = {"partition_id": "p", "task_name": "train", "fields": ["tokens"], "owner": owner, "lease_s": 60.0}
    return {**asked, "batch_size": count, "min_batch": count}


SPEC = {"partition_id": "p", "fields": ["tokens", "prompt"], "tasks": ["train"]}


def test_samples_keep_their_order_through_the_death_of_a_host(tmp_path: Path) -> None:
    for rotate_bytes in (1 << 30, 1):
        folder = tmp_path / str(rotate_bytes)
        folder.mkdir()
        first = Host(folder, rotate_bytes)
        first.call("register", spec=SPEC)
        first.put("abcdef")
        assert first.claim(2)["sample_ids"] == ["a", "b"]
        given_back = first.claim(2)
        batch = {"sample_ids": given_back["sample_ids"], "leases": [given_back["lease"]] * 2}
        first.call("clear", partition_id="p", sample_ids=["e"], reason=None)
        first.put("g")
        first.call("release", partition_id="p", task_name="train", **batch)
        first.service.close()  # without a word, as a killed one
        assert Host(folder, rotate_bytes).claim(4)["sample_ids"] == ["c", "d", "f", "g"]


@pytest.mark.parametrize("rotate_bytes", [1 << 30, 1], ids=["journal", "snapshot"])
def test_a_call_that_is_repeated_takes_effect_once(tmp_path: Path, rotate_bytes: int) -> None:
    first = Host(tmp_path, rotate_bytes)
    first.call("register", spec=SPEC)
    first.put("abcd")
    claimed = first.claim(2)
    number = first._number
    first.service.close()
    second = Host(tmp_path)
    asked = {"partition_id": "p", "task_name": "train", "fields": ["tokens"], "owner": "me", "lease_s": 60.0}
    second.service.call(Call("me", number, [], "claim", {**asked, "batch_size": 2, "min_batch": 2}), 0.0)
    ((_, reply),) = second.service.take_replies()
    assert reply["value"] == claimed
    second.pending = [number]
    assert second.claim(2)["sample_ids"] == ["c", "d"]
    given = {"partition_id": "p", "task_name": "train", "operation": "claim", "number": number}
    assert second.call("give_up", **given) is True
    assert (second.leased(), second.claim(2)["sample_ids"]) == (2, ["a", "b"])


# who leaves, and who gives up -------------------------------------------------------------------------


def test_a_client_leaves_with_calls_that_wait(tmp_path: Path) -> None:
    """Of one line: without the first, there would be enough for the second."""
    host = Host(tmp_path)
    host.call("register", spec={**SPEC, "capacity": 4})
    host.service.join(introduction("other"))
    host.put("abc")
    host.wait(1, "claim", "other", **asking(4, "other"))
    host.wait(2, "claim", "other", pending=[1], **asking(2, "other"))
    location = {"segment": "one.segment", "at": 7}
    given = {"partition_id": "p", "shapes": {"tokens": ("int64", 1)}, "location": location}
    host.wait(3, "put", "other", pending=[1, 2], sample_ids=["v", "w"], **given)
    host.wait(4, "put", "other", pending=[1, 2, 3], sample_ids=["x"], **given)  # whose owner it doesn't say
    assert host.heard() == {}
    host.service.leave("other")
    assert host.heard() == {}
    assert host.claim(3)["sample_ids"] == ["a", "b", "c"]
    assert host.call("stats")["p"]["waiting"] == {"claims": 0, "puts": 0}


def _claimed_and_cleared(folder: Path) -> tuple[Host, int]:
    """A claim of "abcd" whose answer was not heard yet, and its number; "b" is gone since."""
    host = Host(folder)
    host.call("register", spec=SPEC)
    host.put("abcd")
    host.claim(4)
    number = host._number
    host.pending = [number]
    assert host.call("clear", partition_id="p", sample_ids=["b"], reason=None) == 1
    return host, number


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_still_held_of_a_claim_that_was_given_up_is_given_back(tmp_path: Path, dies: bool) -> None:
    host, number = _claimed_and_cleared(tmp_path)
    given = {"partition_id": "p", "task_name": "train", "operation": "claim", "number": number}
    assert host.call("give_up", **given) is True
    if dies:
        host.service.close()
        host = Host(tmp_path)
        host.pending = [number]
        assert host.leased() == 0
        assert host.call("give_up", **given) is True  # it is asked again, since nobody heard the answer
    assert host.leased() == 0
    assert sorted(host.claim(3)["sample_ids"]) == ["a", "c", "d"]


# replies ----------------------------------------------------------------------------------------------


def test_a_snapshot_that_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are written to the journal and answered; the snapshot is tried again when there is more to gain."""
    first = Host(tmp_path, rotate_bytes=1000)
    first.call("register", spec=SPEC)
    tried: list[object] = []

    def full(path: Path, _: bytes) -> int:
        tried.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    names = "abcdefghijklmnop"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        for name in names:
            first.put(name)
    assert 1 <= len(tried) < 8
    assert (tmp_path / "ledger-00000000.journal").exists()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy)
    assert Host(copy).claim(16)["sample_ids"] == list(names)
    more = iter(range(1000))
    while (tmp_path / "ledger-00000000.journal").exists():
        first.put(chr(0x4E00 + next(more)))
    assert (tmp_path / "ledger-00000001.snapshot").exists()
    first.service.close()
    assert Host(tmp_path).call("stats")["p"]["alive"] == len(names) + next(more)
