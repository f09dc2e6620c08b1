"""RLlib's algorithms as learners of trials; the loop is that of all policy agents, ``TrialTraining``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from gymnasium import spaces

from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.history import TrialHistory
from tunegym.tuning.agents.rllib.algorithm import MODULE, Algorithm, DqnAlgorithm, PpoAlgorithm
from tunegym.tuning.agents.rllib.config import RllibDqnConfig, RllibPpoConfig
from tunegym.tuning.agents.rllib.runner import Result, Shown
from tunegym.tuning.agents.sb3.config import FEWEST, HORIZON, update_size
from tunegym.tuning.agents.training import Draws
from tunegym.tuning.agents.trial_training import (
    PRETRAIN_ENTROPY,
    PRETRAIN_EPOCHS,
    PRETRAIN_ROUNDS,
    Decision,
    Step,
    TrialLearner,
    imitation_weights,
)

AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)


class RllibLearner(TrialLearner, Generic[AlgorithmT]):
    """An algorithm of RLlib that learns from trials, with rewards on the scale of the history."""

    def __init__(self, algorithm: AlgorithmT, history: TrialHistory) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.history = history

    @property
    def actions(self) -> str:
        """The kind of its action space."""
        return type(self.algorithm.actions).__name__

    @property
    def capacity(self) -> int:
        """The size of the replay buffer, if there is one."""
        return 0

    def act(self, seen: np.ndarray, number: int, lane: int = 0) -> Decision:
        """The choice of the lane's env runner."""
        return Decision(self.algorithm.decide([Shown(lane, number, seen, epsilon=self.epsilon(number))])[0])

    def epsilon(self, number: int) -> float:
        """The probability of a random choice in trial ``number``."""
        del number
        return 0.0

    def take(self, step: Step) -> None:
        """Add a closed trial."""
        result = Result(step.lane, step.after, 0.0, step.terminated, step.truncated, step.index)
        self.algorithm.add(Shown(step.lane, 0, step.seen), step.decision.chosen, result)

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update."""
        told = self._learn(closed, last)
        self.trained = self.algorithm.trained
        return told

    @abstractmethod
    def _learn(self, closed: int, last: bool) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]:
        """The networks and their optimiser."""
        return self.algorithm.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Set the parameters to those of a checkpoint."""
        self.algorithm.restore(state)
        self.trained = True

    def save_model(self, files: PolicyFiles) -> None:
        """RLlib's ``RLModule.from_checkpoint`` takes it."""
        files.save_folder(self.algorithm.save_module, MODULE)

    def close(self) -> None:
        """End the env runners."""
        self.algorithm.close()


