"""``tunegym serve``: the command line, its clients, and strangers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import SECRET
from tests.sample_servers import deed

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import Connection, ConnectionClosedError, encode
from tunegym.tuning.servers import remote
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.protocol import VERSION, hello
from tunegym.tuning.servers.remote import TcpHost

pytestmark = pytest.mark.slow  # a tunegym serve takes a second or two to start

TROUBLE = "sample_servers:Trouble"
HEADER, MAGIC = struct.Struct("!4sIQ"), b"TGS\x01"
FINE, HANG = deed("fine"), deed("hang")


@pytest.fixture
def make() -> Iterator[Callable[..., TcpHost]]:
    """Hosts that know the token, all closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(address: tuple[str, int], token: str = SECRET, *arguments: Any, **options: Any) -> TcpHost:
            made = TcpHost(address, token, *arguments, **options)
            stack.callback(made.close)
            return made

        yield make


# the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "token", "code", "lines"),
    [
        (["Trouble"], "", 2, ["MODULE:CLASS: 'Trouble' is a bare name", "found:   Trouble", "hint: write"]),
        (["sample_servers:Troubel"], "", 2, ["has no 'Troubel'", 'hint: did you mean "Trouble"?']),
        (["sample_servers:NoClose"], "", 2, ["NoClose has no close()", "hint: "]),
        ([TROUBLE, "--token-file", "/nothing"], "", 1, ["the token file /nothing can't be read: No such file"]),
        ([TROUBLE, "--token-file", "{empty}"], "", 1, ["is empty"]),
        ([TROUBLE, "--token-file", "{short}"], "", 1, ["is shorter than 16 characters, and could", "hint: make one"]),
        ([TROUBLE], "t", 1, ["the token in TUNEGYM_SERVER_TOKEN is shorter than 16 characters"]),
        ([TROUBLE, "--port", "{port}"], "", 1, ["can't be listened on: Address already in use", "choose another"]),
    ],
)
def test_wrong_arguments_are_refused(
    command: Callable, tmp_path: Path, arguments: list[str], token: str, code: int, lines: list[str]
) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "short").write_text("0123456789abcde\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"empty": tmp_path / "empty", "short": tmp_path / "short", "port": taken.getsockname()[1]}
        filled = [argument.format(**values) for argument in arguments]
        process = command(*filled, log=tmp_path / "log", token=token or None)
        assert process.communicate()[0] == ""
    said = (tmp_path / "log").read_text()
    assert process.returncode == code, said
    assert all(line in said for line in lines), said
    assert "Traceback" not in said


def test_tokens(serve: Callable, make: Callable[..., TcpHost], tmp_path: Path) -> None:
    """A fresh one is shown; one from a file is not."""
    fresh = serve(token=None)
    found = re.search(r"^export TUNEGYM_SERVER_TOKEN=([0-9a-f]{32})$", fresh.said, re.MULTILINE)
    assert found, fresh.said
    make(fresh.address, found[1]).start()
    with pytest.raises(ServerLostError, match="token is wrong"):
        make(fresh.address, SECRET).start()
    (tmp_path / "token").write_text("this is from a file\n")
    filed = serve("--token-file", str(tmp_path / "token"))
    make(filed.address, "this is from a file").start()
    assert "this is from a file" not in filed.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_servers_in_good_order(serve: Callable, started: Callable, number: int) -> None:
    served = serve()
    started(served.address, arguments={"close": "0.3"}).step(FINE)
    served.process.send_signal(number)
    assert served.process.wait(60) == 0
    assert "closed in good order" in served.said
    assert "stopping" in served.said
    assert served.process.stdout.read() == ""


def test_a_second_signal_does_not_wait(serve: Callable, started: Callable[..., TcpHost], wait_until: Callable) -> None:
    served = serve()
    started(served.address).send(HANG)
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in served.said)  # two signals at once would count as one
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 0


# clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [
        ({"token": "\U0001f600 é"}, "the token is wrong", "TUNEGYM_SERVER_TOKEN"),
        ({"env_class": "sample_servers:Other"}, "it serves .*:Trouble, and .*:Other is wanted", "env_class"),
        ({"arguments": {"sise": 3}}, r"sise: Trouble\(\) doesn't take this argument .it takes: size, start", '"size"'),
        ({"arguments": {"size": object()}}, "arguments can't be sent: a object", "file"),
        ({"arguments": {"close": "x" * 70_000}}, "over the limit of 65,536", "file"),
    ],
)
def test_clients_that_do_not_fit(
    serve: Callable, make: Callable[..., TcpHost], options: dict[str, Any], reason: str, hint: str
) -> None:
    served = serve()
    with pytest.raises(ServerLostError, match=reason) as lost:
        make(served.address, **options).start()
    assert hint in (lost.value.hint or "")
    assert f"tcp://127.0.0.1:{served.port}" in lost.value.message
    assert served.servers() == []


def test_no_more_than_allowed(serve: Callable, make: Callable[..., TcpHost], wait_until: Callable) -> None:
    served = serve("--max-connections", "1")
    one, other = make(served.address), make(served.address)
    one.start()
    with pytest.raises(ServerFailure, match="already serves 1 connection, and no more are allowed") as failure:
        other.start()
    assert failure.value.lost
    one.close()
    wait_until(lambda: served.servers() == [])
    other.start()


