"""The side of a connection where the server is: builds it, and answers for it until the other side hangs up.

The first message is the welcome: the server's spaces and whether it has ``apply_env_params``, or why it could not be
built. Then each request, ``[call, argument, ...]``, has one answer: ``["ok", value, seconds]``, or ``["raised", text,
seconds]`` if the server's own code raised. ``main`` runs this in a server process (see ``process``).
"""

from __future__ import annotations

import faulthandler
import os
import reprlib
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tunegym.core.references import resolve
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, decode, encode
from tunegym.tuning.ports import GymServer
from tunegym.tuning.servers.host import InProcess, ServerFailure
from tunegym.tuning.spaces import SpaceError, describe

MOST_LEFT_OUT = 100
"""Keys of ``info`` that can't be sent are named in the log, but not more than this many."""


def serve(connection: Connection, build: Callable[[], GymServer]) -> None:
    """Build the server and answer until the other side hangs up, then close it."""
    host = InProcess(build)
    handler = RequestHandler(host)
    try:
        host.start()
        connection.send(_welcome(host))
        while True:
            connection.send_frame(handler.answer(connection.receive()))
    except ServerFailure as failure:
        _print_cause(failure)
        connection.send({"failed": str(failure)})
    except ConnectionClosedError:
        return
    except WireError as error:
        _log(f"the other side sent something that is no message: {error}")
    finally:
        host.close()


def _welcome(host: InProcess) -> dict[str, Any]:
    welcome: dict[str, Any] = {"applies_env_params": host.applies_env_params}
    for name in ("action_space", "observation_space"):
        try:
            welcome[name] = describe(getattr(host, name))
        except SpaceError as error:
            raise ServerFailure(f"it can't be used: its {name}: {error}") from None
    return welcome


class RequestHandler:
    """Answers requests to one server."""

    def __init__(self, host: InProcess) -> None:
        self._host = host
        self._left_out: set[str] = set()

    def answer(self, request: Any) -> bytes:
        """Return the frame of the reply. Raises ``WireError`` for anything that is no request."""
        try:
            value = self._value(request)
            return self._frame(request[0], ["ok", value, self._host.seconds])
        except ServerFailure as failure:
            _print_cause(failure)
            return encode(["raised", str(failure), self._host.seconds])

    def _value(self, request: Any) -> Any:
        host = self._host
        match request:
            case ["step", action]:
                host.send(action)
                answer: Any = host.receive()
                if not isinstance(answer, tuple | list) or len(answer) != 5:
                    raise ServerFailure("step: it did not return five values")
            case ["reset", seed, options]:
                answer = host.reset(seed, options)
            case ["apply_env_params", dict(params)]:
                return host.apply_env_params(params)
            case ["close"]:
                return host.close_server()
            case _:
                raise WireError(f"{reprlib.repr(request)} is no request")
        *rest, info = answer
        if not isinstance(info, dict):
            raise ServerFailure(f"{request[0]}: its info is {type(info).__name__}, not a dict")
        return [*rest, dict(info)]

    def _frame(self, call: str, reply: list[Any]) -> bytes:
        """Encode the reply. Entries of ``info`` that can't be sent are left out; anything else is a failure."""
        try:
            return encode(reply)
        except WireError as error:
            info = reply[1][-1]
            unfit = [key for key, value in info.items() if not _can_be_sent(key, value)]
            if not unfit:
                raise ServerFailure(f"{call}: its answer can't be sent: {error}") from None
        for key in unfit:
            value = info.pop(key)
            if str(key) not in self._left_out and len(self._left_out) < MOST_LEFT_OUT:
                self._left_out.add(str(key))
                _log(f"info[{key!r}] is left out: a {type(value).__name__} can't be sent")
        return self._frame(call, reply)


def _can_be_sent(key: Any, value: Any) -> bool:
    try:
        encode({key: value})
    except WireError:
        return False
    return True


def _print_cause(failure: ServerFailure) -> None:
    """Print the traceback of the server's code. ``sys.exit()`` in it ends the process, as everywhere."""
    if isinstance(failure.__cause__, SystemExit):
        raise failure.__cause__
    if failure.__cause__ is not None:
        traceback.print_exception(failure.__cause__)


def _log(text: str) -> None:
    sys.stderr.write(f"tunegym: {text}\n")
    sys.stderr.flush()


def main(conversation: str) -> None:
    """Serve one conversation, on the socket with this descriptor; the class and its arguments are on stdin."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    code: Any = 0
    try:
        setup = decode(sys.stdin.buffer.read())
        reference, paths, arguments = setup["reference"], tuple(setup["paths"]), setup["arguments"]
        connection = Connection(socket.socket(fileno=int(conversation)))
        serve(connection, lambda: resolve(reference, paths)(**arguments))
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)  # without waiting for the server's threads
