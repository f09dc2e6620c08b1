"""Large batches, long ids and many values."""

from __future__ import annotations

from typing import Any

import pytest

from tunegym.dataplane.errors import SampleError
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.predicate import Tag

MANY = 200_000


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["rollout-{:08d}", "{:x}-x"])
def test_a_batch_of_more_rows_than_sixteen_bits_count(one_task: Any, pattern: str) -> None:
    ids = [pattern.format(number) for number in range(MANY)]
    one_task.put(["small.x"], ["x", "y"])
    one_task.put(ids, lengths=list(range(MANY)), tags=[{"n": number, "t": str(number)} for number in range(MANY)])
    one_task.put(ids[::-1], ["y"])
    assert one_task.places([ids[-1], ids[0], "small.x"], "y") == [[(3, [0, MANY - 1]), (1, 0, 1)]]
    one_task.ledger = restore(snapshot(one_task.ledger))
    assert one_task.train(1, fields=("x", "y")) == ["small.x"]
    grant = one_task.claim(MANY, fields=("x", "y"), where=Tag("n") >= 0)
    assert grant.sample_ids == ids
    assert grant.tags is not None
    assert grant.tags[7]["t"] == str(grant.tags[7]["n"])
    one_task.release(grant)
    one_task.ledger.write_tags("p", ids, [{"n": -number} for number in range(MANY)], 0.0)
    grant = one_task.claim(MANY)
    one_task.ack(grant, 1)
    assert one_task.clear(ids[: MANY // 2]) == MANY // 2
    assert one_task.rewind(0) == (MANY, 0)
    assert one_task.clear(ids) == MANY
    assert (one_task.stats["resident"], sorted(one_task.freed())) == (0, [1, 2, 3])
    with pytest.raises(SampleError, match="used once"):
        one_task.put(ids[-1:], epoch=1)


@pytest.mark.parametrize(
    "ids",
    [
        ["long-" + "x" * 10_000 + str(number) for number in range(200)],
        ["long-" + "x" * 10_000 + f"{number:05d}" for number in range(200)],
        [f"ключ-{number}-\N{GRINNING FACE}" for number in range(200)],
        [f"\N{FULLWIDTH DIGIT ONE}{number:05d}" for number in range(200)],
        [" " * number + "." for number in range(200)],
        ["\0" * number + "." for number in range(200)],
    ],
    ids=["long", "long and numbered", "unicode", "wide digits", "blanks", "zeros"],
)
def test_ids_are_any_texts(one_task: Any, ids: list[str]) -> None:
    one_task.put(ids)
    one_task.ledger = restore(snapshot(one_task.ledger))
    with pytest.raises(SampleError, match="twice"):
        one_task.put([*ids, ids[0]], ["y"])
    one_task.put(ids[::-1], ["y"])
    assert one_task.train(200, 1) == ids
    assert one_task.clear(ids) == 200
    one_task.commit(1)
    one_task.ledger = restore(snapshot(one_task.ledger))
    with pytest.raises(SampleError, match="used once"):
        one_task.put(ids)
    assert one_task.stats["resident"] == 0
