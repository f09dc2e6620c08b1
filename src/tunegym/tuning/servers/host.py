"""Where a server lives: the interface that a live experiment uses, and its simplest case, a server in this process.

A host holds one server and starts it again after a failure. ``InProcess`` is the quickest; ``process.ProcessHost``
protects the run from the server; ``remote.TcpHost`` talks to a ``tunegym serve`` elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tunegym.core.text import error_text
from tunegym.tuning.ports import GymServer

if TYPE_CHECKING:
    from gymnasium import spaces

logger = logging.getLogger(__name__)

RAISED = (Exception, SystemExit, GeneratorExit)
"""Exceptions of a server's code that fail only its step. An interrupt belongs to the user."""

StepAnswer: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


class ServerFailure(Exception):  # noqa: N818 - the server failed, and the run continues
    """A server raised, died, or did not answer in time; the message is the reason of the failed step.

    Attributes:
        lost: whether the server is gone, so that ``start`` must come before anything else.
    """

    def __init__(self, reason: str, *, lost: bool = False) -> None:
        super().__init__(reason)
        self.lost = lost


class ServerHost(Protocol):
    """Holds one server. One thread calls it, except ``kill``. Every call but ``close`` may raise ``ServerFailure``.

    ``start`` comes first, and again after a failure that lost the server; the spaces are known from then on. Returned
    objects belong to the server: its next step may change them.

    Attributes:
        seconds: how long the last step begun by ``send`` took, also a failed one, measured closest to the server.
            ``step`` need not set it.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    applies_env_params: bool
    seconds: float

    def start(self) -> None:
        """Build the server, or connect to it; close an earlier one first."""
        ...

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        ...

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        ...

    def step(self, action: Any, /) -> StepAnswer:
        """``send`` and ``receive`` in one call. May also raise the server's own exceptions."""
        ...

    def send(self, action: Any) -> None:
        """Begin a step. A server in another process works on it while the caller continues."""
        ...

    def receive(self) -> StepAnswer:
        """Wait for the answer to the step that ``send`` began."""
        ...

    def kill(self) -> None:
        """End a call that may be waiting, now. Takes no lock, so a signal handler may call it."""
        ...

    def close(self) -> None:
        """Close the server; errors are only logged. Calling it twice is fine."""
        ...


class InProcess:
    """A server in this process: the quickest host, without protection from the server.

    Args:
        build: makes a server.
        closes: whether servers are closed here. False for an object that ``build`` returns again and again.
    """

    applies_env_params: bool = False
    seconds: float = 0.0

    def __init__(self, build: Callable[[], GymServer], *, closes: bool = True) -> None:
        self._build = build
        self._closes = closes
        self._server: Any = None
        self._answer: Any = None
        self.step = _not_started

    def start(self) -> None:
        """Build the server."""
        self.close()
        try:
            server = self._build()
            self.action_space = server.action_space
            self.observation_space = server.observation_space
        except RAISED as error:
            raise ServerFailure(f"it could not be built: {error_text(error)}", lost=True) from error
        self._server = server
        self.applies_env_params = callable(getattr(server, "apply_env_params", None))
        self.step = server.step  # the server's own method: a step may take microseconds

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """See ``GymServer``."""
        with _as_failure("apply_env_params"):
            self._server.apply_env_params(dict(params))

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        with _as_failure("reset"):
            answer = self._server.reset(seed=seed, options=options)
        try:
            observation, info = answer
        except RAISED:
            raise ServerFailure("reset: it did not return an observation and an info") from None
        return observation, info

    def send(self, action: Any) -> None:
        """Take the step: nothing else could do it meanwhile."""
        began = perf_counter()
        try:
            self._answer = self.step(action)
        except RAISED as error:
            raise failure_of(error) from error
        finally:
            self.seconds = perf_counter() - began

    def receive(self) -> StepAnswer:
        """Return the answer of the step."""
        answer, self._answer = self._answer, None
        return answer

    def kill(self) -> None:
        """Do nothing: a call in this process can't be ended from outside."""

    def close(self) -> None:
        """Close the server."""
        try:
            self.close_server()
        except ServerFailure as failure:
            log_close(failure)

    def close_server(self) -> None:
        """As ``close``, but raises ``ServerFailure`` if the server's own ``close`` raised."""
        server, self._server = self._server, None
        self.step = _not_started
        if server is not None and self._closes:
            with _as_failure("close"):
                server.close()


@contextlib.contextmanager
def _as_failure(call: str) -> Iterator[None]:
    try:
        yield
    except RAISED as error:
        raise ServerFailure(f"{call}: {error_text(error)}") from error


def log_close(failure: ServerFailure) -> None:
    """Log a failure to close a server; it changes nothing else."""
    logger.warning("the server's close() failed: %s", str(failure).removeprefix("close: "))


def failure_of(error: BaseException) -> ServerFailure:
    """Return a step's exception as a failure."""
    return error if isinstance(error, ServerFailure) else ServerFailure(f"step: {error_text(error)}")


def _not_started(action: Any) -> StepAnswer:
    del action
    raise ServerFailure("it was not started", lost=True)
