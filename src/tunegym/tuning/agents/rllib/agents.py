"""Agents that learn with RLlib's algorithms on its new API stack: PPO and DQN, for trials and for live experiments.

They are the policy agents of ``sb3`` with another library behind them. RLlib takes seconds to import, so it is imported
when a run begins.

Their settings have the same names, so that an agent is exchanged by its name alone. ``num_env_runners`` is the number
of RLlib's env runners, each in a Ray actor; with 0 there is one in this process, and no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.agents.sb3.agents import Dqn, Library, LivePolicy, PolicyAgent, Ppo, live_agent
from tunegym.tuning.agents.sb3.config import HORIZON, DqnConfig, LiveDqnConfig, LiveOnPolicyConfig, PpoConfig

if TYPE_CHECKING:
    from tunegym.tuning.agents.rllib.algorithm import Algorithm
    from tunegym.tuning.inference.experience import Experience

RLLIB = Library(("ray", "tree", "torch"), "ray[rllib]", "rllib")  # Ray comes with RLlib, but not with what it needs


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


class _RllibAgent(PolicyAgent):
    """An agent of trials whose algorithm is RLlib's."""

    library: ClassVar[Library] = RLLIB
    _algorithm: Algorithm | None = None

    def learner(self, observations: spaces.Space[Any], actions: spaces.Space[Any], experience: Experience) -> Algorithm:
        """The algorithm for these spaces, with its env runners."""
        from tunegym.tuning.agents.live_learner import Draws
        from tunegym.tuning.agents.rllib.algorithm import ALGORITHMS

        self.close()  # one whose checkpoint doesn't fit
        horizon = self.env.experiment.most_trials or HORIZON
        draws, lanes = Draws(self.seed, self.name), self.env.slots
        self._algorithm = ALGORITHMS[self.name](self.config, observations, actions, draws, lanes, horizon, experience)
        return self._algorithm

    def close(self) -> None:
        """End the env runners."""
        if self._algorithm is not None:
            self._algorithm.close()


class RllibPpo(_RllibAgent, Ppo):
    """RLlib's PPO: learns a policy for knobs of any kind; ranges are binned."""

    Config: ClassVar[type[AgentConfig]] = RllibPpoConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveRllibPpo"}
    name: ClassVar[str] = "rllib_ppo"


class RllibDqn(_RllibAgent, Dqn):
    """RLlib's DQN: learns the value of every combination, from all trials again and again; a few thousand at most."""

    Config: ClassVar[type[AgentConfig]] = RllibDqnConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveRllibDqn"}
    name: ClassVar[str] = "rllib_dqn"


class _LiveRllib(LivePolicy):
    """Learns with an algorithm of RLlib, and keeps its policy on disk.

    A resume continues from ``policy/checkpoint.pt``; RLlib's ``RLModule.from_checkpoint`` takes ``policy/module``.
    """

    library: ClassVar[Library] = RLLIB

    def _train(self) -> None:
        from tunegym.tuning.agents.rllib.live import RllibLiveTraining

        RllibLiveTraining(self.env, self.name, self.config, self.seed).run()


LiveRllibPpo = live_agent("rllib_ppo", LiveRllibPpoConfig, _LiveRllib)
LiveRllibDqn = live_agent("rllib_dqn", LiveRllibDqnConfig, _LiveRllib)
