"""Algorithms of Stable-Baselines3 without their loop: the learners of trials.

A learner acts, is given closed trials, and trains when it is due; the agent in ``trials`` owns the loop. PPO and A2C
learn only from their own choices, an update at a time; DQN and SAC keep all trials in a replay buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import polyak_update

from tunegym.tuning.agents.reward_scale import RewardScale
from tunegym.tuning.agents.sb3 import algorithms
from tunegym.tuning.agents.sb3.algorithms import Draws, Spaces
from tunegym.tuning.agents.sb3.config import (
    FEWEST,
    A2cConfig,
    DqnConfig,
    OnPolicyConfig,
    PolicyConfig,
    PpoConfig,
    SacConfig,
)

HORIZON = 1000
"""Assumed budget where only time bounds it."""
MANY = 1500
"""From this many trials on, updates can be large."""
PRETRAIN_EPOCHS = 100
PRETRAIN_ROUNDS = 100
"""Passes (on-policy) and updates (off-policy) over the trials of a warm start."""
TEMPERATURE = 0.5
"""Pre-training imitates old trials, the better ones more: e times more for each such step on the reward scale."""
HIGHEST = 4.0
"""Better trials are outliers on the reward scale; they count as this one."""
PRETRAIN_ENTROPY = 0.05
"""Entropy bonus of pre-training, so that there is something left to explore."""
LEAST_DRAWN = 256
"""A larger batch than this has no more trials than there are: repeating them ten times teaches nothing."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's choice.

    Attributes:
        chosen: an element of its action space.
        value: the expected reward; 0 without such an estimate.
        log_prob: the log-probability of the choice; 0 if it isn't known.
    """

    chosen: Any
    value: float = 0.0
    log_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One closed trial as an algorithm sees it.

    Attributes:
        index: its place in the ``RewardScale``, which knows its reward.
        lane: the lane it ran in.
        seen: the observation that was acted on.
        decision: the choice.
        after: the lane's next observation.
        terminated: its episode ended.
        truncated: its episode was cut off.
    """

    index: int
    lane: int
    seen: np.ndarray
    decision: Decision
    after: np.ndarray
    terminated: bool
    truncated: bool


def build_learner(
    config: PolicyConfig,
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    scale: RewardScale,
    seed: int,
    trials: int | None,
) -> Learner:
    """The learner of an agent.

    Args:
        config: the agent's settings.
        observations: its observation space.
        actions: its action space.
        scale: knows the rewards of the steps it is given.
        seed: seeds the network and every draw.
        trials: the budget; None if only time bounds it.
    """
    horizon = trials or HORIZON
    draws = Draws(seed, type(config).__name__.removesuffix("Config").lower())
    env = Spaces(observations, actions)
    if isinstance(config, OnPolicyConfig):
        n_steps = config.n_steps or update_size(config, horizon)
        if isinstance(config, PpoConfig):
            sizes = {"n_steps": n_steps, "batch_size": config.batch_size or n_steps}
            model = algorithms.build(PPO, "MlpPolicy", env, config, draws, normalize_advantage=True, **sizes)
        else:
            adam = {"use_rms_prop": False, "policy_kwargs": {"optimizer_class": torch.optim.Adam}}
            own = {"n_steps": n_steps, "normalize_advantage": True, **adam}
            model = algorithms.build(A2C, "MlpPolicy", env, config, draws, **own)
        return OnPolicyLearner(model, draws, scale, n_steps)
    if isinstance(config, DqnConfig):
        model = algorithms.build(DQN, "MlpPolicy", env, config, draws)
        return DqnLearner(model, draws, scale, config, random_trials(config, horizon), horizon)
    assert isinstance(config, SacConfig)
    model = algorithms.build(SAC, "MlpPolicy", env, config, draws)
    return SacLearner(model, draws, scale, config, random_trials(config, horizon))


