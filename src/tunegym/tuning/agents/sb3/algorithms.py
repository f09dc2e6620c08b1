"""Stable-Baselines3's algorithms: from an agent's settings to a model, and its parameters."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from tunegym.tuning.agents.live_learner import Draws
from tunegym.tuning.agents.sb3.config import LivePolicyConfig, PolicyConfig

PASSED_ON = (
    *("learning_rate", "gamma", "n_steps", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "normalize_advantage"),
    *("batch_size", "n_epochs", "clip_range", "buffer_size", "learning_starts", "train_freq", "gradient_steps", "tau"),
    *("target_update_interval", "exploration_fraction", "exploration_initial_eps", "exploration_final_eps"),
)
"""Settings that the library takes under the same name."""


class Spaces(gymnasium.Env[Any, Any]):
    """Tells the library the shapes where the loop is ours; it is never stepped."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


def build(
    kind: Any, policy: str, env: Any, config: PolicyConfig | LivePolicyConfig, draws: Draws, **settings: Any
) -> Any:
    """A model of the class ``kind``; ``settings`` come before those of ``config``."""
    takes = inspect.signature(kind).parameters
    given = {name: value for name in PASSED_ON if name in takes and (value := getattr(config, name, None)) is not None}
    layers = {} if config.net_arch is None else {"net_arch": list(config.net_arch)}
    options = {**layers, **settings.pop("policy_kwargs", {})}
    with draws.stream("network"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about sizes that don't divide
        model = kind(policy, env, device="cpu", policy_kwargs=options, **{**given, **settings})
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def state_of(model: Any) -> dict[str, Any]:
    """The networks and their optimisers, as plain tensors."""
    state: dict[str, Any] = {"model": model.get_parameters()}
    entropy = getattr(model, "log_ent_coef", None)
    if entropy is not None:
        state["log_ent_coef"] = entropy.detach().clone()
    return state


def restore(model: Any, state: dict[str, Any]) -> None:
    """The reverse of ``state_of``. Raises an exception if the state doesn't fit."""
    model.set_parameters(state["model"], device="cpu")
    if "log_ent_coef" in state:
        model.log_ent_coef.data.copy_(state["log_ent_coef"])
    if not is_finite(model):
        raise ValueError("its network is not of finite numbers")


def is_finite(model: Any) -> bool:
    """Whether all parameters are finite numbers."""
    return all(bool(torch.isfinite(one).all()) for one in model.policy.parameters())
