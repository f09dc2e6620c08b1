"""What agents of live experiments take in ``agent_config``. Names and defaults are those of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tunegym.core.errors import Problem
from tunegym.tuning.agents.sb3.config import BOUNDS
from tunegym.tuning.model.scenario import Penalties
from tunegym.tuning.model.values import spelled

Schedule: TypeAlias = Literal["constant", "linear"]

LIVE_BOUNDS: Mapping[str, tuple[float, float, bool]] = {
    **{name: bound for name, bound in BOUNDS.items() if name != "gradient_steps"},
    "exploration_initial_eps": (0.0, 1.0, False),
    "exploration_final_eps": (0.0, 1.0, False),
    "target_update_interval": (1, 1_000_000, False),
}
MOST_GRADIENT_STEPS = 1000
AS_MANY = -1
"""Gradient steps: as many as there were steps."""


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """Common to all agents of live experiments; all that ``random_search`` takes.

    Attributes:
        random_seed: seeds the agent's own draws; by default the scenario's seed.
        rewards: the rewards of steps without a measurement.
    """

    random_seed: int | None = None
    rewards: Penalties = field(default_factory=Penalties)


@dataclass(frozen=True, kw_only=True)
class LivePolicyConfig(LiveConfig):
    """Common to all that learn.

    Attributes:
        learning_rate: how far one update moves the network.
        learning_rate_schedule: ``linear`` lets it fall to 0 at the end of the budget.
        gamma: how much the rewards of later steps of an episode count.
        net_arch: the hidden layers of the network; by default the library's own for the algorithm.
        checkpoint_every: after so many steps, at the next update, the policy is saved.
    """

    learning_rate: float = 3e-4
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    net_arch: tuple[int, ...] | None = None
    checkpoint_every: int = 10_000


@dataclass(frozen=True, kw_only=True)
class LiveOnPolicyConfig(LivePolicyConfig):
    """Common to ``ppo`` and ``a2c``.

    Attributes:
        n_steps: the steps of each lane between two updates.
        gae_lambda: how far the advantage looks ahead.
        ent_coef: what it is worth to stay undecided.
        vf_coef: how much the value's error counts beside the policy's.
        max_grad_norm: the longest step of an update.
        normalize_advantage: whether advantages are brought to one scale in each batch.
    """

    n_steps: int = 2048
    gae_lambda: float = 0.95
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True


@dataclass(frozen=True, kw_only=True)
class LivePpoConfig(LiveOnPolicyConfig):
    """What ``ppo`` takes.

    Attributes:
        batch_size: the steps of one gradient step.
        n_epochs: how often an update goes through its steps.
        clip_range: how far an update may move the policy.
        clip_range_schedule: ``linear`` lets it fall to 0 at the end of the budget.
    """

    batch_size: int = 64
    n_epochs: int = 10
    clip_range: float = 0.2
    clip_range_schedule: Schedule = "constant"


@dataclass(frozen=True, kw_only=True)
class LiveA2cConfig(LiveOnPolicyConfig):
    """What ``a2c`` takes."""

    learning_rate: float = 7e-4
    n_steps: int = 5
    gae_lambda: float = 1.0
    normalize_advantage: bool = False


@dataclass(frozen=True, kw_only=True)
class LiveOffPolicyConfig(LivePolicyConfig):
    """Common to ``dqn`` and ``sac``.

    Attributes:
        buffer_size: how many steps are remembered, the newest.
        learning_starts: the steps that are drawn at random before it learns; by default 100, or a tenth of the budget
            where that is less.
        batch_size: the steps of one gradient step.
        tau: the share by which the target network follows.
        train_freq: the steps of each lane between two updates.
        gradient_steps: the gradient steps of an update; -1 for as many as there were steps.
        target_update_interval: how often the target network follows.
    """

    buffer_size: int = 1_000_000
    learning_starts: int | None = None
    batch_size: int = 256
    tau: float = 0.005
    train_freq: int = 1
    gradient_steps: int = 1
    target_update_interval: int = 1


@dataclass(frozen=True, kw_only=True)
class LiveDqnConfig(LiveOffPolicyConfig):
    """What ``dqn`` takes. Its ``target_update_interval`` is in steps.

    Attributes:
        exploration_fraction: over this share of the budget, drawing at random fades out. Where only time bounds it, the
            budget is taken for 100,000 steps.
        exploration_initial_eps: the share of steps that are drawn at random at first.
        exploration_final_eps: and in the end.
        max_grad_norm: the longest step of an update.
    """

    learning_rate: float = 1e-4
    batch_size: int = 32
    tau: float = 1.0
    train_freq: int = 4
    target_update_interval: int = 10_000
    exploration_fraction: float = 0.1
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.05
    max_grad_norm: float = 10.0


@dataclass(frozen=True, kw_only=True)
class LiveSacConfig(LiveOffPolicyConfig):
    """What ``sac`` takes. Its ``target_update_interval`` is in gradient steps.

    Attributes:
        ent_coef: what it is worth to stay undecided; "auto" learns it.
    """

    ent_coef: float | Literal["auto"] = "auto"


def endless(config: LivePolicyConfig, most_trials: int | None) -> list[Problem]:
    """Refuse a schedule that leads to the end of a budget where there is none in steps."""
    if most_trials is not None:
        return []
    return [
        Problem(
            f"agent_config.{setting}",
            "it falls to 0 at the end of a budget in steps, and there is none",
            '"linear"',
            '"constant", or "linear" beside agent_steps',
            "give agent_steps too: whichever bound comes first ends the run",
        )
        for setting in ("learning_rate_schedule", "clip_range_schedule")
        if getattr(config, setting, None) == "linear"
    ]


def odd_gradient_steps(config: LivePolicyConfig) -> list[Problem]:
    """Refuse numbers of gradient steps that mean nothing."""
    steps = getattr(config, "gradient_steps", 1)
    if steps == AS_MANY or 1 <= steps <= MOST_GRADIENT_STEPS:
        return []
    allowed = f"from 1 to {MOST_GRADIENT_STEPS}, or {AS_MANY} for as many as there were steps"
    hint = "leave gradient_steps out: it is 1 then"
    return [Problem("agent_config.gradient_steps", "the value is out of bounds", spelled(steps), allowed, hint)]
