"""Algorithms of Stable-Baselines3 without their loop: the learners of trials.

A learner acts, is given closed trials, and trains when it is due; ``trials`` has the loop. PPO and A2C learn only from
their own choices, an update at a time; DQN and SAC keep all trials in a replay buffer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import polyak_update

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.live_learner import DIVERGED, Draws
from tunegym.tuning.agents.sb3 import algorithms
from tunegym.tuning.agents.sb3.algorithms import Spaces
from tunegym.tuning.agents.sb3.config import FEWEST, DqnConfig, OnPolicyConfig, PpoConfig, SacConfig, update_size
from tunegym.tuning.agents.trial_learner import (
    LEAST_DRAWN,
    Decision,
    EpsilonGreedy,
    OffPolicy,
    Step,
    TrialLearner,
    imitate,
)
from tunegym.tuning.inference.experience import Experience


def build_learner(
    config: OnPolicyConfig | DqnConfig | SacConfig,
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    experience: Experience,
    seed: int,
    horizon: int,
) -> Learner:
    """The learner for an agent's settings and spaces; ``horizon`` is the budget of trials."""
    draws = Draws(seed, type(config).__name__.removesuffix("Config").lower())
    env = Spaces(observations, actions)
    if isinstance(config, OnPolicyConfig):
        n_steps = config.n_steps or update_size(config, horizon)
        own: dict[str, Any] = {"n_steps": n_steps, "normalize_advantage": True}
        if isinstance(config, PpoConfig):
            own["batch_size"] = config.batch_size or n_steps
            model = algorithms.build(PPO, "MlpPolicy", env, config, draws, **own)
        else:
            adam = {"use_rms_prop": False, "policy_kwargs": {"optimizer_class": torch.optim.Adam}}
            model = algorithms.build(A2C, "MlpPolicy", env, config, draws, **own, **adam)
        return OnPolicyLearner(model, draws, experience, n_steps)
    if isinstance(config, DqnConfig):
        return DqnLearner(algorithms.build(DQN, "MlpPolicy", env, config, draws), draws, experience, config, horizon)
    return SacLearner(algorithms.build(SAC, "MlpPolicy", env, config, draws), draws, experience, config, horizon)


class Learner(TrialLearner):
    """An algorithm of the library without its loop; ``model`` is the library's."""

    def __init__(self, model: Any, draws: Draws, experience: Experience) -> None:
        super().__init__()
        self.model = model
        self.draws = draws
        self.experience = experience
        self.capacity = getattr(model, "buffer_size", 0)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The best choice, and its probability if it is known."""
        with self.draws.one_thread():
            return self.model.policy.predict(seen, deterministic=True)[0], None

    def state(self) -> dict[str, Any]:
        """The networks and their optimisers."""
        return algorithms.state_of(self.model)

    def restore(self, state: dict[str, Any]) -> None:
        """Set the parameters to those of a checkpoint."""
        algorithms.restore(self.model, state)
        self.trained = True

    def save_model(self, files: PolicyFiles) -> None:
        """The library's ``load`` takes it."""
        files.save_model(self.model.save)

    def rewards(self, indices: np.ndarray) -> np.ndarray:
        """Rewards of trials, scaled by all that are known by now."""
        return self.experience.rewards()[indices]

    def has_trained(self) -> dict[str, float]:
        """Call after each update: the library's log of it. Raises ``TrainingError`` if the network diverged."""
        if not algorithms.is_finite(self.model):
            raise TrainingError(DIVERGED)
        self.trained = True
        values = {name: float(value) for name, value in self.model.logger.name_to_value.items()}
        self.model.logger.name_to_value.clear()
        return values

    @contextlib.contextmanager
    def asked(self) -> Iterator[Any]:
        """The policy, to be asked and not trained."""
        with self.draws.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            yield self.model.policy


def _batch(one: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(one)).unsqueeze(0)


