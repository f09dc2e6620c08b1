"""What the Gymnasium faces of an experiment share: spaces, episodes, and what a step shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import BudgetError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.envs.structure import structure_of
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.ports import Env

_LARGEST = float(np.finfo(np.float32).max)


class Face:
    """Shows an ``Env`` to Gymnasium, lane by lane.

    Observations are a float32 ``Box`` with one slot per agent metric and a ``measured`` slot, and, where the
    environment is ``Structured``, a ``Dict`` of that and the encoded context of the trial that comes next.
    An episode of one step terminates, as nothing follows from it; a longer one is cut off: truncated.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.codec = ActionCodec(env.space)
        self.action_space = self.codec.action_space
        self._metrics = env.experiment.agent_metrics
        self._episode_steps = env.experiment.episode_steps
        self._structure = structure_of(env)
        self._taken: Counter[int] = Counter()
        box = spaces.Box(-np.inf, np.inf, shape=(len(self._metrics) + 1,), dtype=np.float32)
        self.observation_space: spaces.Space[Any] = box
        if self._structure is not None:
            self.observation_space = spaces.Dict({"observation": box, "context": self._structure.space})

    def reset(self, lane: int) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's episode: shows the context of the trial that comes next, and no metrics."""
        self._taken[lane] = 0
        upcoming = self.env.observe(lane)
        info = {"step": upcoming.number, "next_env_params": dict(upcoming.context)}
        return self.encode(Observation(upcoming.number, upcoming.context)), info

    def shown(self, lane: int, trial: Trial) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What a step gives whose trial has closed: Gymnasium's five."""
        upcoming = self.env.observe(lane)
        self._taken[lane] += 1
        ended = self._taken[lane] >= self._episode_steps
        if ended:
            self._taken[lane] = 0
        single = self._episode_steps == 1
        return self.encode(upcoming), trial.reward, ended and single, ended and not single, info_of(trial, upcoming)

    def encode(self, shown: Observation) -> Any:
        """The element of ``observation_space`` for what a lane sees."""
        slots = np.zeros(len(self._metrics) + 1, dtype=np.float32)
        if shown.measured:
            for index, name in enumerate(self._metrics):
                slots[index] = min(max(shown.metrics[name], -_LARGEST), _LARGEST)
            slots[-1] = 1.0
        if self._structure is None:
            return slots
        return {"observation": slots, "context": self._structure.encode(shown)}


def info_of(trial: Trial, upcoming: Observation) -> dict[str, Any]:
    """Everything about a step that isn't in its observation."""
    return {
        "step": trial.number,
        "status": trial.status,
        "cached": trial.cached_from is not None,
        "env_params": dict(trial.context),
        "next_env_params": dict(upcoming.context),
        "metrics": dict(trial.metrics),
        "action": dict(trial.action),
        "reason": trial.reason,
    }


def stopped() -> BudgetError:
    """What a step raises whose trial was cut short by the end of the run."""
    return BudgetError("the run was stopped while the trial ran; it stays open for a resume")
