"""PPO and A2C: learn from their own choices only, an update at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.sb3.buffers import OwnRollout
from tunegym.tuning.agents.sb3.config import FEWEST
from tunegym.tuning.agents.sb3.learner import Decision, Learner, Step
from tunegym.tuning.agents.scaling import RewardScale

PRETRAIN_EPOCHS = 100
TEMPERATURE = 0.5
"""Pre-training imitates old trials, the better ones more: e times more for each such step on the rewards' scale."""
HIGHEST = 4.0
"""On that scale; a better trial is an outlier, which must not be all that is imitated."""
OPEN_MINDED = 0.05
"""What entropy is worth in pre-training, so that there is something left to explore."""


class OnPolicyLearner(Learner):
    """Collects ``n_steps`` trials over all lanes, trains on them, and forgets them.

    Lanes never wait for each other: a trial that was still running at an update counts for the next one.
    """

    learns_from_the_past = False

    def __init__(self, model: Any, borrowed: Borrowed, scale: RewardScale, n_steps: int) -> None:
        super().__init__(model, borrowed, scale)
        self._n_steps = n_steps
        self._steps: list[Step] = []

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """A draw from the policy."""
        with self.borrowed.one_thread(), torch.no_grad():
            distribution = self._distribution(_batch(seen))
            choices = distribution.distribution
            single = not isinstance(choices, list)
            drawn = [
                _drawn(one.probs.numpy()[0], self.borrowed.unit("act", number, place))
                for place, one in enumerate([choices] if single else choices)
            ]
            chosen = np.int64(drawn[0]) if single else np.array(drawn, dtype=np.int64)
            log_prob = distribution.log_prob(_batch(np.asarray(chosen)))
            value = self.model.policy.predict_values(_batch(seen))
        return Decision(chosen, float(value), float(log_prob))

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """How likely the policy was to choose this."""
        with self.borrowed.one_thread(), torch.no_grad():
            self.model.policy.set_training_mode(False)
            value, log_prob, _ = self.model.policy.evaluate_actions(_batch(seen), _batch(np.asarray(chosen)))
        return Decision(np.asarray(chosen), float(value), float(log_prob))

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most likely value of each knob."""
        with self.borrowed.one_thread(), torch.no_grad():
            distribution = self._distribution(_batch(seen))
            chosen = distribution.mode()
            log_prob = distribution.log_prob(chosen)
        return chosen.numpy()[0], float(torch.exp(log_prob))

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How likely each is."""
        with self.borrowed.one_thread(), torch.no_grad():
            again = torch.as_tensor(seen).expand(len(elements), -1)
            return torch.exp(self._distribution(again).log_prob(torch.as_tensor(elements))).numpy()

    def take(self, step: Step) -> None:
        """Keep it for the next update."""
        self._steps.append(step)

    def due(self) -> bool:
        """Whether there are enough trials."""
        return len(self._steps) >= self._n_steps

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update; at the end also on what is left over."""
        steps, self._steps = self._steps, []
        if len(steps) < FEWEST:
            return {}
        rewards = self._rewards(steps)
        self.model.rollout_buffer = self._rollout(steps, rewards, self.borrowed.generator("train", closed))
        with self.borrowed.one_thread():
            self.model.train()
        self.has_trained()
        return {"rollout/reward": float(rewards.mean()), **self.logged()}

    def pretrain(self, steps: Sequence[Step]) -> None:
        """Imitate the better ones, and learn what to expect."""
        if not steps:
            return
        rewards = self._rewards(steps)
        seen = torch.as_tensor(np.stack([step.seen for step in steps]))
        chosen = torch.as_tensor(np.stack([step.decision.chosen for step in steps]))
        likened = np.minimum(rewards, HIGHEST)
        worth = torch.as_tensor(np.exp((likened - likened.max()) / TEMPERATURE), dtype=torch.float32)
        targets = torch.as_tensor(rewards, dtype=torch.float32)
        policy = self.model.policy
        with self.borrowed.one_thread():
            policy.set_training_mode(True)
            for _ in range(PRETRAIN_EPOCHS):
                values, log_probs, entropy = policy.evaluate_actions(seen, chosen)
                imitation = -(worth * log_probs).sum() / worth.sum()
                error = torch.nn.functional.mse_loss(values.flatten(), targets)
                loss = imitation - OPEN_MINDED * entropy.mean() + self.model.vf_coef * error
                policy.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), self.model.max_grad_norm)
                policy.optimizer.step()
        self.has_trained()

    def _distribution(self, seen: torch.Tensor) -> Any:
        self.model.policy.set_training_mode(False)
        return self.model.policy.get_distribution(seen)

    def _rewards(self, steps: Sequence[Step]) -> np.ndarray:
        """On the scale of all that is known by now."""
        indices = np.array([step.index for step in steps])
        first = int(indices.min())
        return self.scale.scaled(last=len(self.scale) - first)[indices - first]

    # the rollout --------------------------------------------------------------------------------------

    def _rollout(self, steps: Sequence[Step], rewards: np.ndarray, rng: np.random.Generator) -> OwnRollout:
        """The library's buffer, filled lane by lane, which may be of any lengths."""
        buffer = OwnRollout(len(steps), self.model, rng)
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
        with self.borrowed.one_thread(), torch.no_grad():
            return self.model.policy.predict_values(torch.as_tensor(np.stack(seen))).numpy().reshape(-1)


def _batch(one: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(one).unsqueeze(0)


def _drawn(chances: np.ndarray, place: float) -> int:
    """The index that ``place``, from 0 to 1, falls on."""
    sums = np.cumsum(chances, dtype=np.float64)
    return min(int(np.searchsorted(sums, place * sums[-1], side="right")), len(chances) - 1)
