"""The contract of a data plane, by subject: fixtures here; ``tunegym.testing.dataplane`` has the whole suite."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import DataPlaneClient, connect
from tunegym.dataplane.errors import DataPlaneError

P = "rollouts"
PATIENCE_S = 60.0
LINGER_S = 0.5

Join = Callable[..., DataPlaneClient]
Begin = Callable[..., "Future[Any]"]


def named(count: int, first: int = 0) -> list[str]:
    """Sample ids."""
    return [f"s-{number}" for number in range(first, first + count)]


def tokens(ids: Sequence[str]) -> list[np.ndarray]:
    """Rows of different lengths that identify their samples."""
    return [np.full(1 + int(one.rpartition("-")[2]) % 5, int(one.rpartition("-")[2])) for one in ids]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for another thread or process; fail if it takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.005)


class PlaneFixtures(ABC):
    """A plane for each test, used through the client only.

    Attributes:
        durable: whether the plane reports that it outlives its processes.
    """

    durable = False

    @abstractmethod
    def url(self, folder: Path) -> str:
        """The URL of a plane for one test, which need not exist yet."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """The folder of the plane."""
        return tmp_path / "plane"

    @pytest.fixture
    def join(self, folder: Path) -> Iterator[Join]:
        """Makes clients, which are closed at the end."""
        clients: list[DataPlaneClient] = []

        def joined(how: Callable[..., DataPlaneClient] = connect, **options: Any) -> DataPlaneClient:
            clients.append(how(self.url(folder), **{"linger_s": LINGER_S, **options}))
            return clients[-1]

        yield joined
        for client in clients:
            client.close()

    @pytest.fixture
    def plane(self, join: Join) -> DataPlaneClient:
        """A client of a plane with one partition of two fields and two tasks."""
        client = join()
        client.register_partition(P, ["tokens", "reward"], ["train", "judge"])
        return client

    @pytest.fixture
    def begin(self, plane: DataPlaneClient) -> Iterator[Begin]:
        """Starts a call in a thread, and returns when the plane reports that it waits."""
        with ThreadPoolExecutor(16) as threads:

            def started(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
                before = sum(plane.stats()[P]["waiting"].values())
                future = threads.submit(call, *args, **kwargs)
                until(
                    lambda: future.done() or sum(plane.stats()[P]["waiting"].values()) > before,
                    "a call waits",
                )
                return future

            yield started
            with contextlib.suppress(DataPlaneError):  # end calls that still wait
                plane.delete_partition(P)
            plane.close()
