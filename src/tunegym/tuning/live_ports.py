"""The seams of a live experiment: the system that answers, and what an agent drives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tunegym.tuning.model.scenario import Experiment

if TYPE_CHECKING:
    from gymnasium import spaces


class GymServer(Protocol):
    """A live system that answers for itself: one step of it is one trial, and no job is run.

    Built as ``Class(**arguments)``. It may have ``apply_env_params(params)`` besides, which is called with the whole
    context before the ``reset`` or the ``step`` that it applies to, and which an experiment with env_params needs.
    One thread calls it. What a call raises fails the step with its message; the server is reset, or built anew.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: an element of ``observation_space``, and anything that is worth knowing by name."""
        ...

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action: observation, reward, terminated, truncated, info. Metrics are numbers in ``info``."""
        ...

    def close(self) -> None:
        """Let go of everything. Called once, also after a failure."""
        ...


@dataclass(frozen=True, slots=True)
class Transition:
    """One recorded step of a live system, with what was seen before it."""

    observation: Any
    action: Any
    reward: float
    after: Any
    terminated: bool
    truncated: bool


class LiveEnv(Protocol):
    """What an agent drives in a live experiment: ``slots`` servers of one kind, a lane each. One thread calls it.

    Every step is one number of one counter that all lanes share, whatever resets, restarts and sessions there were.
    """

    @property
    def experiment(self) -> Experiment:
        """What is tuned: env_params, metrics, budget."""
        ...

    @property
    def folder(self) -> Path:
        """The experiment's results. An agent may keep files of its own in a folder in it."""
        ...

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The server's own."""
        ...

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The server's own; with env_params that have an encoding, a ``Dict`` of that and their ``context``."""
        ...

    @property
    def slots(self) -> int:
        """How many lanes there are."""
        ...

    @property
    def taken(self) -> int:
        """How many numbers are used up, those of earlier sessions included."""
        ...

    def exhausted(self) -> str | None:
        """Why no further step may be taken (budget used up, run stopping), or None."""
        ...

    def reset(
        self, lane: int = 0, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's next episode. Moves no number and no context."""
        ...

    def step(self, action: Any, lane: int = 0) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, recorded: Gymnasium's five. After an end of the episode ``reset`` must follow.

        A server that failed gives a penalty for a reward, the observation of its next beginning, and no end of the
        episode. The observation is the caller's own: no later step changes it.

        Raises:
            ActionError: the action is none of ``action_space``; no number is used.
            BudgetError: no step may be taken any more.
            ServerLostError: the server failed too often in a row.
        """
        ...

    def step_all(self, actions: Sequence[Any]) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
        """A step in each lane from 0, numbered in this order; servers with processes of their own work side by side."""
        ...

    def transitions(self, last: int) -> Iterable[Transition]:
        """The newest recorded steps of all sessions, at most ``last``, oldest first.

        Without the first step of each episode: what it was chosen on is not on record. Nor is anything where not all
        steps are recorded.
        """
        ...
