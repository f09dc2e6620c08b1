from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from tunegym.dataplane.errors import SampleError, StorageError
from tunegym.dataplane.ledger import ids as ids_module
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.snapshot import load, restore, save, snapshot


def busy(desk: Any, pattern: str) -> None:
    """Some of everything."""
    ids = [pattern.format(number) for number in range(400)]
    desk.put(ids, tags=[{"v": number, "who": "né" if number % 2 else None} for number in range(400)], lengths=[7] * 400)
    desk.put(ids[:200], ["y"])
    desk.train(40, 1)
    desk.train(30, None, "judge")
    desk.train(20, 2, fields=("x", "y"))
    desk.claim(50)
    desk.commit(1)
    desk.clear(ids[35:60] + ids[300:320], "stale")
    desk.rewind(1)


@pytest.mark.parametrize("pattern", ["s-{:05d}", "{}-ß", "{:03d}"])
def test_a_ledger_comes_back_as_it_was(desk: Any, pattern: str) -> None:
    busy(desk, pattern)
    data = snapshot(desk.ledger)
    again = restore(data)
    assert snapshot(again) == data
    assert again.stats(5.0) == desk.ledger.stats(5.0)
    for ledger in (desk.ledger, again):
        desk.ledger = ledger
        desk.put([pattern.format(number) for number in range(1000, 1100)], epoch=1)
        with pytest.raises(SampleError):
            desk.put([pattern.format(310)], epoch=1)
        desk.train(100, 5)
        desk.ledger.expire(100.0)
        desk.train(150, 6, "judge")
        desk.commit(5)
        desk.commit(6, "judge")
    desk.ledger.take_freed()
    first, second = snapshot(desk.ledger), snapshot(again)
    assert first == second


def test_ids_of_which_nothing_is_there_come_back_too(one_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of chunks that are kept as they were, or as bits, and of forms that are forgotten."""
    for name, value in (("_MOST_IDLE", 2), ("_MOST_PACKED", 2)):
        monkeypatch.setattr(ids_module, name, value)
    batches = [[f"{head}-{number:03d}" for number in range(100)] for head in "abcdefg"]
    for batch in batches:
        one_task.put(batch)
        one_task.train(100)
    index = one_task.ledger._held["p"].partition.rows.ids
    assert (len(index._spent.idle), len(index._spent.packed), len(index._vacant)) == (2, 2, 1)
    data = snapshot(one_task.ledger)
    one_task.ledger = restore(data)
    assert snapshot(one_task.ledger) == data
    for batch in batches:
        with pytest.raises(SampleError, match="used once"):
            one_task.put(batch[:1])
    more = [f"g-{number:03d}" for number in range(100, 200)]
    one_task.put(more)
    one_task.put([f"h-{number:03d}" for number in range(100)])
    assert one_task.train(100) == more
    assert one_task.train(100)[-1] == "h-099"
    assert snapshot(restore(snapshot(one_task.ledger))) == snapshot(one_task.ledger)


def test_groups_come_back_too(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(group_size=2)
    ids = [f"s{number}" for number in range(21)]
    desk.put(ids, group_ids=[f"g{number // 2}" for number in range(21)])
    desk.train(4, 1)
    desk.claim(2)
    desk.clear(["s1", "s9"])
    data = snapshot(desk.ledger)
    desk.ledger = restore(data)
    assert snapshot(desk.ledger) == data
    assert desk.claim(3, 2).sample_ids == ["s6", "s7", "s8"]
    assert desk.rewind(0) == (4, 0)
    assert sorted(desk.claim(4).sample_ids) == ["s0", "s1", "s2", "s3"]
    desk.put(["s21"], group_ids=["g10"], epoch=1)
    held_before = ["s4", "s5", "s6", "s7", "s8"]  # until the rewind, which ends all claims
    assert sorted(desk.claim(6, 4).sample_ids) == held_before
    assert desk.claim(99, 12).sample_ids == [f"s{number}" for number in range(10, 22)]


def test_the_header_is_plain_and_the_arrays_are_numbers(desk: Any) -> None:
    busy(desk, "s-{:05d}")
    header, arrays = save(desk.ledger)
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in arrays)
    again = load(orjson.loads(orjson.dumps(header)), [array.copy() for array in arrays])
    assert snapshot(again) == snapshot(desk.ledger)


def test_a_restored_ledger_does_not_hold_on_to_the_bytes(desk: Any) -> None:
    busy(desk, "s-{:05d}")
    data = bytearray(snapshot(desk.ledger))
    again = restore(memoryview(data))
    before = snapshot(again)
    data[:] = bytes(len(data))
    assert snapshot(again) == before
    desk.ledger = again
    desk.train(10, 9)


def test_those_who_wait_are_left_out(desk: Any) -> None:
    desk.wait(3)
    again = restore(snapshot(desk.ledger))
    assert again.stats(0.0)["p"]["waiting"] == {"puts": 0, "claims": 0}


def test_what_is_no_snapshot_is_refused() -> None:
    good = snapshot(Ledger())
    header, arrays = save(Ledger())
    with pytest.raises(StorageError, match="format 99"):
        load({**header, "format": 99}, arrays)
    for data in (b"", good[:4], b"\x05" + good[1:], b"\xff" * 64):
        with pytest.raises(StorageError, match="no snapshot of a ledger"):
            restore(data)


def test_a_snapshot_that_is_cut_or_damaged_is_refused_wherever_it_is(desk: Any) -> None:
    busy(desk, "{}-x")
    good = snapshot(desk.ledger)
    for end in [*range(8, len(good), 997), len(good) - 1]:
        with pytest.raises(StorageError, match="was cut" if end >= 24 else None):
            restore(good[:end])
    with pytest.raises(StorageError, match="was cut"):
        restore(good + b"\0")
    for at in range(0, len(good), 499):
        with pytest.raises(StorageError, match="damaged" if at >= 16 else None):
            restore(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
    assert snapshot(restore(good)) == good


def test_what_was_freed_and_not_handed_out_is_kept(desk: Any) -> None:
    desk.put(["a"])
    desk.clear(["a"])
    assert restore(snapshot(desk.ledger)).take_freed() == [{"n": 1}]
