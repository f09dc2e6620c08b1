"""A small server for agents, and what it was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclass
class Log:
    """What the servers of one session were asked, in order; they work one after the other.

    Attributes:
        actions: of all steps, by number.
        resets: the lane's length by then, of every reset.
        unasked: resets in the middle of an episode.
        missed: steps without a reset after an end.
    """

    actions: list[Any] = field(default_factory=list)
    resets: int = 0
    unasked: int = 0
    missed: int = 0


class Trail:
    """A server whose episodes last 3 to 9 steps; every third one is cut off.

    Each reward is 1 less the distance between the action and what the observation asks for, roughly.

    Args:
        actions: its action space.
        log: what it notes its calls in.
        dies_at: it can't be stepped, reset or built any more after so many steps of all servers.
        fails_at: these steps of all servers fail.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(
        self, actions: spaces.Space[Any], log: Log, dies_at: int | None = None, fails_at: tuple[int, ...] = ()
    ) -> None:
        self.action_space = actions
        self._log = log
        self._dies_at = dies_at
        self._fails_at = fails_at
        self._episode = 0
        self._place: int | None = None
        self._alive()

    def _alive(self) -> None:
        if self._dies_at is not None and len(self._log.actions) >= self._dies_at:
            raise RuntimeError("the trail is gone")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The beginning of the next episode."""
        del seed, options
        self._alive()
        self._log.resets += 1
        self._log.unasked += bool(self._place)
        self._episode += 1
        self._place = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        self._alive()
        self._log.missed += self._place is None
        self._log.actions.append(action)
        if len(self._log.actions) in self._fails_at:
            self._place = None
            raise RuntimeError("stumbled")
        reward = 1.0 - abs(float(np.mean(flat(action))) - self._seen()[0])
        place = (self._place or 0) + 1
        over = place >= 3 + self._episode % 7
        self._place = None if over else place
        cut_off = over and self._episode % 3 == 0
        return self._seen(place), reward, over and not cut_off, cut_off, {"reward": reward}

    def close(self) -> None:
        """There is nothing to let go of."""

    def _seen(self, place: int | None = None) -> np.ndarray:
        at = (place if place is not None else self._place) or 0
        return np.array([np.cos(at), np.sin(at + self._episode)], dtype=np.float32)


def flat(action: Any) -> list[float]:
    """The numbers that an action is made of."""
    if isinstance(action, Mapping):
        return [number for part in action.values() for number in flat(part)]
    if isinstance(action, tuple):
        return [number for part in action for number in flat(part)]
    return np.asarray(action, dtype=np.float64).reshape(-1).tolist()
