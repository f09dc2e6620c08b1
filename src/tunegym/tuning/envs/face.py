"""What the Gymnasium faces of an experiment share: spaces, episodes, trials, and what a step shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.core.errors import BudgetError, TunegymError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.envs.elements import Elements
from tunegym.tuning.envs.structure import structure_of
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.model.values import Action
from tunegym.tuning.ports import Env

_LARGEST = float(np.finfo(np.float32).max)


class Face:
    """Shows an ``Env`` to Gymnasium, lane by lane.

    Observations are a float32 ``Box`` with one slot per agent metric and a ``measured`` slot, and, where the
    environment is ``Structured``, a ``Dict`` of that and the encoded context of the trial that comes next.
    An episode of one step terminates, as nothing follows from it; a longer one is cut off: truncated.

    Args:
        env: drives the trials; shared with nobody else.
        on_close: called once, at the first ``close``.
    """

    def __init__(self, env: Env, on_close: Callable[[], None] = lambda: None) -> None:
        self.env = env
        codec = ActionCodec(env.space)
        self.encode_action = codec.encode
        self.decode_action = Elements(env.space, codec).decode
        self.action_space = codec.action_space
        self._metrics = env.experiment.agent_metrics
        self._episode_steps = env.experiment.episode_steps
        self._structure = structure_of(env)
        self._taken: dict[int, int] = {}
        self._upcoming: dict[int, tuple[Observation, dict[str, Any]]] = {}
        self._on_close: Callable[[], None] | None = on_close
        box = spaces.Box(-np.inf, np.inf, shape=(len(self._metrics) + 1,), dtype=np.float32)
        self.observation_space: spaces.Space[Any] = box
        if self._structure is not None:
            self.observation_space = spaces.Dict({"observation": box, "context": self._structure.space})

    def reset(self, lane: int) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's episode: shows the context of the trial that comes next, and no metrics."""
        self._check_open()
        self._taken[lane] = 0
        upcoming, leaves = self._upcoming.get(lane) or self._observe(lane)
        info = {"step": upcoming.number, "next_env_params": dict(upcoming.context)}
        return self._observation(np.zeros(len(self._metrics) + 1, dtype=np.float32), leaves), info

    def run(self, actions: Sequence[Action]) -> list[Trial]:
        """One trial in each lane from 0, side by side as far as the slots allow; they are numbered in this order.

        Raises:
            ActionError: one doesn't fit the knobs; no number is used.
            BudgetError: not all may start, or the run was stopped; what had begun is recorded.
        """
        self._check_open()
        accepted = [self.env.space.accept(action) for action in actions]
        for lane in range(len(accepted)):  # so that the numbers are in the lanes' order
            self.env.observe(lane)
        waiting = deque(enumerate(accepted))
        begun: list[int] = []
        trials: dict[int, Trial] = {}
        ended: BudgetError | None = None
        while True:
            # No more than can run: a trial that waits for a slot would have its waiting on record as its duration.
            while waiting and ended is None and len(begun) - len(trials) < self.env.slots:
                lane, action = waiting[0]
                try:
                    begun.append(self._begin(action, lane))
                    waiting.popleft()
                except BudgetError as error:
                    ended = error
            if len(trials) == len(begun):
                break
            trial = self._next_finished()
            if trial.number in begun:
                trials[trial.number] = trial
        if ended is not None:
            raise ended
        return [trials[number] for number in begun]

    def run_one(self, action: Action) -> Trial:
        """As ``run`` for the first lane alone."""
        self._check_open()
        number = self._begin(action, 0)
        while True:
            trial = self._next_finished()
            if trial.number == number:
                return trial

    def _begin(self, action: Action, lane: int) -> int:
        self._upcoming.pop(lane, None)
        return self.env.begin(action, lane).number

    def _next_finished(self) -> Trial:
        """Mostly one that was just begun, but it may be one that an exception took the caller away from."""
        finished = self.env.next_finished()
        if finished is None:
            raise BudgetError("the run was stopped while the trial ran; it stays open for a resume")
        return finished[1]

    def shown(self, lane: int, trial: Trial) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What a step gives whose trial has closed: Gymnasium's five."""
        upcoming, leaves = self._observe(lane)
        taken = self._taken.get(lane, 0) + 1
        ended = taken >= self._episode_steps
        self._taken[lane] = 0 if ended else taken
        single = self._episode_steps == 1
        shown = self._observation(self._slots(upcoming), leaves)
        return shown, trial.reward, ended and single, ended and not single, info_of(trial, upcoming)

    def _observe(self, lane: int) -> tuple[Observation, dict[str, Any]]:
        """What the lane sees, and its leaves: they are shown by a step, and again by the reset that may follow."""
        upcoming = self.env.observe(lane)
        leaves = {} if self._structure is None else self._structure.encode(upcoming)
        self._upcoming[lane] = upcoming, leaves
        return upcoming, leaves

    def _slots(self, shown: Observation) -> np.ndarray:
        if not shown.measured:
            return np.zeros(len(self._metrics) + 1, dtype=np.float32)
        numbers = [min(max(shown.metrics[name], -_LARGEST), _LARGEST) for name in self._metrics]
        return np.array([*numbers, 1.0], dtype=np.float32)

    def _observation(self, slots: np.ndarray, leaves: dict[str, Any]) -> Any:
        """The element of ``observation_space``; its arrays are the caller's own."""
        if self._structure is None:
            return slots
        return {"observation": slots, "context": {name: _own(leaf) for name, leaf in leaves.items()}}

    def close(self) -> None:
        """Take no more steps. Calling it twice is fine."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _check_open(self) -> None:
        if self._on_close is None:
            raise TunegymError("the environment is closed", hint="make another one: its trials go into a new folder")


def _own(leaf: Any) -> Any:
    return leaf.copy() if type(leaf) is np.ndarray else leaf


def info_of(trial: Trial, upcoming: Observation) -> dict[str, Any]:
    """Everything about a step that isn't in its observation."""
    return {
        "step": trial.number,
        "status": trial.status,
        "cached": trial.cached_from is not None,
        "env_params": dict(trial.context),
        "next_env_params": dict(upcoming.context),
        "metrics": trial.metrics,
        "action": dict(trial.action),
        "reason": trial.reason,
    }
