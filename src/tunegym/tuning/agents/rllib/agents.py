"""Agents that learn with RLlib's algorithms on its new API stack: PPO and DQN, for trials and for live experiments.

They are the policy agents of ``sb3`` with another library behind them. RLlib takes seconds to import, so it is imported
when a run begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

from tunegym.tuning.agents.base import AgentConfig, LiveConfig
from tunegym.tuning.agents.rllib import config as configs
from tunegym.tuning.agents.sb3.agents import Dqn, Library, LivePolicy, PolicyAgent, Ppo
from tunegym.tuning.agents.sb3.config import HORIZON

if TYPE_CHECKING:
    from tunegym.tuning.agents.history import TrialHistory
    from tunegym.tuning.agents.rllib.algorithm import Algorithm

RLLIB = Library(("ray", "tree", "torch"), "ray[rllib]", "rllib")  # Ray comes with RLlib, but not with what it needs


class _RllibAgent(PolicyAgent):
    """An agent of trials whose algorithm is RLlib's."""

    library: ClassVar[Library] = RLLIB
    _algorithm: Algorithm | None = None

    def learner(self, observations: spaces.Space[Any], actions: spaces.Space[Any], history: TrialHistory) -> Algorithm:
        """The algorithm for these spaces, with its env runners."""
        from tunegym.tuning.agents.rllib.algorithm import DqnAlgorithm, PpoAlgorithm
        from tunegym.tuning.agents.training import Draws

        self.close()  # one whose checkpoint doesn't fit
        horizon = self.env.experiment.most_trials or HORIZON
        algorithm = PpoAlgorithm if isinstance(self.config, configs.RllibPpoConfig) else DqnAlgorithm
        draws, lanes = Draws(self.seed, self.name), self.env.slots
        self._algorithm = algorithm(self.config, observations, actions, draws, lanes, horizon, history)
        return self._algorithm

    def close(self) -> None:
        """End the env runners."""
        if self._algorithm is not None:
            self._algorithm.close()


class RllibPpo(_RllibAgent, Ppo):
    """RLlib's PPO: learns a policy for knobs of any kind; ranges are binned."""

    Config: ClassVar[type[AgentConfig]] = configs.RllibPpoConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveRllibPpo"}
    name: ClassVar[str] = "rllib_ppo"


class RllibDqn(_RllibAgent, Dqn):
    """RLlib's DQN: learns the value of every combination, from all trials again and again; a few thousand at most."""

    Config: ClassVar[type[AgentConfig]] = configs.RllibDqnConfig
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


class LiveRllibPpo(_LiveRllib):
    """RLlib's PPO on a live system, with actions of any kind."""

    Config: ClassVar[type[LiveConfig]] = configs.LiveRllibPpoConfig
    name: ClassVar[str] = "rllib_ppo"


class LiveRllibDqn(_LiveRllib):
    """RLlib's DQN on a live system with discrete actions."""

    Config: ClassVar[type[LiveConfig]] = configs.LiveRllibDqnConfig
    name: ClassVar[str] = "rllib_dqn"
