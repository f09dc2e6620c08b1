"""The agents of live experiments that learn, by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.live.base import LiveAgent, UnfitError
from tunegym.tuning.agents.live.config import (
    LIVE_BOUNDS,
    LiveA2cConfig,
    LiveConfig,
    LiveDqnConfig,
    LivePolicyConfig,
    LivePpoConfig,
    LiveSacConfig,
    endless,
    odd_gradient_steps,
)
from tunegym.tuning.agents.sb3.config import out_of_bounds, starts_too_late
from tunegym.tuning.model.scenario import Experiment


class LivePolicy(LiveAgent):
    """Learns with an algorithm of Stable-Baselines3, in the library's own loop, and keeps its policy on the disk.

    ``policy/checkpoint.pt`` is what a resume goes on from, and ``policy/model.zip`` what the library's ``load`` takes.
    """

    Config: ClassVar[type[LiveConfig]] = LivePolicyConfig

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """The algorithms must be there, and the settings such that they can work with them."""
        del scenario_dir
        if importlib.util.find_spec("stable_baselines3") is None:
            what = f"the agent {cls.name} needs the package stable-baselines3"
            return [Problem("agent", what, found=f'"{cls.name}"', hint="pip install 'tunegym[rl]'")]
        config: LivePolicyConfig = experiment.agent_config
        return [
            *out_of_bounds(config, LIVE_BOUNDS),
            *odd_gradient_steps(config),
            *starts_too_late(config, experiment.most_trials, "steps"),
            *endless(config, experiment.most_trials),
        ]

    def _drive(self) -> None:
        from tunegym.tuning.agents.live.fitting import unfit
        from tunegym.tuning.agents.live.training import Training

        reason = unfit(self.name, self.env.action_space, self.env.observation_space)
        if reason is not None:
            raise UnfitError(reason)
        Training(self.env, self.name, self.config, self.seed).run()


class LivePpo(LivePolicy):
    """PPO: learns from its own choices, an update at a time."""

    Config: ClassVar[type[LiveConfig]] = LivePpoConfig
    name: ClassVar[str] = "ppo"


class LiveA2c(LivePolicy):
    """A2C: as PPO, in smaller steps."""

    Config: ClassVar[type[LiveConfig]] = LiveA2cConfig
    name: ClassVar[str] = "a2c"


class LiveDqn(LivePolicy):
    """DQN: learns the value of every action, from all steps again and again."""

    Config: ClassVar[type[LiveConfig]] = LiveDqnConfig
    name: ClassVar[str] = "dqn"


class LiveSac(LivePolicy):
    """SAC: learns a policy over continuous actions, from all steps again and again."""

    Config: ClassVar[type[LiveConfig]] = LiveSacConfig
    name: ClassVar[str] = "sac"
