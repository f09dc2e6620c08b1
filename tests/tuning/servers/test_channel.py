"""How long a message may take."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tunegym.tuning.servers.channel import Channel, Inbox
from tunegym.tuning.servers.wire import encode

VALUE = {"x": np.arange(1000)}
FRAME = encode(VALUE)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Answering(Inbox):
    """Lets the next part be sent only when what came before was taken, and nothing else was there."""

    def __init__(self, theirs: socket.socket, parts: list[bytes]) -> None:
        super().__init__()
        self._theirs, self._parts = theirs, parts

    def add(self, content: bytes | bytearray) -> None:
        super().add(content)
        if content and self._parts:
            threading.Timer(0.05, self._theirs.sendall, (self._parts.pop(0),)).start()


def test_an_answer_that_has_begun_is_taken_however_late_it_is_asked_for(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.sendall(FRAME[:100])
    channel = Channel(ours, inbox=Answering(theirs, [FRAME[100:4000], FRAME[4000:]]))
    found = channel.receive(time.monotonic() - 5.0, silence_s=30.0)
    assert found["x"].tolist() == list(range(1000))


def test_an_answer_that_is_all_there_is_taken(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(FRAME)
    assert Channel(ours).receive(time.monotonic() - 5.0)["x"].shape == (1000,)


@pytest.mark.parametrize("begun", [b"", FRAME[:100]], ids=["nothing", "a part"])
def test_silence_is_too_late(ends: tuple[socket.socket, socket.socket], begun: bytes) -> None:
    ours, theirs = ends
    theirs.sendall(begun)
    with pytest.raises(TimeoutError):
        Channel(ours).receive(time.monotonic() - 5.0, silence_s=0.05)