@pytest.mark.parametrize(("what", "most"), [("stop", 8), ("spin", 8), ("hang", 1)])
def test_a_server_that_hangs_is_ended(
    serve: Callable, started: Callable, wait_until: Callable, what: str, most: int
) -> None:
    """Where there is one place only, the next client waits for it."""
    served = serve("--max-connections", str(most))
    host = started(served.address, step_timeout_s=2.0)
    host.step(deed("fork"))
    with pytest.raises(ServerFailure, match=r"no answer within step_timeout_s = 2 s") as failure:
        host.step(deed(what))
    assert failure.value.lost
    host.start()
    host.reset(None, None)
    assert host.step(FINE)[1] == 1.0
    wait_until(lambda: len(served.servers()) == 1)
    wait_until(lambda: "ended, as it continued after its client had hung up" in served.said)
    assert "refused" not in served.said


def test_a_serve_that_is_killed_and_started_again(serve: Callable, started: Callable[..., TcpHost]) -> None:
    served = serve()
    host = started(served.address)
    server = psutil.Process(host.step(FINE)[4]["pid"])
    served.process.kill()
    served.process.wait()
    assert psutil.wait_procs([server], timeout=60)[1] == []
    with pytest.raises(ServerFailure, match=r"the connection to tcp://127.0.0.1:\d+ broke") as failure:
        host.step(FINE)
    assert failure.value.lost
    with pytest.raises(ServerFailure, match="nothing listens there: is tunegym serve running"):
        host.start()
    serve(port=served.port)
    host.start()
    host.reset(None, None)
    assert host.step(FINE)[1] == 1.0


# strangers --------------------------------------------------------------------------------------------


def _lie(connected: socket.socket) -> None:
    channel = Connection(connected)
    channel.send({"protocol": "tunegym-server", "version": VERSION, "nonce": "x"})
    proof = channel.receive(time.monotonic() + 30)["proof"]
    channel.send({"accepted": True, "proof": proof})


GREETING = {"protocol": "tunegym-server", "version": 99, "nonce": "x"}


@pytest.mark.parametrize(
    ("behave", "error", "message"),
    [
        (lambda c: c.sendall(b"HTTP/1.1 400 Bad\r\n\r\n"), ServerLostError, "no message of tunegym's: it begins with"),
        (lambda c: c.recv(1), ServerFailure, r"it says nothing for 2 s: is it a tunegym serve"),
        (lambda c: None, ServerFailure, "it hung up before it let us in"),
        (lambda c: c.sendall(encode({"protocol": "other"})), ServerLostError, "doesn't speak the protocol tunegym-"),
        (lambda c: c.sendall(encode(GREETING)), ServerLostError, f"speaks version 99 .* speaks version {VERSION}"),
        (lambda c: c.sendall(HEADER.pack(MAGIC, 1 << 20, 0)), ServerLostError, "over the limit of 65,536"),
        (_lie, ServerLostError, "the server doesn't know the token"),
    ],
)
def test_something_else_listens(
    make: Callable[..., TcpHost],
    monkeypatch: pytest.MonkeyPatch,
    behave: Any,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(remote, "CONNECT_S", 2.0)

    def run() -> None:
        connected, _ = listener.accept()
        with connected, contextlib.suppress(OSError, ConnectionClosedError):
            behave(connected)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with pytest.raises(error, match=message):
            make(listener.getsockname()).start()
        thread.join(10)


def connect(address: tuple[str, int]) -> tuple[Connection, dict[str, Any]]:
    channel = Connection(socket.create_connection(address, timeout=30))
    return channel, channel.receive(time.monotonic() + 30)


def test_strangers_are_refused_and_do_no_harm(serve: Callable, started: Callable, wait_until: Callable) -> None:
    served = serve()
    host = started(served.address)
    silent = socket.create_connection(served.address, timeout=30)
    oversized = [HEADER.pack(MAGIC, 1 << 31, 1 << 62), HEADER.pack(MAGIC, 65537, 0)]
    for content in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), *oversized):
        with socket.create_connection(served.address, timeout=30) as stranger:
            stranger.sendall(content)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass

    def refusal(message: Any) -> str:
        channel, greeting = connect(served.address)
        good = hello(SECRET, greeting["nonce"], "mine", "", {})
        channel.send({**good, **message} if isinstance(message, dict) else message)
        reply = channel.receive(time.monotonic() + 30)
        channel.close()
        return reply["refused"]

    assert "doesn't speak the protocol" in refusal([1, 2, 3])
    assert "speaks version 7 of the protocol, and this server speaks version 1" in refusal({"version": 7})
    assert "speaks version True" in refusal({"version": True})
    for key in ("nonce", "proof", "class", "arguments"):
        assert f"its {key} " in refusal({key: 4})
    assert refusal({"nonce": "another"}) == "the token is wrong"
    replayed = hello(SECRET, connect(served.address)[1]["nonce"], "mine", "", {})
    assert refusal(replayed) == "the token is wrong", "a proof is good for one greeting only"

    known, greeting = connect(served.address)
    known.send(hello(SECRET, greeting["nonce"], "mine", "", {}))
    assert known.receive(time.monotonic() + 30)["accepted"]
    assert "action_space" in known.receive(time.monotonic() + 60)
    assert len(served.servers()) == 2
    known.send([["odd"], 1])  # garbage after the handshake ends only that server
    wait_until(lambda: len(served.servers()) == 1)
    known.close()
    assert host.step(FINE)[1] == 1.0
    silent.close()
