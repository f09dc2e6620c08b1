"""RLlib's algorithms without their loop: an agent's settings to RLlib's own, its learner, and its env runners.

``PpoAlgorithm`` learns from the episodes that its env runners collect, ``DqnAlgorithm`` from a replay buffer here. Both
are learners of trials; ``live`` drives them, too, with steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.rllib.config import LiveRllibDqnConfig
from tunegym.tuning.agents.rllib.runner import EnvRunners, GreedyRunner, LaneRunner, Result, Shown
from tunegym.tuning.agents.sb3.config import FEWEST
from tunegym.tuning.agents.training import DIVERGED, Draws, check_memory
from tunegym.tuning.agents.trial_training import (
    LEAST_DRAWN,
    PRETRAIN_ENTROPY,
    PRETRAIN_EPOCHS,
    PRETRAIN_ROUNDS,
    Decision,
    Step,
    TrialLearner,
    imitation_weights,
)

MODULE = "module"
"""The folder of RLlib's own files."""
CURVES = ("total_loss", "policy_loss", "vf_loss", "entropy", "vf_explained_var", "qf_loss", "qf_mean")
"""What RLlib reports of an update that goes into the training curves."""


class _TrimmedBatch(ConnectorV2):
    """Drops the rows that RLlib adds behind each part of an episode, once their values are known.

    A minibatch then has as many steps as the settings say, and never none at all. Advantages are normalized again,
    without those rows.
    """

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> Any:
        for columns in batch.values():
            kept = columns.pop(Columns.LOSS_MASK)
            for name, column in columns.items():
                columns[name] = tuple(part[kept] for part in column) if isinstance(column, tuple) else column[kept]
            found = columns[Postprocessing.ADVANTAGES]
            columns[Postprocessing.ADVANTAGES] = (found - found.mean()) / (found.std(unbiased=False) + 1e-8)
        return batch


class _PpoLearner(PPOTorchLearner):
    def build(self) -> None:
        """Build it, and add our connector behind RLlib's."""
        super().build()
        connectors: Any = self._learner_connector
        connectors.append(_TrimmedBatch())


