from __future__ import annotations

from typing import Any

import pytest

from tunegym.dataplane.errors import ClaimTimeoutError, LeaseLostError, SampleError
from tunegym.dataplane.predicate import Tag

pytestmark = pytest.mark.invariant  # P3


def test_a_timeout_says_how_many_were_ready_and_what_the_others_lack(desk: Any) -> None:
    desk.put(["a", "b", "c", "d"], ["x"], tags=[{"v": 1}] * 4)
    desk.put(["a", "b"], ["y"])
    desk.claim(1, fields=("x", "y"))
    with pytest.raises(ClaimTimeoutError) as caught:
        desk.claim(5, fields=("x", "y"))
    assert "1 of at least 5 were ready for 'train'" in str(caught.value)
    assert "2 lack 'y'" in str(caught.value)
    assert "1 are claimed" in str(caught.value)
    with pytest.raises(ClaimTimeoutError, match=r"0 of at least 1 .*3 are ready, but don't match"):
        desk.claim(1, where=Tag("v") > 1)
    waiter = desk.wait(5, timeout_s=2.0)
    desk.pass_time(1.9)
    assert desk.settled() == []
    assert desk.ledger.next_deadline() == 2.0
    desk.pass_time(0.1)
    assert desk.settled() == [waiter]
    assert isinstance(waiter.outcome, ClaimTimeoutError)
    assert "3 of at least 5" in str(waiter.outcome)


def test_a_predicate_over_many_looks_at_them_in_order(desk: Any) -> None:
    ids = [f"s-{number:05d}" for number in range(20_000)]
    desk.put(ids, tags=[{"v": number} for number in range(20_000)])
    for round_ in range(5):
        found = desk.claim(10, where=Tag("v") >= 15_000).sample_ids
        assert found == ids[15_000 + 10 * round_ : 15_010 + 10 * round_]
    assert desk.claim(20, where=Tag("v") >= 14_990).sample_ids == ids[14_990:15_000] + ids[15_050:15_060]
    assert desk.train(19_930) == ids[:14_990] + ids[15_060:]


@pytest.mark.parametrize("wrong", [0, 2, -1, 5, 2**40, 2**62, 2**70, "x", None, 1.5])
def test_what_is_no_lease_settles_nothing(desk: Any, wrong: Any) -> None:
    desk.put(list("abcdef"))
    grant = desk.claim(1)
    for leases in ([wrong], [wrong, grant.leases[0]]):
        with pytest.raises(LeaseLostError):
            desk.ledger.ack("p", "train", list("ab")[: len(leases)], leases, None, 0.0)
    with pytest.raises(LeaseLostError):
        desk.ledger.ack("p", "judge", ["a"], grant.leases, None, 0.0)
    assert desk.counts() == (5, 1, 0)


def test_a_call_names_each_sample_once_and_as_many_leases(desk: Any) -> None:
    desk.put(["a", "b"])
    grant = desk.claim(2)
    with pytest.raises(SampleError, match="twice"):
        desk.ledger.ack("p", "train", ["a", "a"], [*grant.leases[:1]] * 2, None, 0.0)
    with pytest.raises(SampleError, match="1 leases for 2"):
        desk.ledger.ack("p", "train", ["a", "b"], grant.leases[:1], None, 0.0)
    desk.ledger.ack("p", "train", [], [], None, 0.0)
    desk.ledger.release("p", "train", [], [], 0.0)
    desk.ledger.extend("p", "train", [], [], 1.0, 0.0)
    assert desk.counts() == (0, 2, 0)
