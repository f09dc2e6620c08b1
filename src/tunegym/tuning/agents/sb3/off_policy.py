"""DQN and SAC: learn from every trial again and again, whoever chose it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import polyak_update

from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.sb3.buffers import OwnReplay
from tunegym.tuning.agents.sb3.config import DqnConfig, OffPolicyConfig
from tunegym.tuning.agents.sb3.learner import Decision, Learner, Step
from tunegym.tuning.agents.scaling import RewardScale

PRETRAIN_ROUNDS = 100
"""Updates on old trials before the first one of this run."""


LEAST_DRAWN = 256
"""A larger batch than this has no more trials than there are: to draw them ten times over teaches nothing."""


class OffPolicyLearner(Learner):
    """Keeps trials in the library's replay buffer; rewards there follow the scale as it becomes known."""

    learns_from_the_past = True

    def __init__(
        self, model: Any, borrowed: Borrowed, scale: RewardScale, config: OffPolicyConfig, starts: int
    ) -> None:
        super().__init__(model, borrowed, scale)
        self.config = config
        self.starts = starts
        self._buffer = OwnReplay(config.buffer_size, model.observation_space, model.action_space, device="cpu")
        model.replay_buffer = self._buffer
        self._indices = np.zeros(config.buffer_size, dtype=np.int64)
        self._taken = 0
        self._since = 0
        self._head_start = 0

    @abstractmethod
    def _random(self, number: int) -> Any:
        """A draw that belongs to trial ``number``."""

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """Whoever chose it."""
        del seen
        return Decision(np.asarray(chosen))

    def take(self, step: Step) -> None:
        """Into the replay buffer, in place of the oldest one if that is full."""
        self._indices[self._buffer.pos] = step.index
        done = np.array([step.terminated or step.truncated])
        # What was only cut off goes on: the library then looks at the state after it.
        cut_off = [{"TimeLimit.truncated": step.truncated}]
        chosen = np.asarray(step.decision.chosen)
        self._buffer.add(step.seen[None], step.after[None], chosen[None], np.zeros(1), done, cut_off)
        self._taken += 1
        self._since += 1

    def warm(self, steps: Sequence[Step]) -> None:
        """Into the replay buffer, and so much less is explored."""
        for step in steps:
            self.take(step)
        self._head_start = len(steps)

    def due(self) -> bool:
        """Every ``train_freq`` trials, once there are enough."""
        return self._taken > self.starts and self._since >= self.config.train_freq

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on draws from the buffer."""
        if not self._taken or (last and self._taken <= self.starts):
            return {}
        self._since = 0
        self._update(self.config.gradient_steps, "train", closed)
        return self.logged()

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has."""
        if steps:
            for at in range(PRETRAIN_ROUNDS):
                self._update(self.config.gradient_steps, "pretrain", at)
            self._since = 0
            self.logged()

    def experience(self, number: int) -> int:
        """The number of a trial if those of another run, which it starts from, had been made here before."""
        return number + self._head_start

    def _update(self, gradient_steps: int, *names: str | int) -> None:
        buffer = self._buffer
        count = buffer.size()
        first = int(self._indices[:count].min())
        rewards = self.scale.scaled(last=len(self.scale) - first)
        buffer.rewards[:count, 0] = rewards[self._indices[:count] - first]
        buffer.rng = self.borrowed.generator(*names)
        batch = min(self.config.batch_size, max(count, LEAST_DRAWN))
        with self.borrowed.stream(*names):
            self.model.train(gradient_steps=gradient_steps, batch_size=batch)
        self.has_trained()


class DqnLearner(OffPolicyLearner):
    """Chooses what its network values most, or, less and less often, anything."""

    def __init__(
        self, model: Any, borrowed: Borrowed, scale: RewardScale, config: DqnConfig, starts: int, horizon: int
    ) -> None:
        super().__init__(model, borrowed, scale, config, starts)
        self._fades = max(config.exploration_fraction * horizon, 1.0)
        self._final = config.exploration_final
        self._target_update = config.target_update
        self._copied = 0

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """At random with a chance that falls with the trial's number."""
        if self.experience(number) <= self.starts or self.borrowed.unit("explore", number) < self.epsilon(number):
            return Decision(self._random(number))
        return Decision(self.greedy(seen)[0])

    def epsilon(self, number: int) -> float:
        """The chance that trial ``number`` is drawn at random."""
        return max(1.0 - (1.0 - self._final) * self.experience(number) / self._fades, self._final)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """What is valued most."""
        return np.int64(self._values(seen).argmax()), None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How much each is valued."""
        return self._values(seen)[elements]

    def _values(self, seen: np.ndarray) -> np.ndarray:
        with self.borrowed.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            return self.model.q_net(torch.as_tensor(seen).unsqueeze(0)).numpy()[0]

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """As any; the target network follows now and then."""
        told = super().train(closed, last)
        if closed - self._copied >= self._target_update:
            self._copied = closed
            self._copy()
        return {**told, "exploration/epsilon": self.epsilon(closed)} if told else told

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As any; the target network follows."""
        super().pretrain(steps)
        self._copy()

    def _copy(self) -> None:
        polyak_update(self.model.q_net.parameters(), self.model.q_net_target.parameters(), 1.0)

    def _random(self, number: int) -> Any:
        return np.int64(self.borrowed.integer(int(self.model.action_space.n), "random", number))


class SacLearner(OffPolicyLearner):
    """Draws from a policy that is rewarded for staying undecided."""

    continuous = True

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw; from the whole space before it has learned anything."""
        if self.experience(number) <= self.starts:
            return Decision(self._random(number))
        with self.borrowed.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            middle, log_spread, _ = self.model.actor.get_action_dist_params(torch.as_tensor(seen).unsqueeze(0))
            normal = self.borrowed.generator("act", number).standard_normal(middle.shape[1:])
            chosen = np.tanh(middle.numpy()[0] + np.exp(log_spread.numpy()[0]) * normal)
        return Decision(chosen.astype(np.float32))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The middle of what it would draw."""
        with self.borrowed.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            chosen = self.model.actor(torch.as_tensor(seen).unsqueeze(0), deterministic=True)
        return chosen.numpy()[0], None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How much the more careful of its critics values each."""
        with self.borrowed.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            again = torch.as_tensor(seen).expand(len(elements), -1)
            values = self.model.critic(again, torch.as_tensor(elements, dtype=torch.float32))
        return torch.cat(values, dim=1).min(dim=1).values.numpy()

    def _random(self, number: int) -> Any:
        shape = self.model.action_space.shape
        draws = [self.borrowed.unit("random", number, place) for place in range(int(np.prod(shape)))]
        return np.array([2.0 * draw - 1.0 for draw in draws], dtype=np.float32).reshape(shape)
