"""A server elsewhere: a ``tunegym serve`` on loopback, its clients, and strangers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import Connection, ConnectionClosedError, encode
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.protocol import VERSION, hello
from tunegym.tuning.servers.remote import TcpHost

pytestmark = pytest.mark.slow  # a tunegym serve takes a second or two to start

HEADER, MAGIC = struct.Struct("!4sIQ"), b"TGS\x01"


@pytest.fixture
def host(secret: str) -> Iterator[Callable[..., TcpHost]]:
    """Hosts that know the token, all closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(address: tuple[str, int], token: str = secret, *arguments: Any, **options: Any) -> TcpHost:
            made = TcpHost(address, token, *arguments, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def pretend() -> Iterator[Callable[[Callable[[socket.socket], None]], tuple[str, int]]]:
    """Something else that listens: an address, and what is done with the first connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(behave: Callable[[socket.socket], None]) -> tuple[str, int]:
        def run() -> None:
            connected, _ = listener.accept()
            with connected, contextlib.suppress(OSError, ConnectionClosedError):
                behave(connected)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return listener.getsockname()

    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def test_two_clients_have_a_server_each(serve: Callable, host: Callable[..., TcpHost], do: Callable) -> None:
    served = serve()
    one, other = host(served.address), host(served.address)
    for held in (one, other):
        held.start()
        held.reset(None, None)
    one.send(do("fine"))
    other.send(do("fine"))
    first, second = one.receive()[4], other.receive()[4]
    assert first["pid"] != second["pid"]
    assert first["steps"] == second["steps"] == 1
    with pytest.raises(ServerFailure, match="the server died: killed by SIGKILL") as failure:
        one.step(do("die"))
    assert failure.value.lost
    assert other.step(do("fine"))[4]["steps"] == 2
    one.start()
    one.reset(None, None)
    assert one.step(do("fine"))[4]["steps"] == 1


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [
        ({"token": "wrong"}, "the token is wrong", "TUNEGYM_SERVER_TOKEN"),
        ({"token": "\ud83d\ude00 é".encode("utf-16", "surrogatepass").decode("utf-16")}, "the token is wrong", "token"),
        ({"env_class": "trouble:Other"}, "it serves trouble:Trouble, and trouble:Other is wanted", "env_class"),
        ({"arguments": {"sise": 3}}, r"sise: Trouble\(\) doesn't take this argument .it takes: size, closes", "'size'"),
        ({"arguments": {"size": object()}}, "arguments can't be sent: a object", "file"),
        ({"arguments": {"closes": "x" * 70_000}}, "over the limit of 65,536", "file"),
    ],
)
def test_what_does_not_belong_together(
    serve: Callable, host: Callable[..., TcpHost], options: dict[str, Any], reason: str, hint: str
) -> None:
    served = serve()
    with pytest.raises(ServerLostError, match=reason) as lost:
        host(served.address, **options).start()
    assert hint in (lost.value.hint or "")
    assert f"tcp://127.0.0.1:{served.port}" in lost.value.message
    assert served.children() == []


def test_nothing_listens(host: Callable[..., TcpHost]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    said = f"tcp://127.0.0.1:{address[1]}: nothing listens there: is tunegym serve running"
    with pytest.raises(ServerFailure, match=said) as failure:
        host(address).start()
    assert failure.value.lost


def test_something_else_listens(host: Callable[..., TcpHost], pretend: Callable) -> None:
    address = pretend(lambda connected: connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(ServerLostError, match="this is no message of tunegym's: it begins with b'HTTP'") as lost:
        host(address).start()
    assert "tunegym serve" in (lost.value.hint or "")
    address = pretend(lambda connected: connected.recv(1))
    with pytest.raises(ServerFailure, match=r"it says nothing for 0\.2 s: is it a tunegym serve"):
        host(address, connect_s=0.2).start()
    address = pretend(lambda connected: None)
    with pytest.raises(ServerFailure, match="it hung up before it let us in"):
        host(address).start()
    address = pretend(lambda connected: connected.sendall(encode({"protocol": "other"})))
    with pytest.raises(ServerLostError, match="doesn't speak the protocol tunegym-server"):
        host(address).start()


def test_another_version_listens(host: Callable[..., TcpHost], pretend: Callable) -> None:
    greeting = {"protocol": "tunegym-server", "version": 99, "nonce": "x"}
    address = pretend(lambda connected: connected.sendall(encode(greeting)))
    with pytest.raises(
        ServerLostError, match=f"speaks version 99 of the protocol, .* speaks version {VERSION}"
    ) as lost:
        host(address).start()
    assert lost.value.hint == "use the same version of tunegym at both ends"


def test_one_that_does_not_know_the_token_listens(host: Callable[..., TcpHost], pretend: Callable) -> None:
    def lie(connected: socket.socket) -> None:
        channel = Connection(connected)
        channel.send({"protocol": "tunegym-server", "version": VERSION, "nonce": "x"})
        proof = channel.receive(time.monotonic() + 5)["proof"]
        channel.send({"accepted": True, "proof": proof})

    with pytest.raises(ServerLostError, match="doesn't know the token"):
        host(pretend(lie)).start()


def test_an_oversized_answer_is_not_read(host: Callable[..., TcpHost], pretend: Callable) -> None:
    address = pretend(lambda connected: connected.sendall(HEADER.pack(MAGIC, 1 << 20, 0)))
    with pytest.raises(ServerLostError, match="over the limit of 65,536"):
        host(address).start()


def connect(address: tuple[str, int]) -> tuple[Connection, dict[str, Any]]:
    channel = Connection(socket.create_connection(address, timeout=10))
    return channel, channel.receive(time.monotonic() + 10)


def answer_to(address: tuple[str, int], message: Callable[[dict[str, Any]], Any]) -> Any:
    channel, greeting = connect(address)
    try:
        channel.send(message(greeting))
        return channel.receive(time.monotonic() + 10)
    finally:
        channel.close()


def test_strangers_are_refused_and_harm_nobody(
    serve: Callable, host: Callable[..., TcpHost], do: Callable, secret: str
) -> None:
    served = serve()
    held = host(served.address)
    held.start()
    held.reset(None, None)
    silent = socket.create_connection(served.address, timeout=10)
    contents = [
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(1000),
        HEADER.pack(MAGIC, 1 << 31, 1 << 62),
        HEADER.pack(MAGIC, 65537, 0),
    ]
    for content in contents:
        with socket.create_connection(served.address, timeout=10) as stranger:
            stranger.sendall(content)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass
    reply = answer_to(served.address, lambda greeting: [1, 2, 3])
    assert "doesn't speak the protocol" in reply["refused"]
    good = lambda greeting: hello(secret, greeting["nonce"], "mine", "", {})  # noqa: E731
    reply = answer_to(served.address, lambda greeting: {**good(greeting), "version": 7})
    assert "speaks version 7 of the protocol, and this server speaks version 1" in reply["refused"]
    reply = answer_to(served.address, lambda greeting: {**good(greeting), "version": True})
    assert "speaks version True" in reply["refused"]
    for key in ("nonce", "proof", "class", "arguments"):
        reply = answer_to(served.address, lambda greeting, key=key: {**good(greeting), key: 4})
        assert f"its {key} " in reply["refused"]
    reply = answer_to(served.address, lambda greeting: {**good(greeting), "nonce": "another"})
    assert reply["refused"] == "the token is wrong"
    assert held.step(do("fine"))[4]["steps"] == 1
    assert len(served.children()) == 1
    silent.close()


def test_a_proof_is_good_for_one_greeting_only(serve: Callable, secret: str) -> None:
    served = serve()
    channel, greeting = connect(served.address)
    recorded = hello(secret, greeting["nonce"], "mine", "", {})
    channel.close()
    assert answer_to(served.address, lambda _: recorded)["refused"] == "the token is wrong"


def test_garbage_after_the_handshake_ends_only_that_server(
    serve: Callable, host: Callable[..., TcpHost], do: Callable, secret: str, wait: Callable
) -> None:
    served = serve()
    held = host(served.address)
    held.start()
    held.reset(None, None)
    raw = socket.create_connection(served.address, timeout=10)
    channel = Connection(raw)
    greeting = channel.receive(time.monotonic() + 10)
    channel.send(hello(secret, greeting["nonce"], "mine", "", {}))
    assert channel.receive(time.monotonic() + 10)["accepted"]
    assert "action_space" in channel.receive(time.monotonic() + 30)
    channel.send([["odd"], 1])
    wait(lambda: len(served.children()) == 1)
    channel.close()
    assert held.step(do("fine"))[4]["steps"] == 1


def test_no_more_than_allowed(serve: Callable, host: Callable[..., TcpHost], wait: Callable) -> None:
    served = serve("--max-connections", "1")
    one, other = host(served.address), host(served.address)
    one.start()
    with pytest.raises(ServerFailure, match="already serves 1 connection, and no more are allowed") as failure:
        other.start()
    assert failure.value.lost
    one.close()
    wait(lambda: served.children() == [])
    other.start()


@pytest.mark.parametrize(("what", "most"), [("hang", 8), ("stop", 8), ("spin", 8), ("hang", 1)])
def test_one_that_hangs_is_given_up_and_ended(
    serve: Callable, host: Callable[..., TcpHost], do: Callable, wait: Callable, what: str, most: int
) -> None:
    """Where there is one place only, the next one waits for it."""
    served = serve("--max-connections", str(most))
    held = host(served.address, step_timeout_s=2.0)
    held.start()
    held.reset(None, None)
    held.step(do("fork"))
    with pytest.raises(ServerFailure, match=r"no answer within step_timeout_s = 2 s") as failure:
        held.step(do(what))
    assert failure.value.lost
    held.start()
    held.reset(None, None)
    assert held.step(do("fine"))[4]["steps"] == 1
    wait(lambda: len(served.children()) == 1)
    wait(lambda: "ended, as it went on after its client had hung up" in served.log.read_text())
    assert "refused" not in served.log.read_text()


@pytest.mark.parametrize(("deed", "said"), [("close", "it hung up before it was let in"), ("talk", "more than hello")])
def test_one_that_waits_for_a_place_may_go(
    serve: Callable, host: Callable[..., TcpHost], do: Callable, secret: str, wait: Callable, deed: str, said: str
) -> None:
    served = serve("--max-connections", "1")
    held = host(served.address, step_timeout_s=1.0)
    held.start()
    held.reset(None, None)
    with pytest.raises(ServerFailure):
        held.step(do("hang"))
    channel, greeting = connect(served.address)
    channel.send(hello(secret, greeting["nonce"], "mine", "", {}))
    if deed == "talk":
        channel.send(["reset", None, None])
    else:
        channel.close()
    wait(lambda: said in served.log.read_text())
    held.start()
    assert len(served.children()) == 1
    channel.close()


def test_killed_at_any_moment(serve: Callable, host: Callable[..., TcpHost], do: Callable, wait: Callable) -> None:
    served = serve()
    dice = random.Random(7)
    held = host(served.address)
    steps = 0
    losses: list[tuple[bool, str]] = []
    pid: int | None = None
    while steps < 200:
        try:
            if pid is None:
                held.start()
                held.reset(None, None)
                pid = held.step(do("fork" if dice.random() < 0.3 else "fine"))[4]["pid"]
            if dice.random() < 0.05:
                held.send(do("fine"))
                for _ in range(dice.randrange(2000)):
                    pass
                os.kill(pid, signal.SIGKILL)
                held.receive()
            else:
                held.step(do("fine"))
            steps += 1
        except ServerFailure as failure:
            losses.append((failure.lost, str(failure)))
            pid = None
    held.close()
    assert len(losses) > 3
    assert set(losses) == {(True, "the server died: killed by SIGKILL")}
    wait(lambda: served.children() == [])


def test_a_serve_that_was_killed_and_restarted(
    serve: Callable, host: Callable[..., TcpHost], do: Callable, wait: Callable
) -> None:
    served = serve()
    held = host(served.address)
    held.start()
    held.reset(None, None)
    pid = held.step(do("fine"))[4]["pid"]
    served.process.kill()
    served.process.wait()
    wait(lambda: not os.path.exists(f"/proc/{pid}"))
    with pytest.raises(ServerFailure, match=r"the connection to tcp://127.0.0.1:\d+ broke") as failure:
        held.step(do("fine"))
    assert failure.value.lost
    with pytest.raises(ServerFailure, match="nothing listens there"):
        held.start()
    serve(port=served.port)
    held.start()
    held.reset(None, None)
    assert held.step(do("fine"))[4]["steps"] == 1
