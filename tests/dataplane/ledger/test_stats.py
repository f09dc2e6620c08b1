from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def buckets(told: dict[str, Any]) -> dict[float, int]:
    """By the upper end of the bucket, those that aren't empty."""
    ends = [*told["bounds"], float("inf")]
    assert len(ends) == len(told["counts"])
    return {end: count for end, count in zip(ends, told["counts"], strict=True) if count}


def test_reasons_beyond_some_hundred_are_others(desk: Any) -> None:
    ids = [f"{number}" for number in range(600)]
    desk.put(ids)
    desk.train(600, 1, "judge")
    for one in ids[:500]:
        assert desk.clear([one], f"because of {one}") == 1
    desk.clear(ids[500:501], "because of 7")
    desk.clear(ids[501:502])
    gone = desk.stats["gone"]
    assert (gone["because of 7"], gone["other"], gone["cleared"], gone["because of 255"]) == (2, 244, 1, 1)
    assert len(gone) == 258
    assert desk.rewind(0, "judge") == (600, 0)
    assert desk.stats["gone"] == {}


def test_everything_is_counted(open_desk: Callable[..., Any]) -> None:
    desk = open_desk(tasks=("train", "judge"), capacity=6)
    desk.put(list("abcd"), ["x", "y"])
    desk.train(1, 1)
    grant = desk.claim(2, fields=("x", "y"))
    desk.ledger.release("p", "train", grant.sample_ids[:1], grant.leases[:1], 0.0)
    desk.clear(["d"], "stale")
    assert desk.put_or_wait(["e", "f", "g", "h"])
    assert desk.wait(5)
    told = desk.stats
    assert {name: told[name] for name in ("produced", "resident", "alive", "capacity", "bytes", "blocks")} == {
        "produced": 4,
        "resident": 3,
        "alive": 3,
        "capacity": 6,
        "bytes": 10,
        "blocks": 1,
    }
    assert (told["epoch"], told["sealed"], told["gone"]) == (0, False, {"stale": 1})
    assert told["waiting"] == {"puts": 1, "claims": 1}
    train = told["tasks"]["train"]
    assert train["ready"] == {"x": 1, "x,y": 1}
    assert (train["free"], train["leased"], train["acked"]) == (1, 1, 1)
    assert (train["claimed"], train["redelivered"], train["committed"]) == (3, 1, None)
    assert told["tasks"]["judge"]["free"] == 3
    assert json.loads(json.dumps(told)) == told


def test_ages_are_of_what_is_ready_and_lags_of_what_was_claimed(one_task: Any) -> None:
    one_task.put(["a", "b"])
    one_task.now = 2.0
    one_task.put(["c"])
    one_task.claim(1)
    assert buckets(one_task.stats["tasks"]["train"]["lag"]) == {3.0: 1}
    one_task.now = 50.0
    told = one_task.stats["tasks"]["train"]
    assert buckets(told["age"]) == {100.0: 2}
    one_task.claim(2)
    told = one_task.stats["tasks"]["train"]
    assert buckets(told["age"]) == {}
    assert buckets(told["lag"]) == {3.0: 1, 100.0: 2}
    assert told["lag"]["sum"] == 2.0 + 50.0 + 48.0
    one_task.now = 10_000.0
    one_task.ledger.owner_gone("me", one_task.now)
    assert buckets(one_task.stats["tasks"]["train"]["age"]) == {float("inf"): 3}
