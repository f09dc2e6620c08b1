"""Settings of the RLlib agents in ``agent_config``: those of ``ppo`` and ``dqn``, and ``num_env_runners``.

The names are the same, so that an agent is exchanged by its name alone. ``num_env_runners`` is the number of RLlib's
env runners, each in a Ray actor with its share of the lanes; with 0 there is one in this process, and no Ray.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunegym.tuning.agents.sb3.config import DqnConfig, LiveDqnConfig, LiveOnPolicyConfig, PpoConfig


@dataclass(frozen=True, kw_only=True)
class RllibPpoConfig(PpoConfig):
    """Settings of ``rllib_ppo`` on trials."""

    num_env_runners: int = 0


@dataclass(frozen=True, kw_only=True)
class RllibDqnConfig(DqnConfig):
    """Settings of ``rllib_dqn`` on trials."""

    num_env_runners: int = 0


@dataclass(frozen=True, kw_only=True)
class LiveRllibPpoConfig(LiveOnPolicyConfig):
    """Settings of ``rllib_ppo`` on live systems. RLlib keeps ``clip_range``."""

    batch_size: int = 64
    n_epochs: int = 10
    clip_range: float = 0.2
    num_env_runners: int = 0


@dataclass(frozen=True, kw_only=True)
class LiveRllibDqnConfig(LiveDqnConfig):
    """Settings of ``rllib_dqn`` on live systems."""

    num_env_runners: int = 0
