"""The side of a connection where the server is: builds it, and answers for it until the other side hangs up.

The first message is the welcome: the class, its spaces and whether it has ``apply_env_params``, or why it could not be
built. Then each request, ``[call, argument, ...]``, has one answer: ``["ok", value, seconds]``, or ``["raised", text,
seconds]`` for what the server's own code raised. ``main`` runs this in a server process (see ``process``).
"""

from __future__ import annotations

import faulthandler
import os
import reprlib
import socket
import sys
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tunegym.core.references import resolve
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, decode, encode
from tunegym.tuning.ports import GymServer
from tunegym.tuning.servers.host import error_text
from tunegym.tuning.spaces import SpaceError, describe

MOST_LEFT_OUT = 100
"""Keys of ``info`` that can't be sent are named in the log, but not more than this many."""


class AnswerError(Exception):
    """The server returned something that is no answer."""


def serve(connection: Connection, name: str, build: Callable[[], GymServer]) -> None:
    """Build the server and answer until the other side hangs up, then close it."""
    try:
        server = build()
    except Exception as error:
        traceback.print_exc()
        connection.send({"failed": f"it could not be built: {error_text(error)}"})
        return
    session = _Session(server)
    try:
        try:
            welcome = _welcome(server, name)
        except (AttributeError, SpaceError) as error:
            connection.send({"failed": f"it can't be used: {error}"})
            return
        connection.send(welcome)
        while True:
            connection.send_frame(session.answer(connection.receive()))
    except ConnectionClosedError:
        return
    except WireError as error:
        _log(f"the other side sent something that is no message: {error}")
    finally:
        session.close()


def _welcome(server: Any, name: str) -> dict[str, Any]:
    described = {}
    for which in ("action_space", "observation_space"):
        if not hasattr(server, which):
            raise SpaceError(f"{name} has no {which}")
        try:
            described[which] = describe(getattr(server, which))
        except SpaceError as error:
            raise SpaceError(f"its {which}: {error}") from None
    applies = callable(getattr(server, "apply_env_params", None))
    return {"class": name, **described, "applies_env_params": applies, "pid": os.getpid()}


class _Session:
    """Answers the requests to one server."""

    def __init__(self, server: GymServer) -> None:
        self._server: Any = server
        self._left_out: set[str] = set()
        self._closed = False
        self._pid = os.getpid()
        self._calls: dict[str, Callable[..., Any]] = {
            "apply_env_params": self._apply_env_params,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }

    def answer(self, request: Any) -> bytes:
        """Return the frame of the reply. Raises ``WireError`` for what is no request."""
        name, *arguments = request if isinstance(request, list) and request else [None]
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            raise WireError(f"{reprlib.repr(request)} is no request")
        began = perf_counter()
        try:
            reply = ["ok", call(*arguments), perf_counter() - began]
        except Exception as error:
            took = perf_counter() - began
            traceback.print_exc()
            text = str(error) if isinstance(error, AnswerError) else error_text(error)
            reply = ["raised", f"{name}: {text}", took]
        if os.getpid() != self._pid:  # the server forked, and this is the copy
            os._exit(0)
        return self._frame(str(name), reply)

    def close(self) -> None:
        """Close the server, unless that was done."""
        try:
            self._close()
        except Exception as error:
            traceback.print_exc()
            _log(f"the server's close() failed: {error_text(error)}")

    def _apply_env_params(self, params: dict[str, Any]) -> None:
        self._server.apply_env_params(params)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> list[Any]:
        answer = self._server.reset(seed=seed, options=options)
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise AnswerError(f"it gave back {_kind(answer)}, and not (observation, info)")
        observation, info = answer
        return [observation, _checked(info)]

    def _step(self, action: Any) -> list[Any]:
        answer = self._server.step(action)
        if not isinstance(answer, tuple | list) or len(answer) != 5:
            expected = "(observation, reward, terminated, truncated, info)"
            raise AnswerError(f"it gave back {_kind(answer)}, and not {expected}")
        observation, reward, terminated, truncated, info = answer
        return [observation, float(reward), bool(terminated), bool(truncated), _checked(info)]

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.close()

    def _frame(self, name: str, reply: list[Any]) -> bytes:
        """Encode the reply. Entries of ``info`` that can't be sent are left out; anything else is an error."""
        try:
            return encode(reply)
        except WireError as error:
            info = reply[1][-1] if isinstance(reply[1], list) else {}
            unfit = [key for key, value in info.items() if not _can_be_sent(key, value)]
            if not unfit:
                return encode(["raised", f"{name}: its answer can't be sent: {error}", reply[2]])
        for key in unfit:
            self._leave_out(info, key)
        return self._frame(name, reply)

    def _leave_out(self, info: dict[Any, Any], key: Any) -> None:
        value = info.pop(key)
        if len(self._left_out) < MOST_LEFT_OUT and str(key) not in self._left_out:
            self._left_out.add(str(key))
            _log(f"info[{key!r}] is left out: {_kind(value)} can't be sent")
            if len(self._left_out) == MOST_LEFT_OUT:
                _log(f"{MOST_LEFT_OUT} keys of info can't be sent; further ones are not named")


def _checked(info: Any) -> dict[Any, Any]:
    if not isinstance(info, dict):
        raise AnswerError(f"its info is {_kind(info)}, and not a dict")
    return dict(info)


def _can_be_sent(key: Any, value: Any) -> bool:
    try:
        encode({key: value})
    except WireError:
        return False
    return True


def _kind(value: Any) -> str:
    name = f"a {type(value).__name__}"
    return f"{name} of {len(value)}" if isinstance(value, tuple | list) else name


def _log(text: str) -> None:
    sys.stderr.write(f"tunegym: {text}\n")
    sys.stderr.flush()


# the process ------------------------------------------------------------------------------------------


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
        serve(connection, reference, lambda: resolve(reference, paths)(**arguments))
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
