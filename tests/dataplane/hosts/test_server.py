"""A server in a thread: what it does when a call, a reply or a connection is more than it can bear."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.processes import boot_id, process_start_time
from tunegym.dataplane.errors import DataPlaneError
from tunegym.dataplane.hosts import frames, keeper, server
from tunegym.dataplane.hosts.base import Handle, Host
from tunegym.dataplane.hosts.connection import SocketHost
from tunegym.dataplane.hosts.in_process import InProcessHost, SharedLedger
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.keeper import Keeper
from tunegym.dataplane.hosts.server import LOG_BYTES, Server
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.storage.live import LiveSegments
from tunegym.testing.dataplane import until


class Listener(socket.socket):
    """Accepts nobody while ``full``; counts how often that is tried."""

    full = False
    refused = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.full:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Plane:
    """A server, and its clients.

    Attributes:
        built: how often its ledger was brought back.
    """

    def __init__(self, folder: Path) -> None:
        self.built = 0
        self._folder = folder
        self.listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(folder / "s"))
        self.listener.listen()
        self.log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.ftruncate(self.log, LOG_BYTES + 1)
        self._server = Server(self.listener, self._build, os.getuid(), 60.0, self.log)
        (folder / "segments" / "one.segment").touch()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._clients: list[SocketHost] = []

    def _build(self) -> Keeper:
        self.built += 1
        made = Keeper(LedgerJournal(self._folder), LiveSegments(self._folder / "segments"), snapshot, restore)
        made.recover()
        return made

    def _serve(self) -> None:
        try:
            self._server.run()
        finally:  # as if its process had ended
            self.listener.close()
            for connection in self._server._connections.values():
                connection.socket.close()

    def _connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(str(self._folder / "s"))
        return connected

    def client(self) -> SocketHost:
        self._clients.append(SocketHost(self._connect, patience_s=2.0))
        return self._clients[-1]

    def close(self) -> None:
        """The server ends with its last client; that it doesn't before is what the tests are about."""
        last = self.client()
        self._server._linger_s = -1.0
        for client in [*self._clients, last]:
            client.close()
        self._thread.join(30)
        assert not self._thread.is_alive()
        os.close(self.log)


@pytest.fixture
def plane() -> Iterator[Plane]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path may not be long
        one = Plane(Path(folder))
        yield one
        one.close()


def register(client: Host) -> None:
    client.call("register", {"spec": {"partition_id": "p", "fields": ["x"], "tasks": ["t"]}})


def put(client: Host, first: int, count: int) -> None:
    location = {"segment": "one.segment", "at": first}
    names = [f"s{at}" for at in range(first, first + count)]
    shapes = {"x": ("int64", 1)}
    client.call("put", {"partition_id": "p", "sample_ids": names, "shapes": shapes, "location": location})


def claim(client: Host, count: int, wait_s: float | None = 0.0, handle: Handle | None = None) -> list[str]:
    asked = {"partition_id": "p", "task_name": "t", "fields": ["x"], "owner": "whoever it is", "lease_s": 60.0}
    return client.call("claim", {**asked, "batch_size": count, "min_batch": count}, wait_s, handle)["sample_ids"]


def leased(client: Host) -> int:
    return client.call("stats", {})["p"]["tasks"]["t"]["leased"]