class PpoLearner(RllibLearner[PpoAlgorithm]):
    """PPO: an update for every ``n_steps`` trials."""

    off_policy = False

    def __init__(self, algorithm: PpoAlgorithm, history: TrialHistory, n_steps: int) -> None:
        super().__init__(algorithm, history)
        self._n_steps = n_steps

    def judge(self, seen: np.ndarray, chosen: Any, lane: int = 0) -> Decision:
        """The lane's env runner is told of the choice."""
        self.algorithm.decide([Shown(lane, 0, seen, forced=np.asarray(chosen))])
        return Decision(np.asarray(chosen))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        with self.algorithm.draws.one_thread(), torch.no_grad():
            chosen = self.algorithm.distribution(seen[None]).to_deterministic().sample()[0].numpy()
        return chosen, float(self.preference(seen, chosen[None])[0])

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        with self.algorithm.draws.one_thread(), torch.no_grad():
            again = np.repeat(seen[None], len(elements), axis=0)
            return torch.exp(self.algorithm.distribution(again).logp(torch.as_tensor(elements))).numpy()

    def due(self) -> bool:
        """Whether there are enough trials."""
        return self.algorithm.collected >= self._n_steps

    def _learn(self, closed: int, last: bool) -> dict[str, float]:
        if self.algorithm.collected < FEWEST:
            return {}
        return self.algorithm.learn(closed, self.algorithm.config.learning_rate)

    def warm_up(self, steps: Sequence[Step]) -> None:
        """It can't learn from choices of another run later on."""

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better trials, and fit the value function."""
        if not steps:
            return
        rewards = self.history.scaled_at(np.array([step.index for step in steps]))
        weights = torch.as_tensor(imitation_weights(rewards), dtype=torch.float32)
        targets = torch.as_tensor(rewards, dtype=torch.float32)
        seen = np.stack([step.seen for step in steps])
        chosen = torch.as_tensor(np.stack([step.decision.chosen for step in steps]))
        algorithm = self.algorithm
        with algorithm.draws.one_thread():
            for _ in range(PRETRAIN_EPOCHS):
                policy = algorithm.distribution(seen)
                imitation = -(weights * policy.logp(chosen)).sum() / weights.sum()
                error = torch.nn.functional.mse_loss(algorithm.values(seen), targets)
                bonus = PRETRAIN_ENTROPY * policy.entropy().mean()
                algorithm.descend(imitation - bonus + algorithm.config.vf_coef * error)
        algorithm.has_learned()
        self.trained = True


class DqnLearner(RllibLearner[DqnAlgorithm]):
    """DQN: epsilon-greedy, with an update every ``train_freq`` trials after the random ones."""

    off_policy = True

    def __init__(self, algorithm: DqnAlgorithm, history: TrialHistory, horizon: int) -> None:
        super().__init__(algorithm, history)
        config: RllibDqnConfig = algorithm.config
        starts = config.learning_starts
        self._config = config
        self._random = max(8, min(100, horizon // 10)) if starts is None else starts
        self._fades = max(config.exploration_fraction * horizon, 1.0)
        self._head_start = 0
        self._learned = 0

    @property
    def capacity(self) -> int:
        """The size of the replay buffer."""
        return self.algorithm.size

    def epsilon(self, number: int) -> float:
        """1 at first, then less and less."""
        number += self._head_start
        final = self._config.exploration_final
        return 1.0 if number <= self._random else max(1.0 - (1.0 - final) * number / self._fades, final)

    def judge(self, seen: np.ndarray, chosen: Any, lane: int = 0) -> Decision:
        """It doesn't matter who chose."""
        return Decision(np.asarray(chosen))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The combination of the highest value."""
        return np.int64(self.algorithm.values(seen[None])[0].argmax()), None

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their values."""
        return self.algorithm.values(seen[None])[0][elements]

    def due(self) -> bool:
        """Every ``train_freq`` trials, after the random ones."""
        added = self.algorithm.added
        return added > self._random and added - self._learned >= self._config.train_freq

    def _learn(self, closed: int, last: bool) -> dict[str, float]:
        if self.algorithm.added <= self._random:
            return {}
        self._learned = self.algorithm.added
        told = self.algorithm.learn(closed, self._config.learning_rate, self._config.gradient_steps)
        return {**told, "exploration/epsilon": self.epsilon(closed)} if told else told

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Add them to the replay buffer, and explore that much less."""
        for step in steps:
            self.take(step)
        self._head_start = len(steps)

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has."""
        if steps:
            config = self._config
            for at in range(PRETRAIN_ROUNDS):
                self.algorithm.learn(at * config.train_freq, config.learning_rate, config.gradient_steps, "pretrain")
            self.trained = True


def build_learner(
    config: RllibPpoConfig | RllibDqnConfig,
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    history: TrialHistory,
    seed: int,
    trials: int | None,
    lanes: int,
) -> RllibLearner[Any]:
    """The learner for an agent's settings and spaces; ``trials`` is the budget, None if only time bounds it."""
    horizon = trials or HORIZON
    if isinstance(config, RllibPpoConfig):
        n_steps = config.n_steps or update_size(config, horizon)
        draws = Draws(seed, "rllib_ppo")
        ppo = PpoAlgorithm(config, observations, actions, draws, lanes, rewards=history.scaled_at)
        return PpoLearner(ppo, history, n_steps)
    draws, size = Draws(seed, "rllib_dqn"), config.buffer_size
    dqn = DqnAlgorithm(
        config,
        observations,
        actions,
        draws,
        lanes,
        rewards=history.scaled_at,
        size=size,
        every=config.target_update,
    )
    return DqnLearner(dqn, history, horizon)