def update_size(config: OnPolicyConfig, horizon: int) -> int:
    """The trials of an update: enough to tell good from bad, and enough updates in the budget."""
    if isinstance(config, A2cConfig):
        return max(8, min(30, horizon // 40))
    return max(16, horizon // 15) if horizon < MANY else 150


def random_trials(config: DqnConfig | SacConfig, horizon: int) -> int:
    """The random trials before it learns."""
    return max(8, min(100, horizon // 10)) if config.learning_starts is None else config.learning_starts


class Learner(ABC):
    """An algorithm without its loop.

    Attributes:
        off_policy: whether trials that it didn't choose itself can teach it.
        continuous: whether it chooses from a continuous space.
        trained: whether it has learned anything.
        model: the library's model.
    """

    off_policy: bool
    continuous: bool = False

    def __init__(self, model: Any, draws: Draws, scale: RewardScale) -> None:
        self.trained = False
        self.model = model
        self.draws = draws
        self.scale = scale

    @abstractmethod
    def act(self, seen: np.ndarray, number: int) -> Decision:
        """The choice for trial ``number``; the same for the same policy and number."""

    @abstractmethod
    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The decision for a choice made elsewhere."""

    @abstractmethod
    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The best choice, and its probability if it is known."""

    @abstractmethod
    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How much it prefers each of ``elements``: more is better."""

    @abstractmethod
    def take(self, step: Step) -> None:
        """Add a closed trial."""

    @abstractmethod
    def due(self) -> bool:
        """Whether it is time to train."""

    @abstractmethod
    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """Train on the trials that were added; returns values for the training curves.

        Args:
            closed: trials so far.
            last: no trial follows.

        Raises:
            FloatingPointError: the network diverged.
        """

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Add another run's trials before any of this one. By default they are not kept."""
        del steps

    @abstractmethod
    def pretrain(self, steps: Sequence[Step]) -> None:
        """Learn from another run's trials, which were added, before the first one of this run."""

    def restore(self, state: dict[str, Any]) -> None:
        """Set the parameters to those of a checkpoint."""
        algorithms.restore(self.model, state)
        self.trained = True

    def has_trained(self) -> None:
        """Call after each update. Raises ``FloatingPointError`` if the network diverged."""
        if not algorithms.is_finite(self.model):
            raise FloatingPointError(
                "the network is no longer of finite numbers; a smaller learning_rate may keep it from that"
            )
        self.trained = True

    def logged(self) -> dict[str, float]:
        """The library's log of its last training."""
        values = {name: float(value) for name, value in self.model.logger.name_to_value.items()}
        self.model.logger.name_to_value.clear()
        return values


def _batch(one: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(one)).unsqueeze(0)


class OnPolicyLearner(Learner):
    """PPO and A2C: collects ``n_steps`` trials over all lanes, trains on them, and forgets them.

    Lanes never wait for each other: a trial that was still running at an update counts for the next one.
    """

    off_policy = False

    def __init__(self, model: Any, draws: Draws, scale: RewardScale, n_steps: int) -> None:
        super().__init__(model, draws, scale)
        self._n_steps = n_steps
        self._steps: list[Step] = []

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw from the policy."""
        with self.draws.one_thread(), torch.no_grad():
            distribution = self._distribution(_batch(seen))
            choices = distribution.distribution
            single = not isinstance(choices, list)
            drawn = [
                _index(one.probs.numpy()[0], self.draws.unit("act", number, place))
                for place, one in enumerate([choices] if single else choices)
            ]
            chosen = np.int64(drawn[0]) if single else np.array(drawn, dtype=np.int64)
            log_prob = distribution.log_prob(_batch(chosen))
            value = self.model.policy.predict_values(_batch(seen))
        return Decision(chosen, float(value), float(log_prob))

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The policy's probability of this choice."""
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            value, log_prob, _ = self.model.policy.evaluate_actions(_batch(seen), _batch(chosen))
        return Decision(np.asarray(chosen), float(value), float(log_prob))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        with self.draws.one_thread(), torch.no_grad():
            distribution = self._distribution(_batch(seen))
            chosen = distribution.mode()
            log_prob = distribution.log_prob(chosen)
        return chosen.numpy()[0], float(torch.exp(log_prob))

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        with self.draws.one_thread(), torch.no_grad():
            again = torch.as_tensor(seen).expand(len(elements), -1)
            return torch.exp(self._distribution(again).log_prob(torch.as_tensor(elements))).numpy()

    def take(self, step: Step) -> None:
        """Keep it for the next update."""
        self._steps.append(step)

    def due(self) -> bool:
        """Whether there are enough trials."""
        return len(self._steps) >= self._n_steps

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update; at the end also on a smaller rest."""
        steps, self._steps = self._steps, []
        if len(steps) < FEWEST:
            return {}
        rewards = self._rewards(steps)
        self.model.rollout_buffer = self._rollout(steps, rewards)
        with self.draws.stream("train", closed):
            self.model.train()
        self.has_trained()
        return {"rollout/reward": float(rewards.mean()), **self.logged()}

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better trials, and fit the value function."""
        if not steps:
            return
        rewards = self._rewards(steps)
        seen = torch.as_tensor(np.stack([step.seen for step in steps]))
        chosen = torch.as_tensor(np.stack([step.decision.chosen for step in steps]))
        likened = np.minimum(rewards, HIGHEST)
        weights = torch.as_tensor(np.exp((likened - likened.max()) / TEMPERATURE), dtype=torch.float32)
        targets = torch.as_tensor(rewards, dtype=torch.float32)
        policy = self.model.policy
        with self.draws.one_thread():
            policy.set_training_mode(True)
            for _ in range(PRETRAIN_EPOCHS):
                values, log_probs, entropy = policy.evaluate_actions(seen, chosen)
                imitation = -(weights * log_probs).sum() / weights.sum()
                error = torch.nn.functional.mse_loss(values.flatten(), targets)
                loss = imitation - PRETRAIN_ENTROPY * entropy.mean() + self.model.vf_coef * error
                policy.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), self.model.max_grad_norm)
                policy.optimizer.step()
        self.has_trained()

    def _distribution(self, seen: torch.Tensor) -> Any:
        self.model.policy.set_training_mode(False)
        return self.model.policy.get_distribution(seen)

    def _rewards(self, steps: Sequence[Step]) -> np.ndarray:
        """Scaled by all trials known by now."""
        indices = np.array([step.index for step in steps])
        first = int(indices.min())
        return self.scale.scaled(last=len(self.scale) - first)[indices - first]

    def _rollout(self, steps: Sequence[Step], rewards: np.ndarray) -> RolloutBuffer:
        """The library's buffer, filled lane by lane, which may be of any lengths."""
        model = self.model
        buffer = RolloutBuffer(len(steps), model.observation_space, model.action_space, device="cpu", n_envs=1)
        lanes: dict[int, list[int]] = defaultdict(list)
        for position, step in enumerate(steps):
            lanes[step.lane].append(position)
        advantages = np.zeros(len(steps))
        for positions in lanes.values():
            advantages[positions] = self._advantages([steps[at] for at in positions], rewards[positions])
        values = np.array([step.decision.value for step in steps])
        buffer.observations[:, 0] = np.stack([step.seen for step in steps])
        buffer.actions[:, 0] = np.stack([np.reshape(step.decision.chosen, -1) for step in steps])
        buffer.rewards[:, 0] = rewards
        buffer.values[:, 0] = values
        buffer.log_probs[:, 0] = [step.decision.log_prob for step in steps]
        buffer.advantages[:, 0] = advantages
        buffer.returns[:, 0] = advantages + values
        buffer.pos, buffer.full = len(steps), True
        return buffer

    def _advantages(self, steps: Sequence[Step], rewards: np.ndarray) -> np.ndarray:
        """Generalised advantage estimates of one lane's trials, in their order."""
        gamma, decay = self.model.gamma, self.model.gamma * self.model.gae_lambda
        following = self._values([step.after for step in steps]) if gamma else np.zeros(len(steps))
        advantages = np.zeros(len(steps))
        ahead = 0.0
        for at in reversed(range(len(steps))):
            step = steps[at]
            if step.terminated or step.truncated:
                ahead = 0.0
            bootstrap = 0.0 if step.terminated else gamma * following[at]
            ahead = rewards[at] + bootstrap - step.decision.value + decay * ahead
            advantages[at] = ahead
        return advantages

    def _values(self, seen: Sequence[np.ndarray]) -> np.ndarray:
        with self.draws.one_thread(), torch.no_grad():
            return self.model.policy.predict_values(torch.as_tensor(np.stack(seen))).numpy().reshape(-1)


def _index(chances: np.ndarray, place: float) -> int:
    """The index that ``place``, from 0 to 1, falls on."""
    sums = np.cumsum(chances, dtype=np.float64)
    return min(int(np.searchsorted(sums, place * sums[-1], side="right")), len(chances) - 1)


class OffPolicyLearner(Learner):
    """Keeps trials in the library's replay buffer; rewards there are rescaled before each update."""

    off_policy = True

    def __init__(
        self, model: Any, draws: Draws, scale: RewardScale, config: DqnConfig | SacConfig, random_trials: int
    ) -> None:
        super().__init__(model, draws, scale)
        self.config = config
        self.random_trials = random_trials
        self._buffer = model.replay_buffer
        self._indices = np.zeros(config.buffer_size, dtype=np.int64)
        self._taken = 0
        self._since = 0
        self._head_start = 0

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """It doesn't matter who chose."""
        del seen
        return Decision(np.asarray(chosen))

    def take(self, step: Step) -> None:
        """Add it to the replay buffer, in place of the oldest if that is full."""
        self._indices[self._buffer.pos] = step.index
        done = np.array([step.terminated or step.truncated])
        infos = [{"TimeLimit.truncated": step.truncated}]  # the library then bootstraps from the next observation
        chosen = np.asarray(step.decision.chosen)
        self._buffer.add(step.seen[None], step.after[None], chosen[None], np.zeros(1), done, infos)
        self._taken += 1
        self._since += 1

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Add them to the replay buffer, and explore that much less."""
        for step in steps:
            self.take(step)
        self._head_start = len(steps)

    def due(self) -> bool:
        """Every ``train_freq`` trials, after the random ones."""
        return self._taken > self.random_trials and self._since >= self.config.train_freq

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on draws from the buffer."""
        if not self._taken or (last and self._taken <= self.random_trials):
            return {}
        self._since = 0
        self._update("train", closed)
        return self.logged()

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has."""
        if steps:
            for at in range(PRETRAIN_ROUNDS):
                self._update("pretrain", at)
            self._since = 0
            self.logged()

    def experience(self, number: int) -> int:
        """The trial's number, counted from the start of the run that it was warmed up with."""
        return number + self._head_start

    def _update(self, *names: str | int) -> None:
        buffer = self._buffer
        count = buffer.size()
        first = int(self._indices[:count].min())
        rewards = self.scale.scaled(last=len(self.scale) - first)
        buffer.rewards[:count, 0] = rewards[self._indices[:count] - first]
        batch = min(self.config.batch_size, max(count, LEAST_DRAWN))
        with self.draws.stream(*names):
            self.model.train(gradient_steps=self.config.gradient_steps, batch_size=batch)
        self.has_trained()


class DqnLearner(OffPolicyLearner):
    """Epsilon-greedy: chooses the action of the highest value or, less and less often, a random one."""

    config: DqnConfig

    def __init__(
        self, model: Any, draws: Draws, scale: RewardScale, config: DqnConfig, random_trials: int, horizon: int
    ) -> None:
        super().__init__(model, draws, scale, config, random_trials)
        self._fades = max(config.exploration_fraction * horizon, 1.0)
        self._copied = 0

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """Random with a probability that falls with the trial's number."""
        random = self.experience(number) <= self.random_trials
        if random or self.draws.unit("explore", number) < self.epsilon(number):
            return Decision(np.int64(self.draws.integer(int(self.model.action_space.n), "random", number)))
        return Decision(self.greedy(seen)[0])

    def epsilon(self, number: int) -> float:
        """The probability of a random choice in trial ``number``."""
        final = self.config.exploration_final
        return max(1.0 - (1.0 - final) * self.experience(number) / self._fades, final)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The action of the highest value."""
        return np.int64(self._values(seen).argmax()), None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values."""
        return self._values(seen)[elements]

    def _values(self, seen: np.ndarray) -> np.ndarray:
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            return self.model.q_net(_batch(seen)).numpy()[0]

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update; now and then the target network is copied."""
        told = super().train(closed, last)
        if closed - self._copied >= self.config.target_update:
            self._copied = closed
            self._copy()
        return {**told, "exploration/epsilon": self.epsilon(closed)} if told else told

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Updates, then a copy of the target network."""
        super().pretrain(steps)
        self._copy()

    def _copy(self) -> None:
        polyak_update(self.model.q_net.parameters(), self.model.q_net_target.parameters(), 1.0)


class SacLearner(OffPolicyLearner):
    """Draws from a policy with an entropy bonus."""

    continuous = True

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw from the policy; from the whole space at first."""
        if self.experience(number) <= self.random_trials:
            shape = self.model.action_space.shape
            units = [self.draws.unit("random", number, place) for place in range(int(np.prod(shape)))]
            return Decision(np.array([2.0 * one - 1.0 for one in units], dtype=np.float32).reshape(shape))
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            mean, log_std, _ = self.model.actor.get_action_dist_params(_batch(seen))
            normal = self.draws.generator("act", number).standard_normal(mean.shape[1:])
            chosen = np.tanh(mean.numpy()[0] + np.exp(log_std.numpy()[0]) * normal)
        return Decision(chosen.astype(np.float32))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The mean of the policy."""
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            chosen = self.model.actor(_batch(seen), deterministic=True)
        return chosen.numpy()[0], None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values by the more careful of the critics."""
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            again = torch.as_tensor(seen).expand(len(elements), -1)
            values = self.model.critic(again, torch.as_tensor(elements, dtype=torch.float32))
        return torch.cat(values, dim=1).min(dim=1).values.numpy()