def test_a_reply_that_is_larger_than_a_message_may_be(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = plane.client(), plane.client()
    register(client)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(claim, other, 900, None)
        until(lambda: client.call("stats", {})["p"]["waiting"]["claims"] == 1, "it waits")
        monkeypatch.setattr(frames, "LIMIT", 4_500)
        for first in range(0, 900, 100):
            put(client, first, 100)
        with pytest.raises(DataPlaneError, match="answer to this claim is too large") as error:
            waiting.result(30)
    assert error.value.hint == "use smaller batches"
    for count in (800, 900):
        with pytest.raises(DataPlaneError, match="too large"):
            claim(client, count)
    for name in ("q", "r"):
        client.call("register", {"spec": {"partition_id": name, "fields": ["x" * 3000], "tasks": ["t"]}})
    with pytest.raises(DataPlaneError, match="answer to this specs is too large"):
        client.call("specs", {})
    assert leased(client) == 0
    assert claim(client, 10) == [f"s{at}" for at in range(10)]
    assert plane.built == 1


def test_what_a_dead_client_would_have_got_is_wanted_at_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is found out when it is answered, and then nothing else may happen for long."""
    client = plane.client()
    register(client)
    monkeypatch.setattr(server, "LOOK_S", 3600.0)
    with ThreadPoolExecutor(1) as threads:
        for at in range(4):
            with subprocess.Popen(["sleep", "100"]) as owner:
                dying = plane._connect()
                start = process_start_time(owner.pid)
                named = {"name": f"dying-{at}", "pid": owner.pid, "start": start, "boot": boot_id()}
                dying.sendall(frames.pack({"format": server.FORMAT, "client": named}))
                assert dying.recv(1000)
                asked = {"partition_id": "p", "task_name": "t", "fields": ["x"], "owner": "", "lease_s": 60.0}
                waiting = [1, [], "claim", {**asked, "batch_size": 1, "min_batch": 1}, None]
                dying.sendall(frames.pack(waiting))
                until(lambda: client.call("stats", {})["p"]["waiting"]["claims"] == 1, "it waits")
                second = threads.submit(claim, client, 1, None)
                until(lambda: client.call("stats", {})["p"]["waiting"]["claims"] == 2, "both wait")
                owner.kill()
                owner.wait()
                dying.shutdown(socket.SHUT_RD)  # so that it can't be answered, and nothing else is to be seen
                put(client, at, 1)
                assert second.result(30) == [f"s{at}"]
                dying.close()


@pytest.mark.parametrize("kind", [MemoryError, OverflowError, RecursionError, AssertionError, OSError])
def test_whatever_a_call_fails_with_its_caller_is_told(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    client, other = plane.client(), plane.client()
    register(client)
    real = keeper.perform

    def failing(ledger: Any, operation: str, *given: Any, **options: Any) -> Any:
        found = real(ledger, operation, *given, **options)
        if operation == "clear":
            raise kind("too much")
        return found

    put(client, 0, 3)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(claim, other, 4, None)
        until(lambda: client.call("stats", {})["p"]["waiting"]["claims"] == 1, "it waits")
        with monkeypatch.context() as patched:
            patched.setattr(keeper, "perform", failing)
            with pytest.raises(DataPlaneError, match=f"failed at this call: {kind.__name__}: too much"):
                client.call("clear", {"partition_id": "p", "sample_ids": ["s0"], "reason": None})
        put(client, 3, 1)
        assert waiting.result(30) == ["s0", "s1", "s2", "s3"]  # what the failing call did is undone
    assert plane.built == 2


def test_without_a_file_for_it_a_client_waits_until_another_one_hangs_up(plane: Plane) -> None:
    first, second = plane.client(), plane.client()
    plane.listener.full = True
    with ThreadPoolExecutor(1) as threads:
        third = threads.submit(plane.client)
        until(lambda: plane.listener.refused > 0, "it is turned away")
        for _ in range(300):
            assert second.call("specs", {}) == []
        plane.listener.full = False
        first.close()
        assert third.result(30).call("specs", {}) == []
    assert plane.listener.refused < 100  # it is not tried all the time
    assert plane.built == 1


def test_what_a_host_logs_while_it_lives_does_not_fill_the_disk(plane: Plane) -> None:
    plane.client()
    until(lambda: os.fstat(plane.log).st_size == 0, "the log is emptied")


@pytest.mark.parametrize("where", ["in another process", "in this one"])
def test_what_is_still_held_of_an_abandoned_claim_is_given_back(plane: Plane, where: str) -> None:
    shared = SharedLedger(None)
    own = InProcessHost(shared, "me", lambda _: None)
    client = plane.client() if where == "in another process" else own
    register(client)
    put(client, 0, 4)
    handle = Handle()
    assert len(claim(client, 4, handle=handle)) == 4
    assert client.call("clear", {"partition_id": "p", "sample_ids": ["s1"], "reason": None}) == 1
    assert client.abandon(handle) is True
    assert leased(client) == 0
    assert claim(client, 3) == ["s0", "s2", "s3"]


def test_what_the_last_client_said_is_written_down_before_the_end() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = Plane(Path(folder))
        client = first.client()
        register(client)
        put(client, 0, 2)
        assert claim(client, 2) == ["s0", "s1"]
        first.close()
        (Path(folder) / "s").unlink()
        second = Plane(Path(folder))
        again = second.client()
        assert (leased(again), claim(again, 2)) == (0, ["s0", "s1"])
        second.close()
