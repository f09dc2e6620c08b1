"""DQN and SAC: learn from every trial again and again, whoever chose it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import polyak_update

from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.sb3.config import DqnConfig, OffPolicyConfig
from tunegym.tuning.agents.sb3.learner import Decision, Learner, Step
from tunegym.tuning.agents.scaling import RewardScale

PRETRAIN_ROUNDS = 100
"""Updates on old trials before the first one of this run."""


class OffPolicyLearner(Learner):
    """Keeps trials in the library's replay buffer; rewards there follow the scale as it becomes known."""

    learns_from_the_past = True

    def __init__(
        self, model: Any, borrowed: Borrowed, scale: RewardScale, config: OffPolicyConfig, starts: int, seed: int
    ) -> None:
        super().__init__(model, borrowed, scale)
        self.config = config
        self.starts = starts
        self.seed = seed
        self._indices = np.zeros(model.replay_buffer.buffer_size, dtype=np.int64)
        self._taken = 0
        self._since = 0

    @abstractmethod
    def _random(self, number: int) -> Any:
        """A draw that belongs to trial ``number``."""

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """Whoever chose it."""
        del seen
        return Decision(np.asarray(chosen))

    def take(self, step: Step) -> None:
        """Into the replay buffer, in place of the oldest one if that is full."""
        buffer = self.model.replay_buffer
        self._indices[buffer.pos] = step.index
        done = np.array([step.terminated or step.truncated])
        # What was only cut off goes on: the library then looks at the state after it.
        cut_off = [{"TimeLimit.truncated": step.truncated}]
        buffer.add(
            step.seen[None], step.after[None], np.asarray(step.decision.chosen)[None], np.zeros(1), done, cut_off
        )
        self._taken += 1
        self._since += 1

    def due(self) -> bool:
        """Every ``train_freq`` trials, once there are enough."""
        return self._taken > self.starts and self._since >= self.config.train_freq

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on draws from the buffer."""
        if not self._taken or (last and self._taken <= self.starts):
            return {}
        self._since = 0
        self._update(closed, self.config.gradient_steps)
        return self.logged()

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has. The trials were taken in before."""
        if steps:
            self._update(0, PRETRAIN_ROUNDS * self.config.gradient_steps)
            self._since = 0
            self.logged()

    def _update(self, closed: int, gradient_steps: int) -> None:
        buffer = self.model.replay_buffer
        count = buffer.size()
        buffer.rewards[:count, 0] = self.scale.scaled()[self._indices[:count]]
        with self.borrowed.stream("train", closed):
            self.model.train(gradient_steps=gradient_steps, batch_size=self.config.batch_size)


class DqnLearner(OffPolicyLearner):
    """Chooses what its network values most, or, less and less often, anything."""

    def __init__(
        self,
        model: Any,
        borrowed: Borrowed,
        scale: RewardScale,
        config: DqnConfig,
        starts: int,
        seed: int,
        horizon: int,
    ) -> None:
        super().__init__(model, borrowed, scale, config, starts, seed)
        self._fades = max(config.exploration_fraction * horizon, 1.0)
        self._final = config.exploration_final
        self._target_update = config.target_update
        self._copied = 0

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """At random with a chance that falls with the trial's number."""
        if number <= self.starts or unit(self.seed, "dqn", "explore", number) < self.epsilon(number):
            return Decision(self._random(number))
        return Decision(self.greedy(seen)[0])

    def epsilon(self, number: int) -> float:
        """The chance that trial ``number`` is drawn at random."""
        return max(1.0 - (1.0 - self._final) * number / self._fades, self._final)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """What is valued most."""
        with self.borrowed.stream("greedy"), torch.no_grad():
            self.model.policy.set_training_mode(False)
            values = self.model.q_net(torch.as_tensor(seen).unsqueeze(0))
        return np.int64(values.argmax(dim=1).item()), None

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """As any; the target network follows now and then."""
        told = super().train(closed, last)
        if closed - self._copied >= self._target_update or closed < self._copied:
            self._copied = closed
            polyak_update(self.model.q_net.parameters(), self.model.q_net_target.parameters(), 1.0)
        return {**told, "exploration/epsilon": self.epsilon(closed)} if told else told

    def _random(self, number: int) -> Any:
        return np.int64(integer(self.seed, int(self.model.action_space.n), "dqn", "random", number))


class SacLearner(OffPolicyLearner):
    """Draws from a policy that is rewarded for staying undecided."""

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw; from the whole space before it has learned anything."""
        if number <= self.starts:
            return Decision(self._random(number))
        with self.borrowed.stream("act", number), torch.no_grad():
            self.model.policy.set_training_mode(False)
            chosen = self.model.actor(torch.as_tensor(seen).unsqueeze(0))
        return Decision(chosen.numpy()[0])

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The middle of what it would draw."""
        with self.borrowed.stream("greedy"), torch.no_grad():
            self.model.policy.set_training_mode(False)
            chosen = self.model.actor(torch.as_tensor(seen).unsqueeze(0), deterministic=True)
        return chosen.numpy()[0], None

    def _random(self, number: int) -> Any:
        shape = self.model.action_space.shape
        draws = [unit(self.seed, "sac", "random", number, place) for place in range(int(np.prod(shape)))]
        return np.array([2.0 * draw - 1.0 for draw in draws], dtype=np.float32).reshape(shape)
