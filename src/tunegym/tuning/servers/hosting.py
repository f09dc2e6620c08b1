"""Where a server lives: what a live experiment may assume of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tunegym.tuning.model.values import printable
from tunegym.tuning.ports import GymServer

if TYPE_CHECKING:
    from gymnasium import spaces

logger = logging.getLogger(__name__)

RAISED = (Exception, SystemExit, GeneratorExit)
"""What a server may raise, and only its step fails; an interrupt is the user's."""

Five: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]
"""What a step gives: observation, reward, terminated, truncated, info."""


class ServerFailure(Exception):  # noqa: N818 - what fails is the server, and the run goes on
    """A server that raised, died, or did not answer in time; the message is the reason of the failed step.

    Attributes:
        lost: whether there is no server any more, so that ``start`` must come before anything else.
    """

    def __init__(self, reason: str, *, lost: bool = False) -> None:
        super().__init__(reason)
        self.lost = lost


class Host(Protocol):
    """Holds one server. One thread calls it, except ``kill``. Every call but ``close`` raises ``ServerFailure``.

    ``start`` comes first, and again after a failure that lost the server; the spaces are known from then on. What it
    gives back is the server's own, and may be changed by the server's next step.

    Attributes:
        seconds: how long the last step took that ``send`` began, also one that failed, as measured closest to the
            server: whatever it waited for before or after doesn't count. ``step`` need not set it.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    applies_env_params: bool
    seconds: float

    def start(self) -> None:
        """Build the server, or connect to it; what was there before is let go of first."""
        ...

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        ...

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        ...

    def step(self, action: Any, /) -> Five:
        """``send`` and ``receive`` at once. May also raise whatever the server itself raised."""
        ...

    def send(self, action: Any) -> None:
        """Have a step begin. Where the server has a process of its own, this doesn't wait for it."""
        ...

    def receive(self) -> Five:
        """What the step gave that ``send`` began."""
        ...

    def kill(self) -> None:
        """End what may be waited for, now. May be called from a signal handler: no locks."""
        ...

    def close(self) -> None:
        """Let go of the server; what that raises is only logged. Calling it twice is fine."""
        ...


class InProcess:
    """A server in this very process: the quickest, and nothing protects from what it does.

    Args:
        build: makes a server.
        closes: whether it is closed. One that ``build`` gives out again and again isn't: whoever has it does that.
    """

    seconds: float = 0.0

    def __init__(self, build: Callable[[], GymServer], *, closes: bool = True) -> None:
        self._build = build
        self._closes = closes
        self._server: GymServer | None = None
        self._answer: tuple[Five] | None = None
        self.step = _not_started

    def start(self) -> None:
        """Build it."""
        self.close()
        try:
            server = self._build()
            self.action_space = server.action_space
            self.observation_space = server.observation_space
        except RAISED as error:
            raise ServerFailure(f"it could not be built: {told(error)}", lost=True) from error
        self._server = server
        self.applies_env_params = bool(callable(getattr(server, "apply_env_params", None)))
        self.step = server.step  # without anything in between: a step may take microseconds

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        server: Any = self._server
        try:
            server.apply_env_params(dict(params))
        except RAISED as error:
            raise ServerFailure(f"apply_env_params: {told(error)}") from error

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        assert self._server is not None
        try:
            answer = self._server.reset(seed=seed, options=options)
        except RAISED as error:
            raise ServerFailure(f"reset: {told(error)}") from error
        try:
            observation, info = answer
        except RAISED:
            raise ServerFailure("reset: it did not return an observation and an info") from None
        return observation, info

    def send(self, action: Any) -> None:
        """There is nobody else to do it: the step is made."""
        began = perf_counter()
        try:
            self._answer = (self.step(action),)
        except RAISED as error:
            raise failure_of(error) from error
        finally:
            self.seconds = perf_counter() - began

    def receive(self) -> Five:
        """What it gave."""
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer[0]

    def kill(self) -> None:
        """Nothing here can be ended from outside."""

    def close(self) -> None:
        """Let go of the server."""
        server, self._server = self._server, None
        self.step = _not_started
        if server is not None and self._closes:
            try:
                server.close()
            except RAISED as error:
                logger.warning("the server's close() failed: %s", told(error))


def failure_of(error: BaseException) -> ServerFailure:
    """What a step raised, as a failure."""
    return error if isinstance(error, ServerFailure) else ServerFailure(f"step: {told(error)}")


def _not_started(action: Any) -> Five:
    del action
    raise ServerFailure("it was not started", lost=True)


def told(error: BaseException) -> str:
    """An exception in one line that any file can hold, whatever its own text does."""
    try:
        text = printable(" ".join(str(error).split()))
    except Exception:  # its __str__ is the server's, too, and the step has failed for another reason already
        text = "(its text can't be had)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
