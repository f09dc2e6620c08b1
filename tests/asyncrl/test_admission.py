"""The gate: nothing that would be dropped is started, and nothing that a dead producer had started leaks."""

from __future__ import annotations

import random
import threading
from itertools import count

import pytest

from tunegym.asyncrl.admission import Gate
from tunegym.dataplane import BatchMeta, StalenessPolicy
from tunegym.dataplane.staleness import versions_of


def batch(version: int, *ids: str) -> BatchMeta:
    return BatchMeta("p", ids, (), tags=tuple({"weight_version": version} for _ in ids))


def test_a_producer_waits_for_the_trainer() -> None:
    gate = Gate(StalenessPolicy(2, 0))
    assert gate.start("a", ["1", "2", "3"], 0) == (["1", "2"], 0)
    assert gate.start("b", ["4"], 0, timeout_s=0.01) == ([], 0)
    asked: list[object] = []
    waiting = threading.Thread(target=lambda: asked.append(gate.start("b", ["4"], 0)))
    waiting.start()
    done = batch(0, "1", "2")
    gate.claimed(done)
    gate.advance(1, done)
    waiting.join(60)
    assert asked == [([], 1)]  # with the new weights, please
    assert gate.start("b", ["4"], 1) == (["4"], 1)
    assert gate.waited_s["b"] > 0


def test_what_a_dead_producer_had_started_is_given_back() -> None:
    gate = Gate(StalenessPolicy(2, 0))
    gate.start("a", ["1"], 0)
    gate.start("b", ["2"], 0)
    gate.abandon("a")
    assert gate.cut == 1
    assert gate.start("c", ["3", "4"], 0) == (["3"], 0)
    late = batch(0, "1")  # it had put its rollout, and died before it could say so
    gate.claimed(late)
    assert gate.cut == 0
    assert gate.start("c", ["4"], 0, timeout_s=0.01) == ([], 0)
    gate.drop(late)
    assert gate.start("c", ["4"], 0, timeout_s=0.01) == ([], 0)  # 2 and 3 are under way


def test_others_start_in_place_of_what_is_lost() -> None:
    """Samples that a node took with it; those that the trainer has claimed are its own."""
    gate = Gate(StalenessPolicy(3, 0))
    gate.start("a", ["1", "2", "3"], 0)
    gate.ready(["1", "2"])
    gate.claimed(batch(0, "1"))
    gate.lose(["1", "2", "unknown"])
    assert gate.start("b", ["4", "5"], 0) == (["4"], 0)
    gate.give_back(batch(0, "1"))
    assert gate.there == {"1"}
    gate.lose(["1"])
    assert gate.start("b", ["5"], 0) == (["5"], 0)


def test_samples_of_an_earlier_session_count() -> None:
    gate = Gate(StalenessPolicy(3, 0), 7, {"1": 7, "2": 6})
    assert gate.start("a", ["3", "4"], 7) == (["3"], 7)
    gate.lose(["2"])
    assert gate.start("a", ["4"], 7) == (["4"], 7)


def test_a_closed_gate_admits_nothing() -> None:
    gate = Gate(StalenessPolicy(2, 0))
    gate.close()
    assert gate.start("a", ["1"], 0) == ([], None)


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_nothing_gets_too_old_however_slow_a_producer_is(staleness: int) -> None:
    """Producers die, puts overtake each other, and some are claimed before their producer says that they are ready."""
    rng = random.Random(staleness)
    size, version, numbers = 3, 0, count()
    gate = Gate(StalenessPolicy(size, staleness))
    started: list[tuple[str, str, int]] = []
    queue: list[BatchMeta] = []
    unsaid: set[str] = set()
    trained = 0
    for _ in range(4000):
        act = rng.random()
        if act < 0.5:
            owner, sample = f"o{rng.randrange(5)}", f"s{next(numbers)}"
            granted, _ = gate.start(owner, [sample], version, timeout_s=0)
            started += [(owner, one, version) for one in granted]
        elif act < 0.8 and started:
            owner, sample, made = started.pop(rng.randrange(len(started)))
            queue.append(batch(made, sample))
            if rng.random() < 0.8:
                gate.ready(queue[-1].sample_ids)
            else:
                unsaid.add(owner)
        elif act < 0.82 and started:
            owner = rng.choice(started)[0]
            if owner not in unsaid:
                gate.abandon(owner)
                started = [one for one in started if one[0] != owner]
        elif len(queue) >= size:
            taken, queue = BatchMeta.concat(queue[:size]), queue[size:]
            gate.claimed(taken)
            assert version - min(versions_of(taken)) <= staleness
            version += 1
            if not queue:
                unsaid.clear()
            gate.advance(version, taken)
            trained += 1
    assert trained > 100
