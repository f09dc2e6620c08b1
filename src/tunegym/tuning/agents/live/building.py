"""From an agent's settings to an algorithm over a live system."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.utils import LinearSchedule

from tunegym.tuning.agents.live.buffers import DictReplay, DictRollout, Replay, Rollout
from tunegym.tuning.agents.live.chances import owning
from tunegym.tuning.agents.live.config import (
    LiveA2cConfig,
    LiveDqnConfig,
    LiveOffPolicyConfig,
    LiveOnPolicyConfig,
    LivePolicyConfig,
    LivePpoConfig,
    LiveSacConfig,
    Schedule,
)
from tunegym.tuning.agents.live.models import Ours, OwnA2c, OwnDqn, OwnPpo, OwnSac
from tunegym.tuning.agents.live.vector import LiveVector
from tunegym.tuning.agents.sb3.borrowing import Borrowed

SMALLEST_IMAGE = 36
"""In each direction, for the library's network for images."""
STARTS = 100


class MemoryShortError(Exception):
    """A replay buffer that doesn't fit."""


def build_model(config: LivePolicyConfig, vector: LiveVector, borrowed: Borrowed, ours: Ours, first: int) -> Any:
    """The algorithm; ``first`` is the number of steps that were taken before, on which its draws depend."""
    generator = torch.Generator()
    generator.manual_seed(borrowed.integer(2**63, "act", first))
    with borrowed.stream("network"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about sizes that don't divide
        if isinstance(config, LiveOnPolicyConfig):
            model = _on_policy(config, vector, ours)
            model.policy.action_dist = owning(model.policy.action_dist, generator)
        elif isinstance(config, LiveDqnConfig):
            model = _dqn(config, vector, ours)
        else:
            assert isinstance(config, LiveSacConfig)
            model = _sac(config, vector, ours)
            model.actor.action_dist = owning(model.actor.action_dist, generator)
    model.ours = ours
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _common(config: LivePolicyConfig, vector: LiveVector) -> dict[str, Any]:
    return {
        "policy": _policy(vector.observation_space),
        "env": vector,
        "learning_rate": _scheduled(config.learning_rate, config.learning_rate_schedule),
        "gamma": config.gamma,
        "device": "cpu",
        "policy_kwargs": {} if config.net_arch is None else {"net_arch": list(config.net_arch)},
    }


def _policy(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    if is_image_space(space) and sorted(space.shape or ())[1] >= SMALLEST_IMAGE:
        return "CnnPolicy"
    return "MlpPolicy"


def _scheduled(value: float, schedule: Schedule) -> Any:
    return value if schedule == "constant" else LinearSchedule(value, 0.0, 1.0)


def _on_policy(config: LiveOnPolicyConfig, vector: LiveVector, ours: Ours) -> Any:
    common: dict[str, Any] = {
        **_common(config, vector),
        "n_steps": config.n_steps,
        "gae_lambda": config.gae_lambda,
        "ent_coef": config.ent_coef,
        "vf_coef": config.vf_coef,
        "max_grad_norm": config.max_grad_norm,
        "normalize_advantage": config.normalize_advantage,
        "rollout_buffer_class": DictRollout if isinstance(vector.observation_space, spaces.Dict) else Rollout,
        "rollout_buffer_kwargs": {"rng": ours.rng},
    }
    if isinstance(config, LivePpoConfig):
        clip = _scheduled(config.clip_range, config.clip_range_schedule)
        return OwnPpo(**common, batch_size=config.batch_size, n_epochs=config.n_epochs, clip_range=clip)
    assert isinstance(config, LiveA2cConfig)
    return OwnA2c(**common)


def _off_policy(config: LiveOffPolicyConfig, vector: LiveVector, ours: Ours) -> dict[str, Any]:
    lanes = vector.num_envs
    size = min(config.buffer_size, -(-ours.horizon // lanes) * lanes)
    _refuse_too_large(vector.observation_space, size)
    starts = min(STARTS, ours.horizon // 10) if config.learning_starts is None else config.learning_starts
    return {
        **_common(config, vector),
        "buffer_size": size,
        "learning_starts": starts,
        "batch_size": config.batch_size,
        "tau": config.tau,
        "train_freq": config.train_freq,
        "gradient_steps": config.gradient_steps,
        "target_update_interval": config.target_update_interval,
        "replay_buffer_class": DictReplay if isinstance(vector.observation_space, spaces.Dict) else Replay,
        "replay_buffer_kwargs": {"rng": ours.rng},
    }


def _dqn(config: LiveDqnConfig, vector: LiveVector, ours: Ours) -> Any:
    return OwnDqn(
        **_off_policy(config, vector, ours),
        exploration_fraction=config.exploration_fraction,
        exploration_initial_eps=config.exploration_initial_eps,
        exploration_final_eps=config.exploration_final_eps,
        max_grad_norm=config.max_grad_norm,
    )


def _sac(config: LiveSacConfig, vector: LiveVector, ours: Ours) -> Any:
    return OwnSac(**_off_policy(config, vector, ours), ent_coef=config.ent_coef)


def _refuse_too_large(space: spaces.Space[Any], size: int) -> None:
    """Before the machine finds out for itself, which may be hours later."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    each = 2 * sum(int(np.prod(one.shape or ())) * np.dtype(one.dtype).itemsize for one in parts)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if each * size > there:
        raise MemoryShortError(
            f"a replay buffer of {size} steps takes {each * size / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f} GB of memory; a buffer_size of up to {there // (2 * each)} would be fine"
        )
