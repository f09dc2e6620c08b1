from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.ledger.snapshot import restore, snapshot


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


def test_what_was_freed_and_not_handed_out_is_kept(desk: Any) -> None:
    desk.put(["a"])
    desk.clear(["a"])
    assert restore(snapshot(desk.ledger)).take_freed() == [{"n": 1}]
