"""Orders, messages and refusals of a ledger. The state machine test covers counts and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tunegym.dataplane import errors
from tunegym.dataplane.ledger import samples
from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.model import PartitionSpec, tags_by_sample
from tunegym.dataplane.predicate import Tag

pytestmark = pytest.mark.invariant  # P3, P15, P16
TAG_VALUES: list[Any] = [1, 0, True, False, 1.0, -0.0, 0.0, "text", "", None]
HOSTILE_LEASES: list[Any] = [0, 2, 4, -1, 2**62, 2**70, "x", None, 1.5]
SHAPES = {"x": ("<i8", 1), "y": ("<f4", 2)}


class Desk:
    """Calls a ledger for one partition at the time ``now``."""

    def __init__(self, **spec: Any) -> None:
        self.ledger = Ledger()
        self.spec = PartitionSpec(**{"partition_id": "p", "fields": ("x", "y"), "tasks": ("train", "judge"), **spec})
        self.ledger.register(self.spec)
        self.now = 0.0
        self.blocks = 0

    def put(self, ids: Sequence[str], fields: Sequence[str] = ("x",), wait: bool = False, **more: Any) -> Any:
        self.blocks += 1
        shapes = more.pop("shapes", {name: SHAPES[name] for name in fields})
        location = {"n": self.blocks, **more.pop("location", {})}
        request = Put("p", list(ids), shapes, location, 10, **more)
        return self.ledger.put(request, self.now, wait=wait)

    def claim(self, most: int = 2, least: int | None = None, timeout_s: float | None = None, **more: Any) -> Any:
        wait, deadline = more.pop("wait", False), None if timeout_s is None else self.now + timeout_s
        given = {"task_name": "train", "fields": ("x",), "owner": "me", "lease_s": 60.0, **more}
        request = Claim("p", batch_size=most, min_batch=most if least is None else least, **given)
        found = self.ledger.claim(request, self.now, deadline, wait=wait)
        assert isinstance(found, Waiter if wait else Grant)
        return found

    def wait(self, *counts: int, **more: Any) -> Any:
        return self.claim(*counts, wait=True, **more)

    def ack(self, grant: Grant, version: int | None = None, task: str = "train", places: slice = slice(None)) -> None:
        ids = grant.sample_ids[places]
        self.ledger.ack("p", task, ids, [grant.lease] * len(ids), version, self.now)

    def train(self, count: int, version: int | None = None, task: str = "train") -> list[str]:
        grant = self.claim(count, task_name=task)
        self.ack(grant, version, task)
        return grant.sample_ids

    def clear(self, ids: Sequence[str], reason: str | None = None) -> int:
        return self.ledger.clear("p", ids, reason, self.now)

    def rewind(self, version: int, task: str = "train") -> tuple[int, int]:
        return self.ledger.rewind("p", task, version, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.expire(self.now)

    def settled(self) -> list[Waiter]:
        return self.ledger.take_settled()

    def restart(self) -> None:
        self.ledger = restore(snapshot(self.ledger))

    @property
    def stats(self) -> dict[str, Any]:
        return self.ledger.stats(self.now)["p"]


@pytest.fixture
def desk() -> Desk:
    return Desk()


# refusals -------------------------------------------------------------------------------------------------


def settle(ids: str, *leases: Any, task: str = "train") -> Callable[[Desk], None]:
    return lambda desk: desk.ledger.ack("p", task, list(ids), leases, None, 0.0)


def spec(**changed: Any) -> Callable[[Desk], None]:
    return lambda desk: desk.ledger.register(replace(desk.spec, **changed))


PLAIN = [
    (lambda desk: desk.put(["b", "b"]), errors.SampleError, "twice"),
    (lambda desk: desk.put(["b"], shapes={"x": ("<i4", 1)}), errors.FieldError, "x"),
    (lambda desk: desk.put(["b"], shapes={"x": ("<i8", 2)}), errors.FieldError, "x"),
    (lambda desk: desk.put(["b"], shapes={"x": ("<i8", 1), "z": ("<i8", 1)}), errors.SpecError, "z"),
    (lambda desk: desk.put(["b"], epoch=-1), errors.EpochError, "was rewound"),
    (lambda desk: desk.put(["a", "gone"]), errors.SampleError, "ids are used once"),
    (lambda desk: desk.put(["kept", "b"]), errors.SampleError, "kept"),
    (lambda desk: desk.put(["b"], group_ids=["g"]), errors.SampleError, "has samples without groups"),
    (lambda desk: desk.put(list("bcdefg"), wait=True), errors.SpecError, "never fit"),
    (lambda desk: desk.wait(6), errors.SpecError, "can never be satisfied"),
    (lambda desk: desk.ledger.locate("p", ["gone"], ["x"]), errors.SampleError, "'gone' was consumed or cleared"),
    (lambda desk: desk.ledger.locate("p", ["a", "z"], ["x"]), errors.SampleError, "no sample 'z'"),
    (lambda desk: desk.clear(["a", "z"]), errors.SampleError, "never had a sample 'z'"),
    (lambda desk: desk.ledger.write_tags("p", ["a", "a"], [{}, {}], 0.0), errors.SampleError, "twice"),
    (spec(fields=("x",)), errors.SpecError, "fields"),
    (spec(tasks=("train",)), errors.SpecError, "tasks"),
    (spec(capacity=4), errors.SpecError, "capacity"),
    (spec(group_size=2), errors.SpecError, "group_size"),
    (spec(on_full="raise"), errors.SpecError, "on_full"),
    (spec(max_attempts=2), errors.SpecError, "max_attempts"),
    (settle("aa", 3, 3), errors.SampleError, "twice"),
    (settle("a", 3, task="judge"), errors.LeaseLostError, "lost"),
    *((settle("a", wrong), errors.LeaseLostError, "lost") for wrong in HOSTILE_LEASES),
    *((settle("ah", 3, wrong), errors.LeaseLostError, "lost") for wrong in HOSTILE_LEASES),
]
PAIRS = [
    (lambda desk: desk.put(["b"]), errors.SampleError, "has groups, and these samples have none"),
    (
        lambda desk: desk.put(["b", "c"], group_ids=["g", "g"]),
        errors.SampleError,
        "have 3 samples, and 2 make it whole",
    ),
    (
        lambda desk: desk.put(["a", "b"], ["y"], group_ids=["h", "h"]),
        errors.SampleError,
        "is in group 'g', not 'h'",
    ),
    (lambda desk: desk.wait(1), errors.SpecError, "groups of 2 never make"),
    (lambda desk: desk.wait(3), errors.SpecError, "groups of 2 never make"),
]


def plain() -> Desk:
    desk = Desk(capacity=5)
    desk.put(["kept", "gone", "a", "h"], tags=[{"k": 1}] * 4)
    desk.train(1, 1)
    desk.train(1)
    assert [desk.clear(["kept", "gone", "gone"]) for _ in range(2)] == [2, 0]
    assert desk.claim(1).lease == 3
    return desk


def pairs() -> Desk:
    desk = Desk(group_size=2)
    desk.put(["a"], group_ids=["g"])
    assert desk.wait(3, 2)
    with pytest.raises(errors.ClaimTimeoutError, match="1 are in incomplete groups"):
        desk.claim(2)
    return desk


@pytest.mark.parametrize(("make", "refused"), [*product([plain], PLAIN), *product([pairs], PAIRS)])
def test_refused_call_changes_nothing(make: Callable[[], Desk], refused: Any) -> None:
    (call, error, message), desk = refused, make()
    before = snapshot(desk.ledger)
    with pytest.raises(error, match=message):
        call(desk)
    assert snapshot(desk.ledger) == before


def test_latest_retired_ids_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "REMEMBERED", 3)
    desk.put(list("abcde"))
    desk.clear(list("abcd"))
    desk.restart()
    for one in "bcd":
        with pytest.raises(errors.SampleError, match="ids are used once"):
            desk.put([one])
    desk.put(["a"])
    assert desk.claim(2).sample_ids == ["e", "a"]


# fields and tags -------------------------------------------------------------------------------------


def test_sixty_four_fields() -> None:
    names = tuple(f"f{number}" for number in range(64))
    desk = Desk(fields=names)
    desk.put(["a"], shapes=dict.fromkeys(names[:63], ("<i8", 1)))
    waiter = desk.wait(1, fields=names)
    desk.put(["a"], shapes={"f63": ("<i8", 1)})
    assert desk.settled() == [waiter]
    assert set(desk.ledger.locate("p", ["a"], names)["fields"]) == set(names)


def test_tag_values_keep_their_type() -> None:
    for one, other in product(TAG_VALUES, TAG_VALUES):
        desk = Desk()
        desk.put(["a", "b"], tags={"v": one})
        desk.put(["c", "d"], tags=[{"v": other}] * 2)
        desk.restart()
        found = tags_by_sample(desk.claim(4).tags, 4)
        assert [repr(tags["v"]) for tags in found or ()] == [repr(one)] * 2 + [repr(other)] * 2


def test_too_many_tag_names_are_refused(desk: Desk) -> None:
    ids = [f"{number}" for number in range(257)]
    desk.put(ids[:256], tags=[{f"at-{one}": 1} for one in ids[:256]])
    with pytest.raises(errors.TagError, match="there would be 257 different tags") as caught:
        desk.put(ids[256:], tags=[{"more": 1}])
    assert "into its value" in str(caught.value)
    assert desk.stats["produced"] == 256
    desk.clear(ids[8:9])
    desk.put(ids[256:], tags=[{"more": 1}])
    found = tags_by_sample(desk.claim(256).tags, 256) or ()
    assert (found[0], found[-1]) == ({"at-0": 1}, {"more": 1})


# claims -----------------------------------------------------------------------------------------------


def test_predicate_claims_in_order(desk: Desk) -> None:
    ids = [f"s-{number:05d}" for number in range(20_000)]
    desk.put(ids, tags=[{"v": number} for number in range(20_000)])
    for round_ in range(5):
        found = desk.claim(10, where=Tag("v") >= 15_000).sample_ids
        assert found == ids[15_000 + 10 * round_ : 15_010 + 10 * round_]
    assert desk.claim(20, where=Tag("v") >= 14_990).sample_ids == ids[14_990:15_000] + ids[15_050:15_060]
    assert desk.train(19_930) == ids[:14_990] + ids[15_060:]


@pytest.mark.parametrize("how", ["release", "expire", "gone", "rewind"])
@pytest.mark.parametrize("where", [None, Tag("v") == 1])
@pytest.mark.parametrize("groups", [None, list("gghhiijj")])
def test_samples_given_back_come_first(how: str, where: Any, groups: list[str] | None) -> None:
    desk = Desk(group_size=None if groups is None else 2)
    desk.put(list("abcdefgh"), group_ids=groups, tags=[{"v": 1}] * 8)
    grants = [desk.claim(2, where=where), desk.claim(4, where=where)]
    if how == "release":
        for grant in reversed(grants):
            ids = grant.sample_ids
            desk.ledger.release("p", "train", ids, [grant.lease] * len(ids), 0.0)
    elif how == "expire":
        desk.pass_time(61.0)
    elif how == "gone":
        desk.ledger.owner_gone("me", 0.0)
    else:
        for version, grant in enumerate(grants, 2):
            desk.ack(grant, version)
        desk.rewind(1)
    assert desk.claim(8, where=where).sample_ids == list("abcdefgh")
    assert desk.stats["tasks"]["train"]["redelivered"] == 6


@pytest.mark.parametrize(("size", "message"), [(3, "2 in incomplete groups"), (None, "2 in groups larger than 1")])
def test_end_of_stream_tells_the_rest(size: int | None, message: str) -> None:
    desk = Desk(group_size=size)
    desk.put(["a", "b"], group_ids=["g", "g"])
    desk.ledger.seal("p", 0.0)
    with pytest.raises(errors.EndOfStreamError, match=message):
        desk.claim(size or 1)


def test_groups_without_a_size_come_whole(desk: Desk) -> None:
    desk.put(["single"])
    desk.clear(["single"])
    waiter = desk.wait(2)
    desk.put(["a", "b", "c"], group_ids=["g", "g", "h"])
    assert desk.settled() == [waiter]
    with pytest.raises(errors.SampleError, match="'h' is already there, and came whole"):
        desk.put(["d"], group_ids=["h"])
    assert (waiter.outcome.sample_ids, desk.claim(9, 1).sample_ids) == (["a", "b"], ["c"])


# waiting ----------------------------------------------------------------------------------------------


def test_claims_of_other_fields_take_turns(desk: Desk) -> None:
    waiters = [desk.wait(1, fields=fields) for fields in [("x",), ("x",), ("x", "y"), ("x",), ("x", "y")]]
    for number in range(5):
        desk.put([f"s{number}"], ["x", "y"])
    assert desk.settled() == waiters


def test_a_claim_behind_a_larger_one_says_so(desk: Desk) -> None:
    desk.put(["a", "b"])
    desk.wait(3)
    with pytest.raises(errors.ClaimTimeoutError, match="an earlier claim waits for more"):
        desk.claim(1)


def test_expired_lease_serves_a_claim_in_its_last_moment(desk: Desk) -> None:
    desk.put(["a"])
    desk.claim(1, lease_s=5.0)
    waiters = [desk.wait(1, timeout_s=5.0) for _ in range(2)]
    desk.pass_time(4.9)
    assert desk.settled() == []
    desk.pass_time(0.1)
    assert desk.settled() == waiters
    assert waiters[0].outcome.sample_ids == ["a"]
    assert isinstance(waiters[1].outcome, errors.ClaimTimeoutError)


def test_leases_without_a_time_end_with_their_owner(desk: Desk) -> None:
    desk.put(list("abcd"))
    grants = [desk.claim(1, lease_s=None), desk.claim(1, owner="you"), desk.claim(1, lease_s=None)]
    desk.restart()
    desk.pass_time(50.0)
    ids, leases = zip(*((one.sample_ids[0], one.lease) for one in grants), strict=True)
    desk.ledger.extend("p", "train", ids, leases, 9.0, desk.now)
    oldest = [{"owner": owner, "task": "train", "age": 50.0, "samples": n} for owner, n in (("me", 2), ("you", 1))]
    assert desk.stats["leases"] == oldest
    desk.pass_time(1e9)
    assert desk.stats["leases"] == [{**oldest[0], "age": 1e9 + 50.0}]
    desk.ledger.extend("p", "train", ids[:1], leases[:1], 9.0, desk.now)
    assert desk.ledger.next_deadline() == float("inf"), "an extension never shortens a lease"
    assert desk.ledger.owner_gone("me", desk.now) == 2


def test_attempts_are_counted_by_task() -> None:
    """A claim that its client never got, or that a rewind ended, is not one."""
    desk = Desk(max_attempts=2)
    desk.put(["a", "b"])
    for end in ("end_lease", "rewind", "owner_gone"):
        grant = desk.claim(2, lease_s=None)
        if end == "end_lease":
            desk.ledger.end_lease("p", grant.lease, desk.now)
        elif end == "rewind":
            desk.rewind(0)
        else:
            desk.ledger.owner_gone("me", desk.now)
    desk.claim(1, task_name="judge", lease_s=1.0)
    desk.pass_time(1.0)
    desk.restart()
    desk.claim(1, lease_s=1.0)
    desk.pass_time(1.0)
    assert (desk.stats["gone"], desk.claim(2, 1).sample_ids) == ({"dead": 1}, ["b"])


def test_predicate_that_cannot_compare_fails_the_claim_only(desk: Desk) -> None:
    waiters = [desk.wait(2, where=Tag("v") > 1, timeout_s=9.0) for _ in range(2)]
    desk.put(["a"], tags=[{"v": 1}])
    other = desk.wait(2, where=Tag("v") == "x")
    desk.put(["b"], tags=[{"v": "x"}])
    assert desk.settled() == waiters
    assert all(isinstance(one.outcome, errors.TagError) for one in waiters)
    with pytest.raises(errors.TagError, match="can't be compared") as told:
        desk.claim(1, where=Tag("v") > 1)
    assert told.value.sample_ids == ("b",)
    desk.clear(told.value.sample_ids)
    waiter = desk.wait(1, where=Tag("v") > 1)
    desk.put(["c"], tags=[{"v": 2}])
    assert desk.settled() == [waiter]
    assert not other.settled


# versions ---------------------------------------------------------------------------------------------


def test_rewound_samples_come_in_the_order_of_their_versions(desk: Desk) -> None:
    desk.put(list("abcd"))
    grant = desk.claim(4)
    for place, version in ((3, 2), (2, 3), (0, 1), (1, 4)):
        desk.ack(grant, version, places=slice(place, place + 1))
    desk.rewind(0)
    assert desk.claim(4).sample_ids == ["a", "d", "c", "b"]
    desk.ledger.commit("p", "train", 1, 0.0)
    with pytest.raises(errors.SpecError, match="rewind to 1 or later"):
        desk.rewind(0)


def test_put_that_waits_for_room_keeps_its_epoch() -> None:
    desk = Desk(capacity=1)
    desk.put(["a"])
    waiter = desk.put(["b"], wait=True)
    desk.rewind(0)
    assert desk.settled() == [waiter]
    assert isinstance(waiter.outcome, errors.EpochError)
    desk.clear(["a"])
    assert desk.put(["b"]) is None


def test_rewind_keeps_samples_without_an_integer_version(desk: Desk) -> None:
    desk.put(list("abcdef"), tags=[{"weight_version": version} for version in (1, 2, 3, "four", None, 5)])
    assert desk.rewind(1) == (0, 3)
    assert desk.stats["gone"] == {"orphaned": 3}
    assert desk.claim(3).sample_ids == ["a", "d", "e"]


# stats ------------------------------------------------------------------------------------------------


def buckets(found: dict[str, Any]) -> dict[float, int]:
    """The counts that are not 0, by the upper end of the bucket."""
    return {end: count for end, count in zip([*found["bounds"], float("inf")], found["counts"], strict=True) if count}


@pytest.mark.parametrize("restarts", [False, True])
def test_lost_bytes(desk: Desk, restarts: bool) -> None:
    """A sample with any lost field is cleared, whatever its state; a rewind does not bring it back."""
    desk.ledger.delete("p")
    desk.ledger.register(replace(desk.spec, tasks=("train",)))
    here, there = {"unit": 1, "owner": "actor"}, {"unit": 2, "owner": "other"}
    desk.put("abcdef", location=here)
    desk.put("ghi", location=there)
    desk.put("gf", ["y"], location={"unit": 1, "owner": "judge"})
    desk.train(2, 1)  # a and b, which a commit covers
    desk.train(2, 2)  # c and d, which none covers
    desk.clear("c", "stale")
    held = desk.claim(3)  # e, f and g
    waiting = desk.wait(1, where=Tag("weight_version") == 0)
    lost = desk.ledger.lose({"unit": 1}, desk.now)
    assert lost == [("actor", "p", list("abdef")), ("other", "p", ["g"])]
    assert desk.ledger.lose({"unit": 1}, desk.now) == []
    if restarts:
        desk.restart()
    assert (desk.stats["gone"], desk.stats["alive"]) == ({"lost": 7}, 2)
    with pytest.raises(errors.LeaseLostError):
        desk.ack(held)
    assert not waiting.settled
    assert desk.ledger.commit("p", "train", 1, desk.now) == 2
    assert desk.stats["gone"] == {"lost": 5, "consumed": 2}
    assert desk.rewind(1) == (0, 0)
    assert (desk.stats["gone"], desk.stats["resident"]) == ({"lost": 5, "consumed": 2}, 2)
    assert desk.claim(2).sample_ids == ["h", "i"]
    assert len(desk.ledger.locations()) == 1


def test_reasons_after_256_count_as_other(desk: Desk) -> None:
    ids = [f"{number}" for number in range(400)]
    desk.put(ids)
    desk.train(400, 1, "judge")
    for one in ids[:300]:
        desk.clear([one], f"because of {one}")
    desk.clear(ids[300:301], "because of 7")
    desk.clear(ids[301:302])
    gone = desk.stats["gone"]
    assert (gone["because of 7"], gone["other"], gone["cleared"], len(gone)) == (2, 44, 1, 258)
    assert desk.rewind(0, "judge") == (400, 0)
    assert desk.stats["gone"] == {}


def test_ages_and_lags(desk: Desk) -> None:
    desk.put(["a", "b"])
    desk.now = 2.0
    desk.put(["c"])
    desk.claim(1)
    desk.now = 50.0
    assert buckets(desk.stats["tasks"]["train"]["age"]) == {100.0: 2}
    desk.claim(2)
    found = desk.stats["tasks"]["train"]
    assert (buckets(found["age"]), buckets(found["lag"])) == ({}, {3.0: 1, 100.0: 2})
    assert found["lag"]["sum"] == 2.0 + 50.0 + 48.0


# snapshots --------------------------------------------------------------------------------------------


def test_snapshot_restores_the_ledger(desk: Desk) -> None:
    ids = [f"{number}-\N{GRINNING FACE}-" + "x" * number for number in range(100)]
    desk.put(ids, tags=[{"who": "né" if number % 2 else None} for number in range(100)], lengths=[7] * 100)
    desk.train(40, 1)
    desk.claim(50)
    desk.clear(ids[35:60], "stale")
    desk.wait(1000)
    data = snapshot(desk.ledger)
    again = restore(data)
    assert snapshot(again) == data
    assert again.stats(5.0)["p"]["waiting"] == {"puts": 0, "claims": 0}
    assert again.take_freed() == desk.ledger.take_freed()
    for bad in (b"", data[:4], data[:-1], b"tgledger" + data[8:]):
        with pytest.raises(errors.StorageError, match="can't be read"):
            restore(bad)
