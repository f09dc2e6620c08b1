"""A client's end of a host: many threads share one connection, which may break at any moment."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tunegym.dataplane.errors import ClosedError, NoPlaneError
from tunegym.dataplane.hosts.connection import SocketHost
from tunegym.dataplane.hosts.frames import Inbox, pack


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
                            connected.sendall(pack({"format": 1}))
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
