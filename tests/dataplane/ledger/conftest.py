"""A ledger with one partition, called in few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunegym.dataplane.ledger.ledger import Ledger
from tunegym.dataplane.ledger.requests import Claim, Grant, Put, Waiter, tags_of
from tunegym.dataplane.model import PartitionSpec

SHAPES = {"x": ("<i8", 1), "y": ("<f4", 2)}


class Desk:
    """Calls a ledger for one partition at the time ``now``."""

    def __init__(self, **spec: Any) -> None:
        self.ledger = Ledger()
        self.spec = PartitionSpec(**{"partition_id": "p", "fields": ("x", "y"), "tasks": ("train", "judge"), **spec})
        self.ledger.register(self.spec)
        self.now = 0.0
        self.blocks = 0

    def request(self, ids: Sequence[str], fields: Sequence[str] = ("x",), **more: Any) -> Put:
        self.blocks += 1
        shapes = more.pop("shapes", {name: SHAPES[name] for name in fields})
        return Put("p", list(ids), shapes, {"n": self.blocks}, 10, **more)

    def put(self, ids: Sequence[str], fields: Sequence[str] = ("x",), **more: Any) -> None:
        assert self.ledger.put(self.request(ids, fields, **more), self.now) is None

    def put_or_wait(self, ids: Sequence[str], **more: Any) -> Waiter | None:
        return self.ledger.put(self.request(ids, **more), self.now, wait=True)

    def wanted(self, most: int = 2, least: int | None = None, **more: Any) -> Claim:
        given = {"task_name": "train", "fields": ("x",), "owner": "me", "lease_s": 60.0, **more}
        return Claim("p", batch_size=most, min_batch=most if least is None else least, **given)

    def claim(self, most: int = 2, least: int | None = None, **more: Any) -> Grant:
        found = self.ledger.claim(self.wanted(most, least, **more), self.now)
        assert isinstance(found, Grant)
        return found

    def wait(self, most: int = 2, least: int | None = None, timeout_s: float | None = None, **more: Any) -> Waiter:
        deadline = None if timeout_s is None else self.now + timeout_s
        found = self.ledger.claim(self.wanted(most, least, **more), self.now, deadline, wait=True)
        assert isinstance(found, Waiter)
        return found

    def ack(self, grant: Grant, version: int | None = None, task: str = "train", places: slice = slice(None)) -> None:
        ids = grant.sample_ids[places]
        self.ledger.ack("p", task, ids, [grant.lease] * len(ids), version, self.now)

    def release(self, grant: Grant, places: slice = slice(None)) -> None:
        ids = grant.sample_ids[places]
        self.ledger.release("p", "train", ids, [grant.lease] * len(ids), self.now)

    def train(self, count: int, version: int | None = None, task: str = "train", **more: Any) -> list[str]:
        grant = self.claim(count, task_name=task, **more)
        self.ack(grant, version, task)
        return grant.sample_ids

    def clear(self, ids: Sequence[str], reason: str | None = None) -> int:
        return self.ledger.clear("p", ids, reason, self.now)

    def commit(self, version: int, task: str = "train") -> int:
        return self.ledger.commit("p", task, version, self.now)

    def rewind(self, version: int, task: str = "train") -> tuple[int, int]:
        return self.ledger.rewind("p", task, version, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.expire(self.now)

    def settled(self) -> list[Waiter]:
        return self.ledger.take_settled()

    @property
    def stats(self) -> dict[str, Any]:
        return self.ledger.stats(self.now)["p"]

    def counts(self, task: str = "train") -> tuple[int, int, int]:
        """The number of samples that are free, leased and acked."""
        found = self.stats["tasks"][task]
        return found["free"], found["leased"], found["acked"]


def each_tags(grant: Grant) -> list[dict[str, Any]] | None:
    return tags_of(grant.tags, len(grant.sample_ids))


@pytest.fixture
def open_desk() -> Callable[..., Desk]:
    return Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def one_task() -> Desk:
    return Desk(tasks=("train",))


@pytest.fixture
def pairs() -> Desk:
    return Desk(group_size=2)


@pytest.fixture
def small() -> Desk:
    return Desk(tasks=("train",), capacity=3)
