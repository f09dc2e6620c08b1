"""Settings of the policy agents in ``agent_config``, for trials and for live experiments.

Defaults for trials learn within 100 to 2,000 trials. Names and defaults for live experiments are those of
Stable-Baselines3. The reference of the scenario file explains each setting. None follows from the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import AgentConfig, LiveConfig
from tunegym.tuning.envs.actions import BINS, LIMIT
from tunegym.tuning.model.values import spelled

HORIZON = 1000
"""Assumed budget of trials where only time bounds it."""

MANY = 1500
"""From this many trials on, updates can be large."""

Schedule: TypeAlias = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(AgentConfig):
    """Settings of all policy agents on trials."""

    learning_rate: float = 3e-3
    gamma: float = 0.0  # a trial doesn't change the next
    net_arch: tuple[int, ...] = (64, 64)
    checkpoint_every: int = 50
    warm_start: str | None = None


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(PolicyConfig):
    """Settings of ``ppo`` and ``a2c``; ``joint``: choose among combinations of all knobs instead of each by itself."""

    n_steps: int | None = None
    gae_lambda: float = 1.0
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    bins: int = BINS
    joint: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PpoConfig(OnPolicyConfig):
    """Settings of ``ppo``."""

    batch_size: int | None = None
    n_epochs: int = 10
    clip_range: float = 0.2


@dataclass(frozen=True, kw_only=True)
class A2cConfig(OnPolicyConfig):
    """Settings of ``a2c``."""

    learning_rate: float = 1e-2
    ent_coef: float = 0.02
    joint: bool | None = False


def update_size(config: OnPolicyConfig, horizon: int) -> int:
    """The trials of an update: enough to tell good from bad, and enough updates in the budget."""
    if isinstance(config, A2cConfig):
        return max(8, min(30, horizon // 40))
    return max(16, horizon // 15) if horizon < MANY else 150


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(PolicyConfig):
    """Settings of ``dqn`` and ``sac``."""

    buffer_size: int = 10_000
    learning_starts: int | None = None
    batch_size: int = 64
    train_freq: int = 4
    gradient_steps: int = 4


@dataclass(frozen=True, kw_only=True)
class DqnConfig(OffPolicyConfig):
    """Settings of ``dqn``."""

    exploration_fraction: float = 0.8
    exploration_final: float = 0.05
    target_update: int = 100
    bins: int = BINS
    max_actions: int = LIMIT


@dataclass(frozen=True, kw_only=True)
class SacConfig(OffPolicyConfig):
    """Settings of ``sac``."""

    ent_coef: float | Literal["auto"] = "auto"
    tau: float = 0.02


# live -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LivePolicyConfig(LiveConfig):
    """Settings of all agents that learn from a live system; a ``linear`` schedule falls to 0 at the budget's end."""

    learning_rate: float = 3e-4
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.99
    net_arch: tuple[int, ...] | None = None
    checkpoint_every: int = 10_000


@dataclass(frozen=True, kw_only=True)
class LiveOnPolicyConfig(LivePolicyConfig):
    """Settings of ``ppo`` and ``a2c``."""

    n_steps: int = 2048
    gae_lambda: float = 0.95
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True


@dataclass(frozen=True, kw_only=True)
class LivePpoConfig(LiveOnPolicyConfig):
    """Settings of ``ppo``."""

    batch_size: int = 64
    n_epochs: int = 10
    clip_range: float = 0.2
    clip_range_schedule: Schedule = "constant"


@dataclass(frozen=True, kw_only=True)
class LiveA2cConfig(LiveOnPolicyConfig):
    """Settings of ``a2c``."""

    learning_rate: float = 7e-4
    n_steps: int = 5
    gae_lambda: float = 1.0
    normalize_advantage: bool = False


@dataclass(frozen=True, kw_only=True)
class LiveOffPolicyConfig(LivePolicyConfig):
    """Settings of ``dqn`` and ``sac``."""

    buffer_size: int = 1_000_000
    learning_starts: int | None = None
    batch_size: int = 256
    train_freq: int = 1
    gradient_steps: int = 1
    tau: float = 0.005
    target_update_interval: int = 1


