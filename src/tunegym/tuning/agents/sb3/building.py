"""From an agent's settings to an algorithm of Stable-Baselines3."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC

from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.sb3.config import (
    A2cConfig,
    DqnConfig,
    OnPolicyConfig,
    PolicyConfig,
    PpoConfig,
    SacConfig,
)
from tunegym.tuning.agents.sb3.learner import Learner, Spaces
from tunegym.tuning.agents.sb3.off_policy import DqnLearner, SacLearner
from tunegym.tuning.agents.sb3.on_policy import OnPolicyLearner
from tunegym.tuning.agents.scaling import RewardScale

MANY = 1500
"""From so many trials on, updates can be large."""
HORIZON = 1000
"""What is taken for the budget where only time bounds it."""


def build_learner(
    config: PolicyConfig,
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    scale: RewardScale,
    seed: int,
    trials: int | None,
) -> Learner:
    """The learner of an agent.

    Args:
        config: the agent's own.
        observations: what it sees.
        actions: what it chooses from.
        scale: knows the rewards of what it is told.
        seed: seeds the network and every draw.
        trials: how many there are at most; None if that isn't known.
    """
    horizon = trials or HORIZON
    name = type(config).__name__.removesuffix("Config").lower()
    borrowed = Borrowed(seed, name)
    env = Spaces(observations, actions)
    with borrowed.stream("network"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about sizes that would not divide; the loop is ours
        if isinstance(config, OnPolicyConfig):
            n_steps = config.n_steps or steps_of(config, horizon)
            return OnPolicyLearner(_on_policy(config, env, n_steps), borrowed, scale, n_steps)
        if isinstance(config, DqnConfig):
            return DqnLearner(_dqn(config, env), borrowed, scale, config, starts_of(config, horizon), horizon)
        assert isinstance(config, SacConfig)
        return SacLearner(_sac(config, env), borrowed, scale, config, starts_of(config, horizon))


def steps_of(config: OnPolicyConfig, horizon: int) -> int:
    """The trials of an update: enough to tell good from bad, and enough updates in the budget."""
    if isinstance(config, A2cConfig):
        return max(8, min(30, horizon // 40))
    return max(16, horizon // 15) if horizon < MANY else 150


def starts_of(config: DqnConfig | SacConfig, horizon: int) -> int:
    """The trials that are drawn at random before it learns."""
    if config.learning_starts is not None:
        return config.learning_starts
    return max(8, min(100, horizon // 10))


def _common(config: PolicyConfig, **policy: Any) -> dict[str, Any]:
    return {
        "learning_rate": config.learning_rate,
        "gamma": config.gamma,
        "device": "cpu",
        "policy_kwargs": {"net_arch": list(config.net_arch), **policy},
    }


def _on_policy(config: OnPolicyConfig, env: Spaces, n_steps: int) -> Any:
    common: dict[str, Any] = {
        "n_steps": n_steps,
        "gae_lambda": config.gae_lambda,
        "ent_coef": config.ent_coef,
        "vf_coef": config.vf_coef,
        "max_grad_norm": config.max_grad_norm,
        "normalize_advantage": True,
    }
    if isinstance(config, PpoConfig):
        batch = config.batch_size or n_steps
        own = {"batch_size": batch, "n_epochs": config.n_epochs, "clip_range": config.clip_range}
        return PPO("MlpPolicy", env, **common, **own, **_common(config))
    adam = _common(config, optimizer_class=torch.optim.Adam)
    return A2C("MlpPolicy", env, use_rms_prop=False, **common, **adam)


def _dqn(config: DqnConfig, env: Spaces) -> Any:
    return DQN("MlpPolicy", env, buffer_size=config.buffer_size, batch_size=config.batch_size, **_common(config))


def _sac(config: SacConfig, env: Spaces) -> Any:
    return SAC(
        "MlpPolicy",
        env,
        buffer_size=config.buffer_size,
        batch_size=config.batch_size,
        ent_coef=config.ent_coef,
        tau=config.tau,
        **_common(config),
    )
