"""A client's end of a host: many threads share one connection, which may break at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tunegym.dataplane.errors import ClaimTimeoutError, ClosedError, NoPlaneError
from tunegym.dataplane.hosts import pending
from tunegym.dataplane.hosts.connection import SocketHost
from tunegym.dataplane.hosts.frames import Inbox, pack
from tunegym.dataplane.hosts.line import Line


class Echo:
    """A host that answers what it was asked, later and in any order, and hangs up every now and then.

    Attributes:
        heard: the numbers of all calls, as often as they came.
        reachable: whether it can be connected to.
    """

    def __init__(self, seed: int, hang_up: float) -> None:
        self._rng = random.Random(seed)
        self._hang_up = hang_up
        self.heard: list[int] = []
        self.connections = 0
        self.reachable = True
        self.ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        if not self.reachable:
            raise ConnectionRefusedError("there is none")
        ours, theirs = socket.socketpair()
        self.connections += 1
        self.ends.append(ours)
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        return theirs

    def _serve(self, connected: socket.socket) -> None:
        inbox, waiting, greeted = Inbox(), [], False
        with connected, contextlib.suppress(OSError):
            while True:
                if select.select([connected], [], [], 0.001)[0]:
                    content = connected.recv(1 << 16)
                    if not content:
                        return
                    for message in inbox.add(content):
                        if not greeted:
                            greeted = True
                            connected.sendall(pack({"format": 2}))
                        elif message[0] != "bye":
                            self.heard.append(message[0])
                            waiting.append([message[0], {"value": message[3]}])
                self._rng.shuffle(waiting)
                while waiting and self._rng.random() < 0.7:
                    if self._rng.random() < self._hang_up:
                        return
                    connected.sendall(pack(waiting.pop()))


@pytest.mark.parametrize("seed", range(4))
def test_everybody_gets_the_own_answer(seed: int) -> None:
    echo = Echo(seed, hang_up=0.05)
    host = SocketHost(echo.connect)

    def ask(thread: int) -> list[int]:
        return [host.call("echo", {"x": 1000 * thread + at})["x"] for at in range(60)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [[1000 * thread + at for at in range(60)] for thread in range(8)]
    assert echo.connections > 1
    assert len(set(echo.heard)) == 8 * 60
    host.close()


def test_a_call_that_failed_is_not_sent_later() -> None:
    echo = Echo(1, hang_up=0.0)
    host = SocketHost(echo.connect, patience_s=0.1)
    assert host.call("echo", {"x": 1}) == {"x": 1}
    echo.reachable = False
    echo.ends[-1].shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        with pytest.raises(NoPlaneError, match="can't be reached"):
            host.call("echo", {"x": 2})
    echo.reachable = True
    assert host.call("echo", {"x": 3}) == {"x": 3}
    assert len(echo.heard) == 2
    host.close()
    with pytest.raises(ClosedError):
        host.call("echo", {})


class Late(socket.socket):
    """Whoever receives something of it comes to use that only when told to."""

    armed = False

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(fileno=connected.detach())
        self.received, self.go_on = threading.Event(), threading.Event()

    def recv(self, *given: int) -> bytes:
        content = super().recv(*given)
        if self.armed:
            self.received.set()
            self.go_on.wait(30)
        return content


def test_bytes_of_an_old_connection_do_not_reach_the_next_one() -> None:
    """Half an answer was received when another thread found the connection broken, and made a new one."""
    ends: list[socket.socket] = []

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        ends.append(ours)
        threading.Thread(target=serve, args=(ours, len(ends)), daemon=True).start()
        made.append(Late(theirs))
        return made[-1]

    def serve(connected: socket.socket, number: int) -> None:
        inbox = Inbox()
        with contextlib.suppress(OSError):
            while content := connected.recv(1 << 16):
                for message in inbox.add(content):
                    if isinstance(message, dict):
                        connected.sendall(pack({"format": 2}))
                    elif message[0] == "bye":
                        return
                    elif number > 1:
                        connected.sendall(pack([message[0], {"value": message[3]}]))
                    else:
                        made[0].armed = True
                        connected.sendall(pack([message[0], {"value": "x" * 1000}])[:20])
                        connected.shutdown(socket.SHUT_RDWR)

    made: list[Late] = []
    host = SocketHost(connect)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(host.call, "echo", {"x": 1})
        assert made[0].received.wait(30)
        second = threads.submit(host.call, "echo", {"x": 2})
        while len(made) < 2:
            time.sleep(0.001)
        made[0].go_on.set()
        try:
            assert (first.result(10), second.result(10)) == ({"x": 1}, {"x": 2})
        finally:
            host.close()


def test_a_fork_does_not_keep_the_connection() -> None:
    """The host hears that a client is gone, although a child of it lives."""
    echo = Echo(1, hang_up=0.0)
    host = SocketHost(echo.connect)
    assert host.call("echo", {"x": 1}) == {"x": 1}
    assert host._line is not None
    used = host._line.socket.fileno()
    child = os.fork()
    if not child:
        try:
            os.fstat(used)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert host.call("echo", {"x": 2}) == {"x": 2}
    assert echo.connections == 1
    host.close()


class Script:
    """A host that says what it is told to: ``answer`` gives the answer to a message, None for none, or hangs up."""

    def __init__(self, answer: Callable[[list[Any]], Any]) -> None:
        self._answer = answer
        self.heard: list[list[Any]] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        return theirs

    def _serve(self, connected: socket.socket) -> None:
        inbox = Inbox()
        with connected, contextlib.suppress(OSError):
            while content := connected.recv(1 << 16):
                for message in inbox.add(content):
                    if isinstance(message, dict):
                        connected.sendall(pack({"format": 1}))
                    elif message[0] != "bye":
                        self.heard.append(message)
                        answer = self._answer(message)
                        if answer is not None:
                            connected.sendall(pack([message[0], {"value": answer}]))


CLAIM = {"partition_id": "p", "task_name": "train"}


def test_a_claim_does_not_wait_for_ever_for_a_host_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is given back, whatever came of it, though nobody waits for that."""
    monkeypatch.setattr(pending, "GRACE_S", 0.05)
    script = Script(lambda message: None if message[2] == "claim" else message[2])
    host = SocketHost(script.connect)
    with pytest.raises(ClaimTimeoutError, match="did not answer"):
        host.call("claim", CLAIM, 0.05)
    assert host.call("echo", {}) == "echo"
    assert host.call("echo", {}) == "echo"
    claim, given_up, echo, again = script.heard
    assert given_up[2:4] == ["give_up", {**CLAIM, "operation": "claim", "number": claim[0]}]
    assert claim[0] in echo[1]  # the host must know what to give back until it has
    assert again[1] == []
    assert host._calls == {}
    host.close()