class Algorithm(TrialLearner):
    """One network, its optimiser and its env runners over ``lanes``.

    ``horizon`` is the budget that schedules refer to. Rewards of trials are known only when it learns: ``rewards``
    gives them by their indices. It is None where a step comes with its reward.
    """

    def __init__(
        self,
        config: Any,
        observations: spaces.Space[Any],
        actions: spaces.Space[Any],
        draws: Draws,
        lanes: int,
        horizon: int,
        rewards: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.draws = draws
        self._space = actions
        self._horizon = horizon
        self._rewards = rewards
        theirs = self._settings()
        theirs.api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        theirs.learners(num_learners=0).env_runners(num_env_runners=config.num_env_runners)
        theirs.rl_module(model_config=self._network([*(config.net_arch or (64, 64))]))
        clip = {"grad_clip": getattr(config, "max_grad_norm", None), "grad_clip_by": "global_norm"}
        theirs.training(lr=config.learning_rate, gamma=config.gamma, **clip)
        with draws.stream("network"):
            self._learner: Any = theirs.build_learner(spaces={DEFAULT_MODULE_ID: (observations, actions)})
        self._module: Any = self._learner.module[DEFAULT_MODULE_ID]
        arguments = theirs, observations, actions, draws
        self._runners = EnvRunners(config.num_env_runners, lanes, self._runner(), *arguments)
        try:
            self._publish()
        except BaseException:
            self._runners.close()
            raise

    @abstractmethod
    def _settings(self) -> Any:
        """RLlib's settings of the algorithm."""

    @abstractmethod
    def _network(self, layers: list[int]) -> DefaultModelConfig: ...

    @abstractmethod
    def _runner(self) -> type[LaneRunner]: ...

    # steps --------------------------------------------------------------------------------------------

    def decide(self, shown: Sequence[Shown]) -> list[Any]:
        """An action for each lane, by its env runner."""
        return self._runners.decide(shown)

    @abstractmethod
    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """A step that was decided here has ended."""

    def epsilon(self, number: int) -> float:
        """The probability of a random choice in step ``number``, beside what the policy itself draws."""
        del number
        return 0.0

    def act(self, seen: np.ndarray, number: int, lane: int = 0) -> Decision:
        """The choice of the lane's env runner."""
        return Decision(self.decide([Shown(lane, number, seen, epsilon=self.epsilon(number))])[0])

    def take(self, step: Step) -> None:
        """Add a closed trial."""
        result = Result(step.lane, step.after, 0.0, step.terminated, step.truncated, step.index)
        self.add(Shown(step.lane, 0, step.seen), step.decision.chosen, result)

    # the network --------------------------------------------------------------------------------------

    def _update(self, taken: int, name: str = "train", **data: Any) -> dict[str, float]:
        """One update of RLlib's, under our draws and our schedule."""
        linear = getattr(self.config, "learning_rate_schedule", "constant") == "linear"
        rate = self.config.learning_rate * (max(0.0, 1.0 - taken / self._horizon) if linear else 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self.draws.stream(name, taken):
            told = self._learner.update(timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: taken}, **data)[DEFAULT_MODULE_ID]
        self._has_learned()
        return {f"train/{key}": float(told[key].peek()) for key in CURVES if key in told}

    def _has_learned(self) -> None:
        if not self._finite():
            raise TrainingError(DIVERGED)
        self.trained = True
        self._publish()

    def _publish(self) -> None:
        self._runners.set_state(self._module.get_state(inference_only=True))

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self._learner.get_optimizer(DEFAULT_MODULE_ID)

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(one).all()) for one in self._module.parameters())

    # what is kept -------------------------------------------------------------------------------------

    @property
    def actions(self) -> str:
        """The kind of its action space."""
        return type(self._space).__name__

    def state(self) -> dict[str, Any]:
        """The networks and their optimiser."""
        return {"module": dict(self._module.state_dict()), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``. Raises an exception if the state doesn't fit."""
        self._module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        if not self._finite():
            raise ValueError("its network is not of finite numbers")
        self.trained = True
        self._publish()

    def save_model(self, files: PolicyFiles) -> None:
        """RLlib's ``RLModule.from_checkpoint`` takes it."""
        files.save_folder(self._module.save_to_path, MODULE)

    def close(self) -> None:
        """End the env runners. Calling it twice is fine."""
        self._runners.close()


class PpoAlgorithm(Algorithm):
    """PPO: learns from steps that its own policy decided, once; an update for every ``n_steps``."""

    off_policy = False
    capacity = 0

    def __init__(self, *arguments: Any, n_steps: int, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._n_steps = n_steps
        self.collected = 0

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

    def _network(self, layers: list[int]) -> DefaultModelConfig:
        return DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="tanh", vf_share_layers=False)

    def _runner(self) -> type[LaneRunner]:
        return LaneRunner

    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """Its env runner knows the rest."""
        self._runners.add(result)
        self.collected += 1

    def judge(self, seen: np.ndarray, chosen: Any, lane: int = 0) -> Decision:
        """The lane's env runner is told of the choice."""
        self.decide([Shown(lane, 0, seen, forced=np.asarray(chosen))])
        return Decision(np.asarray(chosen))

    def due(self) -> bool:
        """Whether there are enough steps."""
        return self.collected >= self._n_steps

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on all that was collected; nothing if that is too little."""
        if self.collected < FEWEST:
            return {}
        episodes = self._runners.sample()
        self.collected = 0
        if self._rewards is not None:
            indices = np.array([info["index"] for episode in episodes for info in episode.get_infos()[1:]])
            rewards = iter(self._rewards(indices))
            for episode in episodes:
                episode.set_rewards(new_data=[next(rewards) for _ in range(len(episode))])
        steps = sum(map(len, episodes))
        mean = sum(episode.get_return() for episode in episodes) / steps
        size = min(self.config.batch_size or steps, steps)
        epochs = {"num_epochs": self.config.n_epochs, "minibatch_size": size, "shuffle_batch_per_epoch": True}
        return {"rollout/reward": float(mean), **self._update(closed, episodes=episodes, **epochs)}

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        with self.draws.one_thread(), torch.no_grad():
            chosen = self._distribution(seen[None]).to_deterministic().sample()[0].numpy()
        return chosen, float(self.preference(seen, chosen[None])[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        with self.draws.one_thread(), torch.no_grad():
            again = np.repeat(seen[None], len(elements), axis=0)
            return torch.exp(self._distribution(again).logp(torch.as_tensor(elements))).numpy()

    def _distribution(self, seen: np.ndarray) -> Any:
        inputs = self._module.forward_train({Columns.OBS: torch.as_tensor(seen)})[Columns.ACTION_DIST_INPUTS]
        return self._module.get_train_action_dist_cls().from_logits(inputs)

    def warm_up(self, steps: Sequence[Step]) -> None:
        """It can't learn from choices of another run later on."""

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better trials, and fit the value function."""
        if not steps or self._rewards is None:
            return
        rewards = self._rewards(np.array([step.index for step in steps]))
        weights = torch.as_tensor(imitation_weights(rewards), dtype=torch.float32)
        targets = torch.as_tensor(rewards, dtype=torch.float32)
        seen = np.stack([step.seen for step in steps])
        chosen = torch.as_tensor(np.stack([step.decision.chosen for step in steps]))
        with self.draws.one_thread():
            for _ in range(PRETRAIN_EPOCHS):
                policy = self._distribution(seen)
                imitation = -(weights * policy.logp(chosen)).sum() / weights.sum()
                values = self._module.compute_values({Columns.OBS: torch.as_tensor(seen)})
                error = torch.nn.functional.mse_loss(values, targets)
                loss = imitation - PRETRAIN_ENTROPY * policy.entropy().mean() + self.config.vf_coef * error
                self._optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._module.parameters(), self.config.max_grad_norm)
                self._optimizer.step()
        self._has_learned()


class DqnAlgorithm(Algorithm):
    """DQN: epsilon-greedy over a double, dueling network that learns from draws of a replay buffer of ``capacity``.

    The first ``starts`` steps are random; an update follows every ``train_freq`` steps after them.
    """

    off_policy = True
    capacity = 0

    def __init__(self, *arguments: Any, starts: int, train_freq: int, capacity: int, **more: Any) -> None:
        observations: Any = arguments[1]
        width = int(np.prod(observations.shape))
        check_memory(8 * width + 17, capacity)
        super().__init__(*arguments, **more)
        self._starts, self._train_freq, self.capacity = starts, train_freq, capacity
        self._seen, self._after = (np.zeros((capacity, width), np.float32) for _ in range(2))
        self._chosen = np.zeros(capacity, np.int64)
        self._values = np.zeros(capacity)  # rewards, or indices of trials
        self._over = np.zeros(capacity, bool)
        self._added = self._learned = self._head_start = 0

    def _settings(self) -> Any:
        config = self.config
        if isinstance(config, LiveRllibDqnConfig):
            self._first, self._final = config.exploration_initial_eps, config.exploration_final_eps
            return DQNConfig().training(target_network_update_freq=config.target_update_interval, tau=config.tau)
        self._first, self._final = 1.0, config.exploration_final
        return DQNConfig().training(target_network_update_freq=config.target_update, tau=1.0)

    def _network(self, layers: list[int]) -> DefaultModelConfig:
        return DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="relu", head_fcnet_hiddens=layers[-1:])

    def _runner(self) -> type[LaneRunner]:
        return GreedyRunner

    def epsilon(self, number: int) -> float:
        """1 at first, then less and less."""
        number += self._head_start
        if number <= self._starts:
            return 1.0
        faded = min(1.0, number / max(self.config.exploration_fraction * self._horizon, 1.0))
        return self._first + faded * (self._final - self._first)

    def add(self, shown: Shown, chosen: Any, result: Result) -> None:
        """Add it to the replay buffer, in place of the oldest if that is full."""
        at = self._added % self.capacity
        self._seen[at], self._after[at], self._chosen[at] = shown.seen, result.after, chosen
        self._values[at] = result.reward if self._rewards is None else result.index
        self._over[at] = result.terminated
        self._added += 1

    def judge(self, seen: np.ndarray, chosen: Any, lane: int = 0) -> Decision:
        """It doesn't matter who chose."""
        return Decision(np.asarray(chosen))

    def due(self) -> bool:
        """Every ``train_freq`` steps, after the random ones."""
        return self._added > self._starts and self._added - self._learned >= self._train_freq

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """Gradient steps, each on another draw from the buffer."""
        if self._added <= self._starts:
            return {}
        return {**self._replay(closed, "train"), "exploration/epsilon": self.epsilon(closed)}

    def _replay(self, taken: int, name: str) -> dict[str, float]:
        count = min(self._added, self.capacity)
        size = min(self.config.batch_size, max(count, LEAST_DRAWN))
        gradient_steps = self.config.gradient_steps
        drawn = size * (gradient_steps if gradient_steps > 0 else max(1, self._added - self._learned))
        self._learned = self._added
        rows = np.random.default_rng(self.draws.integer(2**63, "replay", name, taken)).integers(count, size=drawn)
        values = self._values[rows]
        if self._rewards is not None:
            values = self._rewards(values.astype(np.int64))
        columns = {
            Columns.OBS: self._seen[rows],
            Columns.NEXT_OBS: self._after[rows],
            Columns.ACTIONS: self._chosen[rows],
            Columns.REWARDS: values.astype(np.float32),
            Columns.TERMINATEDS: self._over[rows],
            "weights": np.ones(drawn, np.float32),
            "n_step": np.ones(drawn, np.float32),
        }
        tensors = SampleBatch({key: torch.as_tensor(column) for key, column in columns.items()})
        batch = MultiAgentBatch({DEFAULT_MODULE_ID: tensors}, env_steps=drawn)
        return self._update(taken, name, batch=batch, num_epochs=1, minibatch_size=size)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The action of the highest value."""
        return np.int64(self._all_values(seen).argmax()), None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values."""
        return self._all_values(seen)[elements]

    def _all_values(self, seen: np.ndarray) -> np.ndarray:
        with self.draws.one_thread(), torch.no_grad():
            return self._module.compute_q_values({Columns.OBS: torch.as_tensor(seen[None])})["qf_preds"].numpy()[0]

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Add them to the replay buffer, and explore that much less."""
        for step in steps:
            self.take(step)
        self._head_start = len(steps)

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has."""
        for at in range(PRETRAIN_ROUNDS if steps else 0):
            self._replay(at * self._train_freq, "pretrain")
