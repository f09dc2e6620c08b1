"""The service without HTTP, processes or load. Nothing here depends on how quick the machine is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from tunegym.tuning.servers.http_service import batching
from tunegym.tuning.servers.http_service.batching import Costs, Service
from tunegym.tuning.servers.http_service.knobs import Knobs


class Work:
    """Stands in for the workers: batches wait until they are let go."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, keys: list[bytes], costs: Costs) -> list[bytes]:
        with self._lock:
            self.batches.append(keys)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.go.wait(60)
        with self._lock:
            self.at_once -= 1
        if b"broken" in keys:
            raise ValueError("cannot hash it")
        return [b"digest of " + key for key in keys]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    monkeypatch.setattr(batching, "_digests", work)
    return work


class Client:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked = 0

    def ask(self, *keys: str) -> None:
        for key in keys:
            self.asked += 1
            name = f"{key}#{self.asked}"
            self.service.ask(key.encode(), lambda status, body, name=name: self._note(name, status, body))

    def _note(self, name: str, status: int, body: bytes) -> None:
        assert name not in self.answers, "answered twice"
        self.answers[name] = (status, body)

    async def all_answered(self) -> None:
        await until(lambda: len(self.answers) == self.asked)

    def statuses(self) -> list[int]:
        return sorted(status for status, _ in self.answers.values())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def run(body: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(Client(Service(Costs(0.0, 0.0))))

    asyncio.run(main())


def test_a_full_queue_refuses(work: Work) -> None:
    async def body(client: Client) -> None:
        client.service.turn(Knobs(workers=1, batch_size=1, batch_wait_ms=0, queue_limit=2, cache_size=0))
        client.ask("a", "b", "c", "d", "e")  # a is worked on, b and c wait
        assert client.statuses() == [503, 503]
        work.go.set()
        await client.all_answered()
        assert client.statuses() == [200, 200, 200, 503, 503]
        counts = client.service.counts()
        assert (counts["received"], counts["answered"], counts["refused"]) == (5, 3, 2)

    run(body)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_are_batches_at_once(work: Work, workers: int) -> None:
    async def body(client: Client) -> None:
        client.service.turn(Knobs(workers=workers, batch_size=1, batch_wait_ms=0, cache_size=0))
        client.ask(*(f"k{at}" for at in range(20)))
        await until(lambda: work.at_once == workers)
        assert client.service.counts()["busy"] == workers
        assert client.service.counts()["queued"] == 20 - workers
        work.go.set()
        await client.all_answered()
        assert work.most_at_once == workers

    run(body)


def test_batches_are_as_large_as_the_knob_lets_them(work: Work) -> None:
    async def body(client: Client) -> None:
        client.service.turn(Knobs(workers=1, batch_size=4, batch_wait_ms=0, cache_size=0))
        client.ask(*(f"k{at}" for at in range(10)))
        work.go.set()
        await client.all_answered()
        # The first goes alone: with no wait, a free worker takes what there is.
        assert [len(batch) for batch in work.batches] == [1, 4, 4, 1]
        assert client.service.counts()["items"] == 10

    run(body)


def test_a_free_worker_waits_for_a_full_batch(work: Work) -> None:
    async def body(client: Client) -> None:
        client.service.turn(Knobs(workers=4, batch_size=4, batch_wait_ms=3_600_000, cache_size=0))
        client.ask("a", "b", "c")
        await asyncio.sleep(0.01)
        assert not work.batches
        client.ask("d")
        work.go.set()
        await client.all_answered()
        assert work.batches == [[b"a", b"b", b"c", b"d"]]
        client.ask("e")
        client.service.turn(Knobs(workers=4, batch_size=4, batch_wait_ms=1, cache_size=0))
        await client.all_answered()  # it is tired of waiting
        assert work.batches[1:] == [[b"e"]]

    run(body)


def test_a_turn_of_the_knobs_loses_nothing(work: Work) -> None:
    async def body(client: Client) -> None:
        wide = Knobs(workers=8, batch_size=1, batch_wait_ms=0, queue_limit=256, cache_size=512)
        narrow = Knobs(workers=1, batch_size=16, batch_wait_ms=20, queue_limit=16, cache_size=0)
        client.service.turn(wide)
        client.ask(*(f"k{at}" for at in range(100)))
        assert client.service.counts()["queued"] == 92
        client.service.turn(narrow)
        client.ask("late")  # far above the new limit
        assert client.statuses() == [503]
        work.go.set()
        for at in range(20):
            client.service.turn((wide, narrow)[at % 2])
            client.ask(f"more{at}")
            await asyncio.sleep(0.001)
        await client.all_answered()
        counts = client.service.counts()
        assert counts["received"] == client.asked == counts["answered"] + counts["refused"]
        assert client.statuses().count(200) == counts["answered"] >= 100
        assert (counts["queued"], counts["busy"]) == (0, 0)

    run(body)


def test_the_cache_answers_at_once_and_forgets_what_was_not_used(work: Work) -> None:
    async def body(client: Client) -> None:
        work.go.set()
        client.service.turn(Knobs(batch_wait_ms=0, cache_size=2))
        for key in ("a", "b", "a", "c"):  # b is the one unused for longest
            client.ask(key)
            await client.all_answered()
        asked = len(client.answers)
        client.ask("a", "c")
        assert len(client.answers) == asked + 2
        client.ask("b")
        assert len(client.answers) == asked + 2
        await client.all_answered()
        assert client.service.counts()["hits"] == 3
        client.service.turn(Knobs(cache_size=1))
        assert client.service.counts()["cached"] == 1
        client.service.forget()
        assert client.service.counts()["cached"] == 0

    run(body)


def test_work_that_fails_is_answered(work: Work) -> None:
    async def body(client: Client) -> None:
        work.go.set()
        client.service.turn(Knobs(workers=1, batch_size=1, batch_wait_ms=0))
        client.ask("broken", "fine")
        await client.all_answered()
        assert client.statuses() == [200, 500]
        assert client.service.counts()["failed"] == 1

    run(body)


def test_the_work_itself() -> None:
    async def body(client: Client) -> None:
        client.ask("a", "b")
        await client.all_answered()
        (_, one), (_, other) = client.answers.values()
        assert len(one) == len(other) == 64
        assert one != other

    run(body)