def test_a_claim_that_was_given_up_reaches_the_next_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "GRACE_S", 0.05)
    silent = True

    def answer(message: list[Any]) -> Any:
        if not silent:
            return message[2]
        if message[2] == "give_up":
            raise OSError("it dies")
        return None

    script = Script(answer)
    host = SocketHost(script.connect)
    with pytest.raises(ClaimTimeoutError, match="did not answer"):
        host.call("claim", CLAIM, 0.05)
    silent = False
    assert host.call("echo", {}) == "echo"
    assert "claim" not in [message[2] for message in script.heard[1:]]
    assert script.heard[-2][2:] == ["give_up", {**CLAIM, "operation": "claim", "number": script.heard[0][0]}, 0.0]
    host.close()


@pytest.mark.parametrize("operation", ["claim", "put"])
def test_a_call_that_is_sent_again_waits_for_what_is_left(operation: str) -> None:
    def answer(message: list[Any]) -> Any:
        if len(script.heard) < 4:
            time.sleep(0.01)
            raise OSError("it dies")
        return "done"

    script = Script(answer)
    host = SocketHost(script.connect)
    host.call(operation, CLAIM, 600.0)
    host.call(operation, CLAIM, None)
    *finite, endless = [message[4] for message in script.heard]
    assert len(set(finite)) == 4
    assert finite == sorted(finite, reverse=True)
    assert 0 < finite[-1] < finite[0] <= 600
    assert endless is None
    host.close()


def test_signals_do_not_prolong_a_wait() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: heard.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        assert not line.wait(0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert heard
    theirs.sendall(b"x")
    assert line.wait(30.0)
    line.close()
    assert line.wait(30.0)
    theirs.close()