class OnPolicyLearner(Learner):
    """PPO and A2C: collects ``n_steps`` trials over all lanes, trains on them, and forgets them.

    Lanes never wait for each other: a trial that was still running at an update counts for the next one.
    """

    off_policy = False

    def __init__(self, model: Any, draws: Draws, experience: Experience, n_steps: int) -> None:
        super().__init__(model, draws, experience)
        self._n_steps = n_steps
        self._steps: list[Step] = []

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw from the policy."""
        with self.asked() as policy, self.draws.torch_stream("act", number):
            chosen, value, log_prob = policy(_batch(seen))
        return Decision(chosen.numpy()[0], float(value), float(log_prob))

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The policy's probability of this choice."""
        with self.asked() as policy:
            value, log_prob, _ = policy.evaluate_actions(_batch(seen), _batch(chosen))
        return Decision(np.asarray(chosen), float(value), float(log_prob))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        chosen, _ = super().greedy(seen)
        return chosen, float(self.preference(seen, chosen[None])[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        with self.asked() as policy:
            distribution = policy.get_distribution(torch.as_tensor(seen).expand(len(elements), -1))
            return torch.exp(distribution.log_prob(torch.as_tensor(elements))).numpy()

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
        rewards = self.rewards(np.array([step.index for step in steps]))
        self.model.rollout_buffer = self._rollout(steps, rewards)
        with self.draws.stream("train", closed):
            self.model.train()
        return {"rollout/reward": float(rewards.mean()), **self.has_trained()}

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better trials, and fit the value function."""
        if not steps:
            return
        rewards = self.rewards(np.array([step.index for step in steps]))
        policy = self.model.policy
        with self.draws.one_thread():
            policy.set_training_mode(True)
            imitate(steps, rewards, policy.evaluate_actions, policy.optimizer, self.model)
        self.has_trained()

    def _rollout(self, steps: Sequence[Step], rewards: np.ndarray) -> RolloutBuffer:
        """The library's buffer with one lane after another, which may be of any lengths."""
        model = self.model
        buffer = RolloutBuffer(
            len(steps), model.observation_space, model.action_space, "cpu", model.gae_lambda, model.gamma
        )
        order = sorted(range(len(steps)), key=lambda at: steps[at].lane)
        starts = True
        for at, following in zip(order, [*order[1:], None], strict=True):
            step, reward = steps[at], rewards[at]
            ends = step.terminated or step.truncated or following is None or steps[following].lane != step.lane
            if ends and not step.terminated and model.gamma:
                with self.asked() as policy:
                    reward += model.gamma * float(policy.predict_values(_batch(step.after)))
            value, log_prob = torch.tensor([step.decision.value]), torch.tensor([step.decision.log_prob])
            chosen = np.reshape(step.decision.chosen, (1, -1))
            buffer.add(step.seen[None], chosen, np.array([reward]), np.array([starts]), value, log_prob)
            starts = ends
        buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
        return buffer


class OffPolicyLearner(OffPolicy, Learner):
    """Keeps trials in the library's replay buffer; rewards there are rescaled before each update."""

    def __init__(
        self, model: Any, draws: Draws, experience: Experience, config: DqnConfig | SacConfig, horizon: int
    ) -> None:
        super().__init__(model, draws, experience)
        self.config = config
        self.train_freq = config.train_freq
        starts = config.learning_starts
        self.random_trials = max(8, min(100, horizon // 10)) if starts is None else starts
        self._buffer = model.replay_buffer
        self._indices = np.zeros(config.buffer_size, dtype=np.int64)

    def take(self, step: Step) -> None:
        """Add it to the replay buffer, in place of the oldest if that is full."""
        super().take(step)
        self._indices[self._buffer.pos] = step.index
        done = np.array([step.terminated or step.truncated])
        infos = [{"TimeLimit.truncated": step.truncated}]  # the library then bootstraps from the next observation
        chosen = np.asarray(step.decision.chosen)
        self._buffer.add(step.seen[None], step.after[None], chosen[None], np.zeros(1), done, infos)

    def update(self, name: str, number: int) -> dict[str, float]:
        """The library's update on draws from its buffer."""
        count = self._buffer.size()
        self._buffer.rewards[:count, 0] = self.rewards(self._indices[:count])
        batch = min(self.config.batch_size, max(count, LEAST_DRAWN))
        with self.draws.stream(name, number):
            self.model.train(gradient_steps=self.config.gradient_steps, batch_size=batch)
        return self.has_trained()


class DqnLearner(EpsilonGreedy, OffPolicyLearner):
    """Epsilon-greedy: chooses the action of the highest value or, less and less often, a random one."""

    config: DqnConfig

    def __init__(self, model: Any, draws: Draws, experience: Experience, config: DqnConfig, horizon: int) -> None:
        super().__init__(model, draws, experience, config, horizon)
        self.final = config.exploration_final
        self.fades = max(config.exploration_fraction * horizon, 1.0)
        self._copied = 0

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """Random with a probability that falls with the trial's number."""
        return self.explored(number, int(self.model.action_space.n)) or Decision(self.greedy(seen)[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values."""
        with self.asked() as policy:
            return policy.q_net(_batch(seen)).numpy()[0][elements]

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update; now and then the target network is copied."""
        told = super().train(closed, last)
        if closed - self._copied >= self.config.target_update:
            self._copied = closed
            self._copy()
        return told

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
        if self.trials_by(number) <= self.random_trials:
            shape = self.model.action_space.shape
            units = [self.draws.unit("random", number, place) for place in range(int(np.prod(shape)))]
            return Decision(np.array([2.0 * one - 1.0 for one in units], dtype=np.float32).reshape(shape))
        with self.asked() as policy, self.draws.torch_stream("act", number):
            return Decision(policy.actor(_batch(seen)).numpy()[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values by the more careful of the critics."""
        with self.asked() as policy:
            again = torch.as_tensor(seen).expand(len(elements), -1)
            values = policy.critic(again, torch.as_tensor(elements, dtype=torch.float32))
        return torch.cat(values, dim=1).min(dim=1).values.numpy()
