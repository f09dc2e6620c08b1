"""The policy agents by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.sb3.agent import PolicyAgent
from tunegym.tuning.agents.sb3.config import A2cConfig, DqnConfig, PpoConfig, SacConfig
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, Space

if TYPE_CHECKING:
    from tunegym.tuning.envs.actions import ActionView

FEW = 16
TRIALS_EACH = 20
"""Knobs are one choice where there are few combinations, or so many trials for each of them."""


def _combinations(space: Space, bins: int) -> int:
    from tunegym.tuning.envs.actions import binned

    return math.prod(len(binned(knob, bins)) for knob in space.knobs.values())


class _OnPolicy(PolicyAgent):
    """Chooses among combinations where there are few, else every knob by itself."""

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse more combinations than can be one choice, where that is asked for."""
        problems = super().check(experiment, scenario_dir)
        if problems or not experiment.agent_config.joint:
            return problems
        from tunegym.tuning.envs.actions import LIMIT

        count = _combinations(experiment.space, experiment.agent_config.bins)
        if count <= LIMIT:
            return []
        what = f"there are {count} combinations to choose among"
        allowed = f"joint = true with up to {LIMIT} combinations"
        hint = "write joint = false, or give lists fewer candidates or ranges fewer bins"
        return [Problem("agent_config.joint", what, "true", allowed, hint)]

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.agents.sb3.building import HORIZON
        from tunegym.tuning.envs.actions import DiscreteView, MultiDiscreteView

        space, bins, joint = self.env.space, self.config.bins, self.config.joint
        if kind is not None:
            joint = kind == "Discrete"
        elif joint is None:
            trials = self.env.experiment.most_trials or HORIZON
            joint = _combinations(space, bins) <= max(FEW, trials // TRIALS_EACH)
        return DiscreteView(space, bins) if joint else MultiDiscreteView(space, bins)


class Ppo(_OnPolicy):
    """Learns a policy with PPO: which settings win under which conditions. Knobs of any kind, ranges binned."""

    Config: ClassVar[type[AgentConfig]] = PpoConfig
    name: ClassVar[str] = "ppo"
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": "tunegym.tuning.agents.live.agents:LivePpo"}


class A2c(_OnPolicy):
    """Learns a policy with A2C, as PPO does, in smaller steps. Knobs of any kind, ranges binned."""

    Config: ClassVar[type[AgentConfig]] = A2cConfig
    name: ClassVar[str] = "a2c"
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": "tunegym.tuning.agents.live.agents:LiveA2c"}


class Dqn(PolicyAgent):
    """Learns the value of every combination with DQN, from all trials again and again. A few thousand at most."""

    Config: ClassVar[type[AgentConfig]] = DqnConfig
    name: ClassVar[str] = "dqn"
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": "tunegym.tuning.agents.live.agents:LiveDqn"}

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse more combinations than it can tell apart."""
        problems = super().check(experiment, scenario_dir)
        if problems:
            return problems
        config: DqnConfig = experiment.agent_config
        count = _combinations(experiment.space, config.bins)
        if count <= config.max_actions:
            return []
        what = f"dqn numbers every combination, and there are {count}"
        allowed = f"up to max_actions = {config.max_actions}, or one of ppo, a2c, contextual_bandit"
        hint = 'give lists fewer candidates or ranges fewer bins (agent_config.bins), or write agent = "ppo"'
        return [Problem("agent", what, '"dqn"', allowed, hint)]

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.envs.actions import DiscreteView

        return DiscreteView(self.env.space, self.config.bins, self.config.max_actions)


class Sac(PolicyAgent):
    """Learns a policy over continuous knobs with SAC. Ranges only."""

    Config: ClassVar[type[AgentConfig]] = SacConfig
    name: ClassVar[str] = "sac"
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": "tunegym.tuning.agents.live.agents:LiveSac"}

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """It moves through ranges."""
        lists = [name for name, knob in space.knobs.items() if isinstance(knob, Choice)]
        if not lists:
            return super().refuse(space)
        what = f"sac moves through ranges, and these knobs are lists: {', '.join(lists)}"
        allowed = "sac with ranges only; ppo, a2c, dqn and contextual_bandit take lists"
        return Problem("agent", what, '"sac"', allowed, 'write agent = "ppo", or make the lists ranges')

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.envs.actions import BoxView

        return BoxView(self.env.space)
