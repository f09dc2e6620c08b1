"""The side of a connection where the server is: builds it, and answers for it until the other side hangs up.

The first message is the welcome: which class this is, its spaces and whether it has ``apply_env_params``, or why it
could not be built. Then requests, ``[call, argument, ...]``, are answered one by one: ``["ok", value, seconds]``, or
``["raised", text, seconds]`` for what the server's own code raised, with how long the call took.
"""

from __future__ import annotations

import os
import reprlib
import sys
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tunegym.core.wire import Connection, ConnectionClosedError, WireError, encode
from tunegym.tuning.ports import GymServer
from tunegym.tuning.servers.hosting import told
from tunegym.tuning.spaces import SpaceError, describe

MOST_LEFT_OUT = 100
"""As many different keys of ``info`` are named that can't be sent; a server may have another one at every step."""


class AnswerError(Exception):
    """The server gave back something that is no answer, or that can't travel."""


def serve(channel: Connection, name: str, build: Callable[[], GymServer]) -> None:
    """Build the server, and answer until the other side hangs up; ``close`` is then called if nobody asked for it."""
    try:
        server = build()
    except Exception as error:
        _show()
        channel.send({"failed": f"it could not be built: {told(error)}"})
        return
    session = _Session(server)
    try:
        try:
            welcome = _welcome(server, name)
        except (AttributeError, SpaceError) as error:
            channel.send({"failed": f"it can't be used: {error}"})
            return
        channel.send(welcome)
        while True:
            request = channel.receive()
            channel.send_frame(session.answer(request))
    except ConnectionClosedError:
        return
    except WireError as error:
        _say(f"the other side sent something that is no message: {error}")
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
    """One server, and what was already said about it."""

    def __init__(self, server: GymServer) -> None:
        self._server: Any = server
        self._left_out: set[str] = set()
        self._closed = False
        self._pid = os.getpid()
        self._calls: dict[str, Callable[..., Any]] = {
            "apply_env_params": self._server_applies,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }

    def answer(self, request: Any) -> bytes:
        """The reply to a request, as a frame. Raises ``WireError`` for what is none."""
        name, *arguments = request if isinstance(request, list) and request else [None]
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None or not isinstance(name, str):
            raise WireError(f"{reprlib.repr(request)} is no request")
        began = perf_counter()
        try:
            reply = ["ok", call(*arguments), perf_counter() - began]
        except Exception as error:
            took = perf_counter() - began
            _show()
            text = str(error) if isinstance(error, AnswerError) else told(error)
            reply = ["raised", f"{name}: {text}", took]
        if os.getpid() != self._pid:  # the server forked, and this is the copy
            os._exit(0)
        return self._frame(name, reply)

    def close(self) -> None:
        """Close the server, unless that was done."""
        try:
            self._close()
        except Exception as error:
            _show()
            _say(f"the server's close() failed: {told(error)}")

    def _server_applies(self, params: dict[str, Any]) -> None:
        self._server.apply_env_params(params)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> list[Any]:
        given = self._server.reset(seed=seed, options=options)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise AnswerError(f"it gave back {_kind(given)}, and not (observation, info)")
        observation, info = given
        return [observation, _checked(info)]

    def _step(self, action: Any) -> list[Any]:
        given = self._server.step(action)
        if not isinstance(given, tuple | list) or len(given) != 5:
            expected = "(observation, reward, terminated, truncated, info)"
            raise AnswerError(f"it gave back {_kind(given)}, and not {expected}")
        observation, reward, terminated, truncated, info = given
        return [observation, float(reward), bool(terminated), bool(truncated), _checked(info)]

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.close()

    def _frame(self, name: str, reply: list[Any]) -> bytes:
        """The reply without what can't travel: entries of ``info`` are left out, anything else is an error."""
        try:
            return encode(reply)
        except WireError as error:
            info = reply[1][-1] if isinstance(reply[1], list) else {}
            unfit = [key for key, value in info.items() if not _travels(key, value)]
            if not unfit:
                return encode(["raised", f"{name}: its answer can't be sent: {error}", reply[2]])
        for key in unfit:
            self._leave_out(info, key)
        return self._frame(name, reply)

    def _leave_out(self, info: dict[Any, Any], key: Any) -> None:
        value = info.pop(key)
        if len(self._left_out) < MOST_LEFT_OUT and str(key) not in self._left_out:
            self._left_out.add(str(key))
            _say(f"info[{key!r}] is left out: {_kind(value)} can't be sent")
            if len(self._left_out) == MOST_LEFT_OUT:
                _say(f"of further keys of info that can't be sent, after {MOST_LEFT_OUT}, nothing is said")


def _checked(info: Any) -> dict[Any, Any]:
    if not isinstance(info, dict):
        raise AnswerError(f"its info is {_kind(info)}, and not a dict")
    return dict(info)


def _travels(key: Any, value: Any) -> bool:
    try:
        encode({key: value})
    except WireError:
        return False
    return True


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _show() -> None:
    """The traceback goes where the server's own output goes."""
    traceback.print_exc()


def _say(text: str) -> None:
    sys.stderr.write(f"tunegym: {text}\n")
    sys.stderr.flush()
