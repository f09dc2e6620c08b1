"""What a policy agent's loop needs of an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.scaling import RewardScale


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy chose.

    Attributes:
        chosen: an element of its action space.
        value: what it expects to get; 0 where it has no such estimate.
        log_prob: the logarithm of how likely the choice was; 0 where it isn't known.
    """

    chosen: Any
    value: float = 0.0
    log_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One closed trial as an algorithm sees it.

    Attributes:
        index: its place in the ``RewardScale``, which knows its reward.
        lane: where it ran.
        seen: the vector that was acted on.
        decision: what was chosen.
        after: the vector that the lane sees next.
        terminated: its episode ended, and nothing follows from it.
        truncated: its episode was cut off.
    """

    index: int
    lane: int
    seen: np.ndarray
    decision: Decision
    after: np.ndarray
    terminated: bool
    truncated: bool


class Learner(ABC):
    """An algorithm of Stable-Baselines3 without its loop: it acts, is told, and trains when it is due."""

    learns_from_the_past: bool
    """Whether trials that another policy chose, or an earlier state of this one, can be learned from."""
    continuous: bool = False
    """Whether it chooses anything between two settings, rather than one of many."""

    def __init__(self, model: Any, borrowed: Borrowed, scale: RewardScale) -> None:
        self.trained = False
        self.model = model
        self.borrowed = borrowed
        self.scale = scale
        model.set_logger(Logger(folder=None, output_formats=[]))

    @abstractmethod
    def act(self, seen: np.ndarray, number: int) -> Decision:
        """What to do in trial ``number``; the same for the same policy and number."""

    @abstractmethod
    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The decision for what somebody else chose."""

    @abstractmethod
    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The best choice as far as it knows, and how likely it is to be chosen."""

    @abstractmethod
    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How much it would rather choose each of ``elements`` than the others: more is better."""

    @abstractmethod
    def take(self, step: Step) -> None:
        """Take in a closed trial."""

    @abstractmethod
    def due(self) -> bool:
        """Whether it is time to train."""

    @abstractmethod
    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """Train on what was taken in; what is to be told about it.

        Args:
            closed: how many trials there have been.
            last: no trial follows.

        Raises:
            FloatingPointError: the network is no longer of numbers.
        """

    def warm(self, steps: Sequence[Step]) -> None:
        """Take in another run's trials, before anything of this one. By default nothing is kept of them."""
        del steps

    @abstractmethod
    def pretrain(self, steps: Sequence[Step]) -> None:
        """Learn from another run's trials, which were taken in, before the first one of this."""

    def parameters(self) -> dict[str, Any]:
        """The networks and their optimisers, as plain tensors."""
        state: dict[str, Any] = {"model": self.model.get_parameters()}
        entropy = getattr(self.model, "log_ent_coef", None)
        if entropy is not None:
            state["log_ent_coef"] = entropy.detach().clone()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Be again what ``parameters`` said."""
        self.model.set_parameters(state["model"], device="cpu")
        if "log_ent_coef" in state:
            self.model.log_ent_coef.data.copy_(state["log_ent_coef"])
        if not self._is_finite():
            raise ValueError("its network is not of finite numbers")
        self.trained = True

    def has_trained(self) -> None:
        """It knows something from now on, if it is still made of numbers. Raises ``FloatingPointError``."""
        if not self._is_finite():
            raise FloatingPointError(
                "the network is no longer of finite numbers; a smaller learning_rate may keep it from that"
            )
        self.trained = True

    def _is_finite(self) -> bool:
        return all(bool(torch.isfinite(one).all()) for one in self.model.policy.parameters())

    def logged(self) -> dict[str, float]:
        """What the library noted in its last training."""
        values = {name: float(value) for name, value in self.model.logger.name_to_value.items()}
        self.model.logger.name_to_value.clear()
        return values


class Spaces(gymnasium.Env[Any, Any]):
    """What the library asks the shapes of. It is never stepped: the agent owns the loop."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
