"""RLlib's algorithms without their loop: an agent's settings to RLlib's own, its learner, and its env runners.

``Algorithm`` is one network with its optimiser, and its env runners. ``PpoAlgorithm`` learns from the episodes that
these collect; ``DqnAlgorithm`` from a replay buffer here. Rewards of collected steps may be known only when it learns:
``rewards`` gives those of indices, where it is not None.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.rllib.runner import EnvRunners, GreedyRunner, LaneRunner, Result, Shown
from tunegym.tuning.agents.training import DIVERGED, Draws

MODULE = "module"
"""The folder of RLlib's own files."""
LEAST_DRAWN = 256
"""A larger batch than this has no more steps than there are: repeating them ten times teaches nothing."""
Rewards = Callable[[np.ndarray], np.ndarray]
CURVES: Mapping[str, str] = {
    "total_loss": "train/loss",
    "policy_loss": "train/policy_gradient_loss",
    "vf_loss": "train/value_loss",
    "entropy": "train/entropy",
    "vf_explained_var": "train/explained_variance",
    "qf_loss": "train/loss",
    "qf_mean": "train/value",
}
"""RLlib's names of what an update reports, and those in the training curves."""


class _TrimmedBatch(ConnectorV2):
    """Drops the rows that RLlib adds behind each part of an episode, once their values are known.

    A minibatch then has as many steps as the settings say, and never none at all. Advantages are normalized again,
    without those rows.
    """

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> Any:
        for columns in batch.values():
            kept = columns.pop(Columns.LOSS_MASK, None)
            if kept is not None:
                for name, column in columns.items():
                    columns[name] = tuple(part[kept] for part in column) if isinstance(column, tuple) else column[kept]
            advantages = columns[Postprocessing.ADVANTAGES]
            columns[Postprocessing.ADVANTAGES] = (advantages - advantages.mean()) / (
                advantages.std(unbiased=False) + 1e-8
            )
        return batch


class _PpoLearner(PPOTorchLearner):
    def build(self) -> None:
        """Build it, and add our connector behind RLlib's."""
        super().build()
        if self._learner_connector is not None:
            self._learner_connector.append(_TrimmedBatch())