@dataclass(frozen=True, kw_only=True)
class LiveDqnConfig(LiveOffPolicyConfig):
    """Settings of ``dqn``."""

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
    """Settings of ``sac``."""

    ent_coef: float | Literal["auto"] = "auto"


# checks -----------------------------------------------------------------------------------------------

FEWEST = 4
"""An update on fewer trials would only be noise."""
AS_MANY = -1
"""``gradient_steps`` of a live experiment: as many as there were steps."""

BOUNDS: Mapping[tuple[float, float, bool], str] = {
    (0.0, 1.0, True): "learning_rate exploration_fraction tau",
    (0.0, 1.0, False): "gamma gae_lambda exploration_final exploration_initial_eps exploration_final_eps",
    (0.0, 1000.0, False): "ent_coef vf_coef max_staleness",
    (0.0, 1000.0, True): "clip_range",
    (0.0, 1_000_000.0, True): "max_grad_norm",
    (0, float("inf"), False): "learning_starts",
    (1, float("inf"), False): "checkpoint_every",
    (0, 64, False): "num_env_runners",
    (1, 64, False): "num_collectors dp_world",
    (1, 1000, False): "n_epochs gradient_steps importance_limit",
    (1, 1_000_000, False): "train_freq target_update target_update_interval max_actions batch minibatch",
    (1, 10_000_000, False): "buffer_size",
    (2, 1000, False): "bins",
    (2, 1_000_000, False): "batch_size",
    (FEWEST, 1_000_000, False): "n_steps",
}
"""Settings by their lower and upper bound, and whether the lower bound is excluded."""


def problems(config: PolicyConfig | LivePolicyConfig, most_trials: int | None) -> list[Problem]:
    """Settings that no algorithm can work with in a budget of ``most_trials``, if it counts them."""
    return [*_out_of_bounds(config), *_layers(config), *_budget(config, most_trials)]


def _out_of_bounds(config: Any) -> Iterator[Problem]:
    live = isinstance(config, LivePolicyConfig)
    rows = ((setting, *bounds) for bounds, settings in BOUNDS.items() for setting in settings.split())
    for setting, least, most, excluded in rows:
        value: Any = getattr(config, setting, None)
        if not isinstance(value, int | float) or (least <= value <= most and not (excluded and value == least)):
            continue
        allowed = f"above {least:.15g}" if excluded else f"at least {least:.15g}"
        allowed += f" and at most {most:.15g}" if most != float("inf") else ""
        hint = f"leave {setting} out, or write a number that is {allowed}"
        if setting == "gradient_steps" and live:
            if value == AS_MANY:
                continue
            allowed = f"from {least} to {most}, or {AS_MANY} for as many as there were steps"
            hint = "leave gradient_steps out: it is 1 then"
        yield Problem(f"agent_config.{setting}", "the value is out of bounds", spelled(value), allowed, hint)


def _layers(config: Any) -> Iterator[Problem]:
    layers = config.net_arch
    if layers is not None and (not 1 <= len(layers) <= 8 or any(not 1 <= width <= 4096 for width in layers)):
        allowed, hint = "one to eight integers from 1 to 4096", "write for example net_arch = [64, 64]"
        yield Problem("agent_config.net_arch", "no network has such layers", spelled(list(layers)), allowed, hint)


def _budget(config: Any, most_trials: int | None) -> Iterator[Problem]:
    """Refuse a start of learning after the end of the budget, and schedules to the end of a budget without one."""
    starts = getattr(config, "learning_starts", None)
    unit = "steps" if isinstance(config, LivePolicyConfig) else "trials"
    if starts is not None and most_trials is not None and starts >= most_trials:
        what = f"it would never learn: the budget is {most_trials} {unit}"
        hint = "leave learning_starts out: it then follows from the budget"
        yield Problem("agent_config.learning_starts", what, spelled(starts), f"less than {most_trials}", hint)
    for setting in ("learning_rate_schedule", "clip_range_schedule"):
        if most_trials is None and getattr(config, setting, None) == "linear":
            yield Problem(
                f"agent_config.{setting}",
                "it falls to 0 at the end of a budget in steps, and there is none",
                '"linear"',
                '"constant", or "linear" beside agent_steps',
                "give agent_steps too: whichever bound comes first ends the run",
            )
