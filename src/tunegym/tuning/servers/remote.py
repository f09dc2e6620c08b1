"""A server that is at the other end of a connection, as a live experiment sees it."""

from __future__ import annotations

import logging
import math
import reprlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tunegym.core.errors import ServerLostError
from tunegym.core.wire import Connection, ConnectionClosedError, WireError, encode
from tunegym.tuning.servers.hosting import Five, ServerFailure
from tunegym.tuning.spaces import SpaceError, build, differences

if TYPE_CHECKING:
    from gymnasium import spaces

logger = logging.getLogger(__name__)

START_S = 60.0
"""Least bound on building a server where answers are bounded at all: importing takes longer than a step."""
CLOSE_S = 5.0


class RemoteHost(ABC):
    """Talks to one server over a channel (the ``Host`` port); derived classes know how to get one.

    ``start`` raises ``ServerLostError`` instead of ``ServerFailure`` where trying again is of no use: the two ends
    don't belong together, or the spaces are others than at the first start.

    Args:
        step_timeout_s: how long an answer may take to begin, and then be silent; None for ever. Starting has a minute
            at least.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    applies_env_params: bool
    seconds: float = 0.0

    def __init__(self, step_timeout_s: float | None = None) -> None:
        self._step_timeout_s = step_timeout_s
        self._channel: Connection | None = None
        self._known = False
        self._asked: str | None = None
        self._asked_at = 0.0
        self._killed = False

    def start(self) -> None:
        """Start the server, or connect to it; what was there before is let go of first."""
        self.close()
        bound = None if self._step_timeout_s is None else max(self._step_timeout_s, START_S)
        self._channel = self._connect()
        if self._killed:
            self._lose("the run was told to stop at once")
        deadline = None if bound is None else time.monotonic() + bound
        welcome = self._received(deadline, f"it was not ready within {bound:g} s" if bound is not None else "")
        if isinstance(welcome, dict) and isinstance(welcome.get("failed"), str):
            self._lose(welcome["failed"])
        self._meet(welcome)

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        self._ask("apply_env_params", dict(params))
        self._answer()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._ask("reset", seed, options)
        observation, info = self._parts(2)
        return observation, info

    def step(self, action: Any) -> Five:
        """``send`` and ``receive`` at once."""
        self._ask("step", action)
        return self.receive()

    def send(self, action: Any) -> None:
        """Have a step begin."""
        self._ask("step", action)

    def receive(self) -> Five:
        """What the step gave that ``send`` began."""
        observation, reward, terminated, truncated, info = self._parts(5)
        return observation, reward, terminated, truncated, info

    def kill(self) -> None:
        """End what may be waited for, now, for good. May be called from a signal handler: no locks."""
        self._killed = True
        channel = self._channel
        if channel is not None:
            channel.hang_up()

    def close(self) -> None:
        """Let go of the server; what that raises is only logged. Calling it twice is fine."""
        if self._channel is None:
            return
        # Where an answer is still due nothing can be asked: hanging up has the server closed, too.
        if self._asked is None and not self._killed:
            self._close_politely()
        self._let_go(0.0 if self._killed else CLOSE_S)

    # for derived classes -------------------------------------------------------------------------------

    @abstractmethod
    def _connect(self) -> Connection:
        """A channel on which the welcome comes next. Raises ``ServerFailure`` or ``ServerLostError``."""

    def _why_gone(self, what: str) -> str:
        """Why the channel was closed, now that it is; ``what`` is all that the channel knows."""
        return f"the connection to the server broke: {what}"

    def _let_go(self, patience_s: float) -> None:
        """Close the channel; a server of our own has this long to end by itself."""
        channel, self._channel = self._channel, None
        self._asked = None
        if channel is not None:
            channel.close()

    # one request and its answer ------------------------------------------------------------------------

    def _ask(self, call: str, *arguments: Any) -> None:
        if self._killed:
            self._lose("the run was told to stop at once")
        if self._channel is None:
            raise ServerFailure("there is no server", lost=True)
        if self._asked is not None:
            self._lose("an answer of the server was never waited for")
        try:
            frame = encode([call, *arguments])
        except WireError as error:
            raise ServerFailure(f"{call}: what it is given can't be sent: {error}") from None
        self._asked, self._asked_at = call, time.monotonic()
        try:
            self._channel.send_frame(frame, self._deadline)
        except TimeoutError:
            self._lose(self._too_late())
        except ConnectionClosedError as error:
            self._lose_closed(error)

    def _answer(self) -> Any:
        """The value of the reply. An answer that says that the server raised leaves it where it is."""
        if self._asked is None:
            raise ServerFailure("nothing was asked of the server", lost=self._channel is None)
        reply = self._received(self._deadline, self._too_late())
        kind, value, seconds = reply if isinstance(reply, list) and len(reply) == 3 else (None, None, None)
        if kind not in ("ok", "raised") or not isinstance(seconds, float) or not 0.0 <= seconds < math.inf:
            self._lose(f"the server sent something that is no answer: {reprlib.repr(reply)}")
        if self._asked == "step":
            self.seconds = seconds
        self._asked = None
        if kind == "raised":
            raise ServerFailure(str(value))
        return value

    def _parts(self, count: int) -> list[Any]:
        value = self._answer()
        if not isinstance(value, list) or len(value) != count or not isinstance(value[-1], dict):
            self._lose(f"the server sent something that is no answer: {reprlib.repr(value)}")
        return value

    def _received(self, deadline: float | None, too_late: str) -> Any:
        assert self._channel is not None
        try:
            message = self._channel.receive(deadline, self._step_timeout_s)
        except TimeoutError:
            self._lose(too_late)
        except ConnectionClosedError as error:
            self._lose_closed(error)
        except WireError as error:
            self._lose(f"the server sent something that is no message: {error}")
        match message:
            case ["lost", str(reason)]:  # said by whoever watches over the server's process
                self._lose(f"the server died: {reason}")
        return message

    @property
    def _deadline(self) -> float | None:
        return None if self._step_timeout_s is None else self._asked_at + self._step_timeout_s

    def _too_late(self) -> str:
        return "" if self._step_timeout_s is None else f"no answer within step_timeout_s = {self._step_timeout_s:g} s"

    def _lose_closed(self, error: ConnectionClosedError) -> NoReturn:
        self._lose("the run was told to stop at once" if self._killed else self._why_gone(str(error)))

    def _lose(self, reason: str) -> NoReturn:
        if self._asked == "step":  # nobody is there who could say
            self.seconds = time.monotonic() - self._asked_at
        self._let_go(0.0)
        raise ServerFailure(reason, lost=True)

    # the welcome ---------------------------------------------------------------------------------------

    def _meet(self, welcome: Any) -> None:
        """Take down what the server is, or make sure that it is what it was."""
        if not isinstance(welcome, dict) or not isinstance(welcome.get("applies_env_params"), bool):
            self._lose(f"the server sent something that is no welcome: {reprlib.repr(welcome)}")
        try:
            action_space = build(welcome.get("action_space"))
            observation_space = build(welcome.get("observation_space"))
        except SpaceError as error:
            self._lose(f"the server's spaces can't be used: {error}")
        if self._known:
            found = differences(self.action_space, action_space, "action_space")
            found += differences(self.observation_space, observation_space, "observation_space")
            if found:
                self._let_go(CLOSE_S)
                lines = "".join(f"\n  {line}" for line in found)
                raise ServerLostError(
                    f"the server came back with other spaces:{lines}",
                    hint="serve the same class with the same arguments as before, then resume",
                )
        self.action_space, self.observation_space = action_space, observation_space
        self.applies_env_params = welcome["applies_env_params"]
        self._known = True

    def _close_politely(self) -> None:
        """Ask, so that what ``close`` raises is heard of."""
        assert self._channel is not None
        try:
            deadline = time.monotonic() + CLOSE_S
            self._channel.send(["close"], deadline)
            reply = self._channel.receive(deadline)
        except TimeoutError:
            logger.warning("the server's close() took longer than %g s", CLOSE_S)
        except (ConnectionClosedError, WireError) as error:
            logger.warning("the server was gone before it was closed: %s", error)
        else:
            match reply:
                case ["ok", None, _]:
                    pass
                case ["raised", reason, _]:
                    logger.warning("the server's close() failed: %s", reason)
                case _:
                    logger.warning("the server's close() failed: %s", reprlib.repr(reply))
