"""What the policy agents take in ``agent_config``. Defaults learn within 100 to 2,000 trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tunegym.core.errors import Problem
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.envs.actions import BINS, LIMIT
from tunegym.tuning.model.values import spelled


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(AgentConfig):
    """Common to all policy agents.

    Attributes:
        learning_rate: how far one update moves the network.
        gamma: how much the rewards of later trials of an episode count. 0, because a trial doesn't change the next.
        net_arch: the hidden layers of the network.
        checkpoint_every: after so many trials, at the next update, the policy is saved.
        warm_start: the results folder of another run, whose trials the policy is pre-trained on.
    """

    learning_rate: float = 3e-3
    gamma: float = 0.0
    net_arch: tuple[int, ...] = (64, 64)
    checkpoint_every: int = 50
    warm_start: str | None = None


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(PolicyConfig):
    """Common to ``ppo`` and ``a2c``.

    Attributes:
        n_steps: the trials between two updates; by default it follows from the budget.
        gae_lambda: how far the advantage looks ahead within an episode.
        ent_coef: what it is worth to stay undecided.
        vf_coef: how much the value's error counts beside the policy's.
        max_grad_norm: the longest step of an update.
        bins: how many values of a range there are to choose from.
        joint: whether all knobs are one choice among their combinations, which is the way where they interact, rather
            than a choice each; by default where the budget is at least twenty times the number of combinations.
    """

    n_steps: int | None = None
    gae_lambda: float = 1.0
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    bins: int = BINS
    joint: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PpoConfig(OnPolicyConfig):
    """What ``ppo`` takes.

    Attributes:
        batch_size: the trials of one gradient step; by default all of an update.
        n_epochs: how often an update goes through its trials.
        clip_range: how far an update may move the policy.
    """

    batch_size: int | None = None
    n_epochs: int = 10
    clip_range: float = 0.2


@dataclass(frozen=True, kw_only=True)
class A2cConfig(OnPolicyConfig):
    """What ``a2c`` takes."""

    learning_rate: float = 1e-2
    ent_coef: float = 0.02
    joint: bool | None = False


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(PolicyConfig):
    """Common to ``dqn`` and ``sac``.

    Attributes:
        buffer_size: how many trials are remembered, the newest.
        learning_starts: the trials that are drawn at random before it learns; by default it follows from the budget.
        batch_size: the trials of one gradient step.
        train_freq: the trials between two updates.
        gradient_steps: the gradient steps of an update.
    """

    buffer_size: int = 10_000
    learning_starts: int | None = None
    batch_size: int = 64
    train_freq: int = 4
    gradient_steps: int = 4


@dataclass(frozen=True, kw_only=True)
class DqnConfig(OffPolicyConfig):
    """What ``dqn`` takes.

    Attributes:
        exploration_fraction: over this share of the budget, drawing at random fades out. Where only time bounds it,
            the budget is taken for 1,000 trials.
        exploration_final: the share of trials that are drawn at random after that.
        target_update: the trials between two copies of the network into the one that targets come from.
        bins: how many values of a range there are to choose from.
        max_actions: how many combinations of values there may be.
    """

    exploration_fraction: float = 0.8
    exploration_final: float = 0.05
    target_update: int = 100
    bins: int = BINS
    max_actions: int = LIMIT


@dataclass(frozen=True, kw_only=True)
class SacConfig(OffPolicyConfig):
    """What ``sac`` takes.

    Attributes:
        ent_coef: what it is worth to stay undecided; "auto" learns it.
        tau: the share by which the target network follows at each update.
    """

    ent_coef: float | Literal["auto"] = "auto"
    tau: float = 0.02


FEWEST = 4
"""An update on fewer trials would only be noise."""

BOUNDS: Mapping[str, tuple[float, float, bool]] = {
    "learning_rate": (0.0, 1.0, True),
    "gamma": (0.0, 1.0, False),
    "checkpoint_every": (1, float("inf"), False),
    "n_steps": (FEWEST, 1_000_000, False),
    "gae_lambda": (0.0, 1.0, False),
    "ent_coef": (0.0, 1000.0, False),
    "vf_coef": (0.0, 1000.0, False),
    "max_grad_norm": (0.0, 1_000_000.0, True),
    "bins": (2, 1000, False),
    "batch_size": (2, 1_000_000, False),
    "n_epochs": (1, 1000, False),
    "clip_range": (0.0, 1000.0, True),
    "buffer_size": (1, 10_000_000, False),
    "learning_starts": (0, float("inf"), False),
    "train_freq": (1, 1_000_000, False),
    "gradient_steps": (1, 1000, False),
    "exploration_fraction": (0.0, 1.0, True),
    "exploration_final": (0.0, 1.0, False),
    "target_update": (1, 1_000_000, False),
    "max_actions": (1, 1_000_000, False),
    "tau": (0.0, 1.0, True),
}
"""The least and the largest value of a setting, and whether the least one itself is out."""


def out_of_bounds(config: Any, bounds: Mapping[str, tuple[float, float, bool]] = BOUNDS) -> list[Problem]:
    """What no algorithm could work with; settings without bounds, and those that it doesn't have, are left out."""
    problems = []
    for setting, (least, most, beyond) in bounds.items():
        value: Any = getattr(config, setting, None)
        if isinstance(value, int | float) and not (least <= value <= most and not (beyond and value == least)):
            allowed = f"above {least:.15g}" if beyond else f"at least {least:.15g}"
            allowed += f" and at most {most:.15g}" if most != float("inf") else ""
            hint = f"leave {setting} out, or write a number that is {allowed}"
            where = f"agent_config.{setting}"
            problems.append(Problem(where, "the value is out of bounds", spelled(value), allowed, hint))
    layers = config.net_arch
    if layers is None:  # the library's own
        return problems
    if not layers or any(not 1 <= width <= 4096 for width in layers) or len(layers) > 8:
        allowed = "one to eight integers from 1 to 4096"
        where, hint = "agent_config.net_arch", "write for example net_arch = [64, 64]"
        problems.append(Problem(where, "no network has such layers", spelled(list(layers)), allowed, hint))
    return problems


def starts_too_late(config: Any, most_trials: int | None, unit: str = "trials") -> list[Problem]:
    """Refuse a start of learning that the budget, so many of ``unit``, never reaches."""
    starts = getattr(config, "learning_starts", None)
    if starts is None or most_trials is None or starts < most_trials:
        return []
    what = f"it would never learn: the budget is {most_trials} {unit}"
    hint = "leave learning_starts out: it then follows from the budget"
    return [Problem("agent_config.learning_starts", what, spelled(starts), f"less than {most_trials}", hint)]
