"""RLlib's algorithms without their loop: an agent's settings to RLlib's own, its learner, and its env runners.

``PpoAlgorithm`` learns from the steps since its last update, ``DqnAlgorithm`` from a replay buffer. Both are learners
of trials; ``live`` drives them, too, with steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.live_learner import DIVERGED, STARTS, Draws, check_memory
from tunegym.tuning.agents.rllib.env_runner import EnvRunners
from tunegym.tuning.agents.sb3.config import FEWEST, update_size
from tunegym.tuning.agents.trial_learner import LEAST_DRAWN, Decision, EpsilonGreedy, Step, TrialLearner, imitate
from tunegym.tuning.inference.experience import Experience

MODULE = "module"
"""The folder of RLlib's own files."""
CURVES = ("total_loss", "policy_loss", "vf_loss", "entropy", "vf_explained_var", "qf_loss", "qf_mean")
"""What RLlib reports of an update that goes into the training curves."""


class Algorithm(TrialLearner):
    """One network, its optimiser and its env runners over ``lanes``.

    ``horizon`` is the budget that schedules refer to. Rewards of trials are known only when it learns, from
    ``experience``. It is None where a step comes with its reward.
    """

    def __init__(
        self,
        config: Any,
        observations: spaces.Space[Any],
        actions: spaces.Space[Any],
        draws: Draws,
        lanes: int,
        horizon: int,
        experience: Experience | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.draws = draws
        self._space = actions
        self._horizon = horizon
        self._experience = experience
        self._steps: deque[Step] = deque(maxlen=self.capacity or None)
        settings = self._settings([*(config.net_arch or (64, 64))])
        linear = getattr(config, "learning_rate_schedule", "constant") == "linear"
        rate = [[0, config.learning_rate], [horizon, 0.0]] if linear else config.learning_rate
        clip = {"grad_clip": getattr(config, "max_grad_norm", None), "grad_clip_by": "global_norm"}
        settings.training(lr=rate, gamma=config.gamma, **clip)
        with draws.stream("network"):
            self._learner: Any = settings.build_learner(spaces={DEFAULT_MODULE_ID: (observations, actions)})
        self._module: Any = self._learner.module[DEFAULT_MODULE_ID]
        self._optimizer: torch.optim.Optimizer = self._learner.get_optimizer(DEFAULT_MODULE_ID)
        self._runners = EnvRunners(config.num_env_runners, lanes, settings, observations, actions, draws)
        self._publish()

    @abstractmethod
    def _settings(self, layers: list[int]) -> Any:
        """RLlib's settings of the algorithm, with a network of these layers."""

    # steps --------------------------------------------------------------------------------------------

    def decide(self, number: int, seen: Sequence[np.ndarray]) -> list[Decision]:
        """The choices for steps ``number`` and following, by the env runners."""
        return self._runners.decide(number, np.stack(seen))

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """The choice of an env runner."""
        return self.decide(number, [seen])[0]

    def _rewards(self, steps: Sequence[Step]) -> np.ndarray:
        if self._experience is None:
            return np.array([step.reward for step in steps], np.float32)
        return self._experience.rewards()[[step.index for step in steps]].astype(np.float32)

    # the network --------------------------------------------------------------------------------------

    def _update(
        self, name: str, taken: int, steps: Sequence[Step], columns: dict[str, Any], size: int, epochs: int = 1
    ) -> dict[str, float]:
        """One update of RLlib's in minibatches of ``size``, under our draws."""
        chosen = tree.map_structure(lambda *rows: np.stack(rows), *(step.decision.chosen for step in steps))
        columns |= {Columns.OBS: np.stack([step.seen for step in steps]), Columns.ACTIONS: chosen}
        batch = SampleBatch(tree.map_structure(torch.as_tensor, columns))
        with self.draws.stream(name, taken):
            told = self._learner.update(
                batch=MultiAgentBatch({DEFAULT_MODULE_ID: batch}, env_steps=len(steps)),
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: taken},
                num_epochs=epochs,
                minibatch_size=size,
                shuffle_batch_per_epoch=True,
            )[DEFAULT_MODULE_ID]
        self._has_learned()
        return {f"train/{key}": float(told[key].peek()) for key in CURVES if key in told}

    def _has_learned(self) -> None:
        if not all(bool(torch.isfinite(one).all()) for one in self._module.parameters()):
            raise TrainingError(DIVERGED)
        self.trained = True
        self._publish()

    def _publish(self) -> None:
        self._runners.set_state(self._module.get_state(inference_only=True))

    # what is kept -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The networks and their optimiser."""
        return {"module": dict(self._module.state_dict()), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``. Raises an exception if the state doesn't fit."""
        self._module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._has_learned()

    def save_model(self, files: PolicyFiles) -> None:
        """RLlib's ``RLModule.from_checkpoint`` takes it."""
        files.save_folder(self._module.save_to_path, MODULE)

    def close(self) -> None:
        """End the env runners. Calling it twice is fine."""
        self._runners.close()


class PpoAlgorithm(Algorithm):
    """PPO: learns from steps that its own policy decided, once; an update for every ``n_steps``."""

    off_policy = False

    def __init__(self, config: Any, *arguments: Any) -> None:
        super().__init__(config, *arguments)
        live = self._experience is None
        self._n_steps = config.n_steps * arguments[3] if live else config.n_steps or update_size(config, self._horizon)

    def _settings(self, layers: list[int]) -> Any:
        config = self.config
        network = DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="tanh", vf_share_layers=False)
        return (
            PPOConfig()
            .rl_module(model_config=network)
            .training(
                entropy_coeff=config.ent_coef,
                vf_loss_coeff=config.vf_coef,
                vf_clip_param=math.inf,
                clip_param=config.clip_range,
                use_kl_loss=False,
            )
        )

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The policy's probability of this choice."""
        return Decision(np.asarray(chosen), log_prob=float(self._log_probs(seen, np.asarray(chosen)[None])[0]))

    def take(self, step: Step) -> None:
        """Keep it for the next update."""
        self._steps.append(step)

    def due(self) -> bool:
        """Whether there are enough steps."""
        return len(self._steps) >= self._n_steps

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on all that was collected; nothing if that is too little."""
        steps = list(self._steps)
        if len(steps) < FEWEST:
            return {}
        self._steps.clear()
        rewards = self._rewards(steps)
        size = min(self.config.batch_size or len(steps), len(steps))
        told = self._update("train", closed, steps, self._advantages(steps, rewards), size, self.config.n_epochs)
        return {"rollout/reward": float(rewards.mean()), **told}

    def _advantages(self, steps: Sequence[Step], rewards: np.ndarray) -> dict[str, Any]:
        """Generalized advantage estimates, lane by lane: a lane's last step here is followed by the value after it."""
        gamma, carried = self.config.gamma, {}
        seen, after = np.stack([step.seen for step in steps]), np.stack([step.after for step in steps])
        with self.draws.one_thread(), torch.no_grad():
            values, following = (self._values(torch.as_tensor(rows)).numpy() for rows in (seen, after))
            inputs = self._inputs(torch.as_tensor(seen))  # of a KL term that is off
        advantages = rewards + gamma * following * [not step.terminated for step in steps] - values
        for at, step in reversed(list(enumerate(steps))):
            if not step.terminated and not step.truncated:
                advantages[at] += gamma * self.config.gae_lambda * carried.get(step.lane, 0.0)
            carried[step.lane] = advantages[at]
        targets = advantages + values
        if getattr(self.config, "normalize_advantage", True):
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return {
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: np.array([step.decision.log_prob for step in steps], np.float32),
            Postprocessing.ADVANTAGES: advantages.astype(np.float32),
            Postprocessing.VALUE_TARGETS: targets.astype(np.float32),
        }

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        with self.draws.one_thread(), torch.no_grad():
            chosen = self._policy(torch.as_tensor(seen[None])).to_deterministic().sample()[0].numpy()
        return chosen, float(self.preference(seen, chosen[None])[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        return np.exp(self._log_probs(seen, elements))

    def _log_probs(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        with self.draws.one_thread(), torch.no_grad():
            again = torch.as_tensor(seen).expand(len(elements), -1)
            return self._policy(again).logp(torch.as_tensor(elements)).numpy()

    def _values(self, seen: torch.Tensor) -> torch.Tensor:
        return self._module.compute_values({Columns.OBS: seen})

    def _inputs(self, seen: torch.Tensor) -> torch.Tensor:
        return self._module.forward_train({Columns.OBS: seen})[Columns.ACTION_DIST_INPUTS]

    def _policy(self, seen: torch.Tensor) -> Any:
        return self._module.get_train_action_dist_cls().from_logits(self._inputs(seen))

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better trials, and fit the value function."""
        if steps:
            with self.draws.one_thread():
                imitate(steps, self._rewards(steps), self._evaluate, self._optimizer, self.config)
            self._has_learned()

    def _evaluate(self, seen: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        policy = self._policy(seen)
        return self._values(seen), policy.logp(chosen), policy.entropy()


class DqnAlgorithm(EpsilonGreedy, Algorithm):
    """DQN: epsilon-greedy over a double, dueling network that learns from draws of a replay buffer."""

    def __init__(self, config: Any, *arguments: Any) -> None:
        self.capacity = config.buffer_size
        super().__init__(config, *arguments)
        observations, lanes, live = arguments[0], arguments[3], self._experience is None
        check_memory(observations, min(self.capacity, self._horizon))
        starts = min(STARTS, self._horizon // 10) if live else max(8, min(100, self._horizon // 10))
        self.random_trials = starts if config.learning_starts is None else config.learning_starts
        self.train_freq = config.train_freq * (lanes if live else 1)
        self.fades = max(config.exploration_fraction * self._horizon, 1.0)

    def _settings(self, layers: list[int]) -> Any:
        config = self.config
        network = DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="relu", head_fcnet_hiddens=layers[-1:])
        if self._experience is None:
            self.first, self.final = config.exploration_initial_eps, config.exploration_final_eps
            target = {"target_network_update_freq": config.target_update_interval, "tau": config.tau}
        else:
            self.final = config.exploration_final
            target = {"target_network_update_freq": config.target_update, "tau": 1.0}
        return DQNConfig().rl_module(model_config=network).training(**target)

    def decide(self, number: int, seen: Sequence[np.ndarray]) -> list[Decision]:
        """The best choices or, less and less often, random ones."""
        count = int(getattr(self._space, "n", 0))
        best = super().decide(number, seen)
        return [self.explored(number + at, count) or one for at, one in enumerate(best)]

    def take(self, step: Step) -> None:
        """Add it to the replay buffer, in place of the oldest if that is full."""
        super().take(step)
        self._steps.append(step)

    def update(self, name: str, number: int) -> dict[str, float]:
        """Gradient steps, each on another draw from the buffer."""
        count = len(self._steps)
        size = min(self.config.batch_size, max(count, LEAST_DRAWN))
        gradient_steps = self.config.gradient_steps
        drawn = size * (gradient_steps if gradient_steps > 0 else self.train_freq)
        rows = np.random.default_rng(self.draws.integer(2**63, "replay", name, number)).integers(count, size=drawn)
        steps = [self._steps[row] for row in rows]
        columns = {
            Columns.NEXT_OBS: np.stack([step.after for step in steps]),
            Columns.REWARDS: self._rewards(steps),
            Columns.TERMINATEDS: np.array([step.terminated for step in steps]),
            "weights": np.ones(drawn, np.float32),
            "n_step": np.ones(drawn, np.float32),
        }
        return self._update(name, number, steps, columns, size)

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The action of the highest value."""
        return np.int64(self._all_values(seen).argmax()), None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values."""
        return self._all_values(seen)[elements]

    def _all_values(self, seen: np.ndarray) -> np.ndarray:
        with self.draws.one_thread(), torch.no_grad():
            return self._module.compute_q_values({Columns.OBS: torch.as_tensor(seen[None])})["qf_preds"].numpy()[0]


ALGORITHMS: dict[str, type[Algorithm]] = {"rllib_ppo": PpoAlgorithm, "rllib_dqn": DqnAlgorithm}
"""By the agent's name."""
