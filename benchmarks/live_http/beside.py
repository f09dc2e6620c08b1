"""Default settings and a policy in turn, on one service under one load after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

WINDOWS = 3
"""In a turn. The first one still has the queue that the default settings built up, whoever's turn it is."""

CLEARLY = 1.1
"""A ratio that is more than luck."""


@dataclass(frozen=True)
class Turn:
    """The means of a turn's windows."""

    reward: float
    throughput_rps: float
    p99_ms: float
    error_share: float
    knobs: Mapping[str, int]


@dataclass(frozen=True)
class Beside:
    """Both under one load, a turn each in every round."""

    load: float
    default: tuple[Turn, ...]
    learned: tuple[Turn, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of the rewards, in each round."""
        return tuple(
            ours.reward / max(theirs.reward, 1e-9) for ours, theirs in zip(self.learned, self.default, strict=True)
        )

    @property
    def ratio(self) -> float:
        """The median of the rounds."""
        return median(self.ratios)

    @property
    def ahead(self) -> bool:
        """Whether the policy clearly beats the default settings."""
        return self.ratio > CLEARLY

    def middle(self, name: str) -> tuple[float, float]:
        """The medians of a number: default, learned."""
        return median(getattr(turn, name) for turn in self.default), median(
            getattr(turn, name) for turn in self.learned
        )


def measured(
    service: Any, policy: Callable[[np.ndarray], np.ndarray], loads: Sequence[float], rounds: int
) -> list[Beside]:
    """Rounds over all loads; who begins alternates."""
    turns: dict[tuple[float, str], list[Turn]] = {}
    for at in range(rounds):
        for load in loads:
            for who in ("default", "learned") if at % 2 == 0 else ("learned", "default"):
                service.apply_env_params({"load": load})
                choose = policy if who == "learned" else lambda _: service.default_action
                turns.setdefault((load, who), []).append(_turn(service, choose, seed=at))
    return [Beside(load, tuple(turns[load, "default"]), tuple(turns[load, "learned"])) for load in loads]


def _turn(service: Any, choose: Callable[[np.ndarray], np.ndarray], seed: int) -> Turn:
    observation, _ = service.reset(seed=seed)
    rewards, found = [], []
    for _ in range(WINDOWS):
        observation, reward, _, _, info = service.step(choose(observation))
        rewards.append(reward)
        found.append(info)
    means = {name: fmean(info[name] for info in found) for name in ("throughput_rps", "p99_ms", "error_share")}
    return Turn(reward=fmean(rewards), knobs=found[-1]["knobs"], **means)
