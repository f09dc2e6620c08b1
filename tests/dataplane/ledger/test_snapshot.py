from __future__ import annotations

from typing import Any

import pytest

from tunegym.dataplane.errors import SampleError, StorageError
from tunegym.dataplane.ledger.snapshot import load, restore, save, snapshot

pytestmark = pytest.mark.invariant  # P16


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


def test_those_who_wait_are_left_out(desk: Any) -> None:
    desk.wait(3)
    again = restore(snapshot(desk.ledger))
    assert again.stats(0.0)["p"]["waiting"] == {"puts": 0, "claims": 0}


def test_what_was_freed_and_not_handed_out_is_kept(desk: Any) -> None:
    desk.put(["a"])
    desk.clear(["a"])
    assert restore(snapshot(desk.ledger)).take_freed() == [{"n": 1}]


def test_bytes_that_are_no_snapshot_are_refused(desk: Any) -> None:
    busy(desk, "{}-x")
    good = snapshot(desk.ledger)
    for data in (b"", good[:4], good[:-1], b"tgledger" + good[8:]):
        with pytest.raises(StorageError, match="can't be read"):
            restore(data)
    header, columns = save(desk.ledger)
    with pytest.raises(StorageError, match="format 3, not 4"):
        load({**header, "format": 3}, columns)
