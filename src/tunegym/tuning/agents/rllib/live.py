"""RLlib's algorithms on a live system. All lanes take their steps together."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space

from tunegym.core.errors import ActionError, BudgetError, ServerLostError
from tunegym.tuning.agents.live_learner import LiveTraining, training
from tunegym.tuning.agents.rllib.algorithm import ALGORITHMS, Algorithm
from tunegym.tuning.agents.trial_learner import Decision, Step
from tunegym.tuning.envs.actions import choice_space, server_action
from tunegym.tuning.ports import LiveEnv

EPISODES = 100
"""Of the last of which the training curves have the mean return and length."""


class RllibLiveTraining(LiveTraining):
    """Our loop on a live system, since RLlib has none that could be left in the middle of a batch."""

    _algorithm: Algorithm

    def __init__(self, env: LiveEnv, name: str, config: Any, seed: int) -> None:
        super().__init__(env, name, config, seed)
        self._open = contextlib.ExitStack()
        self._choices = choice_space(env.action_space)
        self._observed = spaces.Box(-np.inf, np.inf, flatten_space(env.observation_space).shape or (1,), np.float32)
        # If no context is shown, a `final_observation` in the info is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())
        self._rewards: list[list[float]] = [[] for _ in range(env.slots)]  # of each lane's episode
        self._episodes: deque[dict[str, float]] = deque(maxlen=EPISODES)

    def run(self) -> None:
        """As ``LiveTraining``; the env runners end with it."""
        with self._open:
            super().run()

    # before the first step ----------------------------------------------------------------------------

    def _restore(self) -> int:
        self._algorithm, saved = self._files.restored(self._build, Algorithm.restore)
        return saved

    def _build(self, kind: str | None) -> Algorithm:
        self._open.close()  # one whose checkpoint doesn't fit
        shapes, lanes = (self._observed, self._choices), self._env.slots
        built = ALGORITHMS[self._name](self._config, *shapes, self._draws, lanes, self._horizon)
        self._open.callback(built.close)
        return built

    def _remember(self) -> int | None:
        if not self._algorithm.off_policy:
            return None
        count = 0
        start = int(getattr(self._env.action_space, "start", 0))
        for one in self._env.transitions(self._algorithm.capacity):
            seen, after = self._vector(one.observation), self._vector(one.after)
            chosen = Decision(np.int64(one.action - start))
            self._algorithm.take(Step(0, 0, seen, chosen, after, one.terminated, one.truncated, one.reward))
            count += 1
        return count

    def _vector(self, observation: Any) -> np.ndarray:
        flat = flatten(self._env.observation_space, observation)
        return np.asarray(flat, dtype=np.float32).reshape(self._observed.shape)

    # the loop -----------------------------------------------------------------------------------------

    def _learn(self) -> Exception | None:
        env = self._env
        try:
            seen = [self._vector(env.reset(lane)[0]) for lane in range(self._width())]
            while env.exhausted() is None and (width := self._width()):
                with training():
                    decisions = self._algorithm.decide(env.taken + 1, seen[:width])
                answers = env.step_all([server_action(env.action_space, one.chosen) for one in decisions])
                for lane, (decision, answer) in enumerate(zip(decisions, answers, strict=True)):
                    seen[lane] = self._take(lane, seen[lane], decision, answer)
                if self._algorithm.due():
                    with training():
                        self._train()
        except (BudgetError, ServerLostError, ActionError) as cause:
            return cause
        return None

    def _width(self) -> int:
        """How many lanes take the next step."""
        slots = self._env.slots
        return slots if self._most is None else max(0, min(slots, self._most - self._env.taken))

    def _take(self, lane: int, seen: np.ndarray, decision: Decision, answer: Sequence[Any]) -> np.ndarray:
        """Add a step, and start the next episode where it ended one; returns what the lane sees next."""
        observation, reward, over, cut, info = answer
        ends = over or cut
        # With a shown context, the returned observation is under the next episode's already.
        after = self._vector(info.get("final_observation", observation) if self._shows and ends else observation)
        self._algorithm.take(Step(0, lane, seen, decision, after, bool(over), bool(cut), float(reward)))
        rewards = self._rewards[lane]
        rewards.append(float(reward))
        if not ends:
            return after
        self._episodes.append({"r": sum(rewards), "l": len(rewards)})
        rewards.clear()
        return self._vector(self._env.reset(lane)[0]) if self._env.exhausted() is None else after

    def _train(self) -> None:
        if values := self._algorithm.train(self._env.taken):
            self._record_update(values, self._episodes)

    def _train_on_rest(self) -> None:
        if not self._algorithm.off_policy:
            self._train()

    def _save_policy(self, taken: int) -> None:
        self._files.save(type(self._choices).__name__, self._algorithm.state(), taken)
        self._algorithm.save_model(self._files)