class Algorithm(ABC):
    """One network, its optimiser and its env runners; ``lanes`` is the number of lanes, ``config`` the settings."""

    def __init__(
        self,
        config: Any,
        observations: spaces.Space[Any],
        actions: spaces.Space[Any],
        draws: Draws,
        lanes: int,
        rewards: Rewards | None = None,
    ) -> None:
        self.config = config
        self.actions = actions
        self.draws = draws
        self.trained = False
        self._rewards = rewards
        theirs = self._settings().api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        theirs.learners(num_learners=0).env_runners(num_env_runners=config.num_env_runners)
        layers: list[int] = [*(config.net_arch or (64, 64))]
        theirs.rl_module(model_config=self._network(layers))
        theirs.training(lr=config.learning_rate, gamma=config.gamma)
        grad_clip = getattr(config, "max_grad_norm", None)
        theirs.training(grad_clip=grad_clip, grad_clip_by="global_norm")
        with draws.stream("network"):
            self.learner: Any = theirs.build_learner(spaces={DEFAULT_MODULE_ID: (observations, actions)})
        self.module: Any = self.learner.module[DEFAULT_MODULE_ID]
        self.runners = EnvRunners(
            config.num_env_runners, lanes, self._runner(), theirs, observations, actions, self.draws
        )
        self._publish()

    @abstractmethod
    def _settings(self) -> Any:
        """RLlib's settings of the algorithm."""

    def _network(self, layers: list[int]) -> DefaultModelConfig:
        return DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="tanh", vf_share_layers=False)

    def _runner(self) -> type[LaneRunner]:
        return LaneRunner

    def decide(self, shown: Sequence[Shown]) -> list[Any]:
        """An action for each lane."""
        return self.runners.decide(shown)

    @abstractmethod
    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """A step that was decided here has ended."""

    @abstractmethod
    def learn(self, taken: int, learning_rate: float) -> dict[str, float]:
        """Learn from what was added, after ``taken`` steps in all; returns values for the training curves.

        Raises ``TrainingError`` if the network diverged.
        """

    def _update(self, taken: int, learning_rate: float, **data: Any) -> dict[str, float]:
        """One update of RLlib's, under our draws."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with self.draws.stream("train", taken):
            told = self.learner.update(timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: taken}, **data)
        self.has_learned()
        values = told[DEFAULT_MODULE_ID]
        peeked = {ours: values[name] for name, ours in CURVES.items() if name in values}
        return {name: float(value.peek() if hasattr(value, "peek") else value) for name, value in peeked.items()}

    def has_learned(self) -> None:
        """Call after each update. Raises ``TrainingError`` if the network diverged."""
        if not self.is_finite():
            raise TrainingError(DIVERGED)
        self.trained = True
        self._publish()

    def _publish(self) -> None:
        self.runners.set_state(self.module.get_state(inference_only=True))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The network's."""
        return self.learner.get_optimizer(DEFAULT_MODULE_ID)

    def is_finite(self) -> bool:
        """Whether all parameters are finite numbers."""
        return all(bool(torch.isfinite(one).all()) for one in self.module.parameters())

    def state(self) -> dict[str, Any]:
        """The networks and their optimiser, as plain tensors and numbers."""
        return {"module": dict(self.module.state_dict()), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``. Raises an exception if the state doesn't fit."""
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.is_finite():
            raise ValueError("its network is not of finite numbers")
        self.trained = True
        self._publish()

    def save_module(self, folder: Path) -> None:
        """Write RLlib's own files of the network, which ``RLModule.from_checkpoint`` takes."""
        self.module.save_to_path(folder)

    def close(self) -> None:
        """End the env runners. Calling it twice is fine."""
        self.runners.close()


class PpoAlgorithm(Algorithm):
    """PPO: learns from the steps that its own policy decided, once."""

    _collected = 0

    def _settings(self) -> Any:
        config = self.config
        return (
            PPOConfig()
            .learners(learner_class=_PpoLearner)
            .training(
                lambda_=config.gae_lambda,
                entropy_coeff=config.ent_coef,
                vf_loss_coeff=config.vf_coef,
                vf_clip_param=math.inf,
                clip_param=config.clip_range,
                use_kl_loss=False,
            )
        )

    @property
    def collected(self) -> int:
        """Steps to learn from."""
        return self._collected

    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """Its env runner knows the rest."""
        del shown, chosen
        self.runners.add(result)
        self._collected += 1

    def learn(self, taken: int, learning_rate: float) -> dict[str, float]:
        """One update on all that was collected; nothing if that is nothing."""
        episodes = self.runners.sample()
        self._collected = 0
        if not episodes:
            return {}
        if self._rewards is not None:
            indices = np.array([info["index"] for episode in episodes for info in episode.get_infos()[1:]])
            rewards = iter(self._rewards(indices))
            for episode in episodes:
                episode.set_rewards(new_data=[next(rewards) for _ in range(len(episode))])
        steps = sum(map(len, episodes))
        mean = float(np.mean([episode.get_return() for episode in episodes]))
        size = min(self.config.batch_size or steps, steps)
        told = self._update(
            taken,
            learning_rate,
            episodes=episodes,
            num_epochs=self.config.n_epochs,
            minibatch_size=size,
            shuffle_batch_per_epoch=True,
        )
        return {"rollout/reward": mean * len(episodes) / steps, **told}

    def distribution(self, seen: np.ndarray) -> Any:
        """Of actions, for a batch of observations, with gradients."""
        inputs = self.module.forward_train({Columns.OBS: torch.as_tensor(seen)})[Columns.ACTION_DIST_INPUTS]
        return self.module.get_train_action_dist_cls().from_logits(inputs)

    def values(self, seen: np.ndarray) -> torch.Tensor:
        """Expected returns, for a batch of observations."""
        return self.module.compute_values({Columns.OBS: torch.as_tensor(seen)})

    def descend(self, loss: torch.Tensor) -> None:
        """One gradient step on a loss of our own."""
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
        self.optimizer.step()


class DqnAlgorithm(Algorithm):
    """DQN: a double, dueling network that learns from draws of a replay buffer of at most ``size`` steps."""

    def __init__(self, *arguments: Any, size: int, every: int, tau: float = 1.0, **more: Any) -> None:
        self._every, self._tau = every, tau
        super().__init__(*arguments, **more)
        observations: Any = arguments[1]
        width = int(np.prod(observations.shape))
        _check_memory(8 * width + 17, size)
        self.size = size
        self._seen = np.zeros((size, width), np.float32)
        self._after = np.zeros((size, width), np.float32)
        self._chosen = np.zeros(size, np.int64)
        self._values = np.zeros(size)
        self._over = np.zeros(size, bool)
        self.added = 0

    def _settings(self) -> Any:
        return DQNConfig().training(
            target_network_update_freq=self._every, tau=self._tau, num_steps_sampled_before_learning_starts=0
        )

    def _network(self, layers: list[int]) -> DefaultModelConfig:
        return DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="relu", head_fcnet_hiddens=layers[-1:])

    def _runner(self) -> type[LaneRunner]:
        return GreedyRunner

    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """Add it to the replay buffer, in place of the oldest if that is full."""
        at = self.added % self.size
        self._seen[at], self._after[at], self._chosen[at] = shown.seen, result.after, chosen
        self._values[at] = result.reward if self._rewards is None else result.index
        self._over[at] = result.terminated
        self.added += 1

    @property
    def count(self) -> int:
        """Steps in the replay buffer."""
        return min(self.added, self.size)

    def learn(self, taken: int, learning_rate: float, steps: int = 1, name: str = "replay") -> dict[str, float]:
        """``steps`` gradient steps, each on another draw from the buffer, which depends on ``name`` and ``taken``."""
        if not self.count:
            return {}
        size = min(self.config.batch_size, max(self.count, LEAST_DRAWN))
        rows = np.random.default_rng(self.draws.integer(2**63, name, taken)).integers(self.count, size=steps * size)
        values = self._values[rows]
        if self._rewards is not None:
            values = self._rewards(values.astype(np.int64))
        columns = {
            Columns.OBS: self._seen[rows],
            Columns.NEXT_OBS: self._after[rows],
            Columns.ACTIONS: self._chosen[rows],
            Columns.REWARDS: values.astype(np.float32),
            Columns.TERMINATEDS: self._over[rows],
            "weights": np.ones(len(rows), np.float32),
            "n_step": np.ones(len(rows), np.float32),
        }
        tensors = SampleBatch({name: torch.as_tensor(column) for name, column in columns.items()})
        batch = MultiAgentBatch({DEFAULT_MODULE_ID: tensors}, env_steps=len(rows))
        return self._update(taken, learning_rate, batch=batch, num_epochs=1, minibatch_size=size)

    def values(self, seen: np.ndarray) -> np.ndarray:
        """Of all actions, for a batch of observations."""
        with self.draws.one_thread(), torch.no_grad():
            return self.module.compute_q_values({Columns.OBS: torch.as_tensor(seen)})["qf_preds"].numpy()


def _check_memory(each: int, size: int) -> None:
    """Refuse a replay buffer that could fill the memory hours later."""
    there = psutil.virtual_memory().total
    if each * size > there:
        raise TrainingError(
            f"a replay buffer of {size} steps takes {each * size / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f} GB of memory; a buffer_size of up to {there // each} would be fine"
        )
