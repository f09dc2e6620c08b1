"""Policy agents: PPO, A2C, DQN and SAC of Stable-Baselines3, for trials and for live experiments.

These classes check settings and spaces; ``trials`` and ``live`` have the loops. Torch takes seconds to import, so they
are imported when a run begins.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gymnasium import spaces

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import (
    AgentConfig,
    BaseAgent,
    LiveAgent,
    LiveConfig,
    TrainingError,
    warm_start_problems,
)
from tunegym.tuning.agents.policies import PolicyChoice
from tunegym.tuning.agents.sb3 import config as configs
from tunegym.tuning.envs.actions import LIMIT, ActionView, BoxView, DiscreteView, MultiDiscreteView, binned
from tunegym.tuning.model.scenario import INJECTED, Experiment
from tunegym.tuning.model.space import Choice, Space
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Context, counted
from tunegym.tuning.spaces import build, leaves
from tunegym.tuning.workloads.signature import describe_class

if TYPE_CHECKING:
    from tunegym.tuning.agents.trial_learner import TrialLearner, TrialTraining
    from tunegym.tuning.inference.experience import Experience

FEW = 16
TRIALS_EACH = 20
"""Knobs are one choice where there are few combinations, or this many trials for each."""
TAKES: Mapping[str, tuple[type[spaces.Space[Any]], ...]] = {
    "ppo": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "a2c": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "dqn": (spaces.Discrete,),
    "sac": (spaces.Box,),
    "rllib_ppo": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple),
    "rllib_dqn": (spaces.Discrete,),
    "async_ppo": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
}
"""Action spaces that each algorithm takes."""


class Library(NamedTuple):
    """What an agent needs: modules, the name of the package, and the extra of ours that installs it."""

    modules: tuple[str, ...]
    package: str
    extra: str

    def missing(self, agent: str) -> Problem | None:
        """Why ``agent`` can't be used; None if everything is installed."""
        if all(importlib.util.find_spec(module) is not None for module in self.modules):
            return None
        what = f"the agent {agent} needs the package {self.package}"
        return Problem("agent", what, found=f'"{agent}"', hint=f"pip install 'tunegym[{self.extra}]'")


SB3 = Library(("stable_baselines3",), "stable-baselines3", "rl")


def _combinations(space: Space, bins: int) -> int:
    return math.prod(len(binned(knob, bins)) for knob in space.knobs.values())


def too_many(name: str, config: Any, space: Space) -> list[Problem]:
    """Refuse to number more combinations than there may be."""
    joint = getattr(config, "joint", None)
    most = getattr(config, "max_actions", LIMIT if joint else math.inf)
    count = 0 if most == math.inf else _combinations(space, config.bins)
    if count <= most:
        return []
    if joint:
        what = f"there are {count} combinations to choose among"
        allowed = f"joint = true with up to {LIMIT} combinations"
        hint = "write joint = false, or give lists fewer candidates or ranges fewer bins"
        return [Problem("agent_config.joint", what, "true", allowed, hint)]
    what = f"{name} numbers every combination, and there are {count}"
    allowed = f"up to max_actions = {most}, or one of bayes, ppo, a2c"
    hint = 'give lists fewer candidates or ranges fewer bins (agent_config.bins), or write agent = "ppo"'
    return [Problem("agent", what, f'"{name}"', allowed, hint)]


class PolicyAgent(BaseAgent, ABC):
    """Drives trials over all lanes, learns from each, and keeps its policy on disk.

    An error of the algorithm ends the run with code 1 and its reason in ``failure``; every trial up to then is
    recorded, and the policy is that of the last checkpoint.
    """

    Config: ClassVar[type[AgentConfig]] = configs.PolicyConfig
    supports_variable_environment: ClassVar[bool] = True
    name: ClassVar[str]
    library: ClassVar[Library] = SB3
    _warm: Sequence[Trial] = ()
    _training: TrialTraining | None = None

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Its library must be installed."""
        del space
        return cls.library.missing(cls.name)

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse settings that no algorithm can work with, and too many combinations of knobs."""
        config = experiment.agent_config
        found = configs.problems(config, experiment.most_trials)
        found += warm_start_problems(config.warm_start, scenario_dir)
        return found or too_many(cls.name, config, experiment.space)

    @abstractmethod
    def view(self, kind: str | None) -> ActionView:
        """How the algorithm sees the knobs; ``kind`` is the action space of the checkpoint, if there is one."""

    def learner(
        self, observations: spaces.Space[Any], actions: spaces.Space[Any], experience: Experience
    ) -> TrialLearner:
        """The algorithm for these spaces."""
        from tunegym.tuning.agents.sb3.learners import build_learner

        horizon = self.env.experiment.most_trials or configs.HORIZON
        return build_learner(self.config, observations, actions, experience, self.seed, horizon)

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Keep another run's trials; a policy without a checkpoint is pre-trained on them."""
        self._warm = trials

    def run(self) -> int:
        """Train on trials until the budget is used up; 1 if the algorithm fails."""
        from tunegym.tuning.agents.trial_learner import TrialTraining

        return self._train(TrialTraining)

    def _train(self, kind: type[TrialTraining]) -> int:
        try:
            self._training = kind(self.env, self.name, self.config, self.view, self.learner)
            self._training.run(self._warm)
        except TrainingError as error:
            closed = 0 if self._training is None else self._training.closed
            self.failure = f"training failed after {counted(closed, 'trial')}: {error}"
            self._training = None  # a broken policy must not be asked
            while self.env.next_finished() is not None:  # running trials are still recorded
                pass
            return 1
        return 0

    def choose(self, context: Context) -> PolicyChoice | None:
        """The policy's preferred setting, of those that are known to work; None before it has learned anything."""
        return None if self._training is None else self._training.choose(context)


class _OnPolicy(PolicyAgent):
    """Chooses among combinations where there are few, otherwise every knob by itself."""

    def view(self, kind: str | None) -> ActionView:
        """One index for all knobs, or one for each."""
        space, bins, joint = self.env.space, self.config.bins, self.config.joint
        if kind is not None:
            joint = kind == "Discrete"
        elif joint is None:
            trials = self.env.experiment.most_trials or configs.HORIZON
            joint = _combinations(space, bins) <= max(FEW, trials // TRIALS_EACH)
        return DiscreteView(space, bins) if joint else MultiDiscreteView(space, bins)


class Ppo(_OnPolicy):
    """PPO: learns a policy for knobs of any kind; ranges are binned."""

    Config: ClassVar[type[AgentConfig]] = configs.PpoConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LivePpo"}
    name: ClassVar[str] = "ppo"


class A2c(_OnPolicy):
    """A2C: like PPO, in smaller steps."""

    Config: ClassVar[type[AgentConfig]] = configs.A2cConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveA2c"}
    name: ClassVar[str] = "a2c"


class Dqn(PolicyAgent):
    """DQN: learns the value of every combination, from all trials again and again; a few thousand at most."""

    Config: ClassVar[type[AgentConfig]] = configs.DqnConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveDqn"}
    name: ClassVar[str] = "dqn"

    def view(self, kind: str | None) -> ActionView:
        """One index for all knobs."""
        return DiscreteView(self.env.space, self.config.bins, self.config.max_actions)


class Sac(PolicyAgent):
    """SAC: learns a policy over ranges."""

    Config: ClassVar[type[AgentConfig]] = configs.SacConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveSac"}
    name: ClassVar[str] = "sac"

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """It moves through ranges."""
        lists = [name for name, knob in space.knobs.items() if isinstance(knob, Choice)]
        if not lists:
            return super().refuse(space)
        what = f"sac moves through ranges, and these knobs are lists: {', '.join(lists)}"
        allowed = "sac with ranges only; bayes, ppo, a2c and dqn take lists"
        return Problem("agent", what, '"sac"', allowed, 'write agent = "ppo", or make the lists ranges')

    def view(self, kind: str | None) -> ActionView:
        """A position in each range."""
        return BoxView(self.env.space)


def _bounded(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(_bounded, parts))
    return not isinstance(space, spaces.Box) or space.is_bounded()


def mismatch(agent: str, actions: spaces.Space[Any], observations: spaces.Space[Any] | None = None) -> Problem | None:
    """Why an algorithm can't take a server's spaces, and which agent can; None if it can."""
    others = [name for name, kinds in TAKES.items() if isinstance(actions, kinds)]
    found = textwrap.shorten(repr(actions), 120, placeholder="...")
    kinds = ", ".join(kind.__name__ for kind in TAKES[agent])
    if agent not in others:
        what = f"{agent} can't choose from the server's action space {found}"
    elif not _bounded(actions):
        what, others = f"{agent} needs bounds to every number of the server's action space {found}", []
    elif observations is not None and not leaves(observations):
        what, others = f"{agent} needs something to observe, and the server's observation space is {observations}", []
    else:
        return None
    hint = f'write agent = "{others[0] if others else "random_search"}", or give the server another action space'
    return Problem("agent", what, f'"{agent}"', f"an action space of {kinds}, with bounds", hint)


class LivePolicy(LiveAgent):
    """Learns with an algorithm of Stable-Baselines3 in the library's own loop, and keeps its policy on disk.

    A resume continues from ``policy/checkpoint.pt``; the library's ``load`` takes ``policy/model.zip``.
    """

    library: ClassVar[Library] = SB3

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Its library must be installed, and take the settings and, if they are known, the actions."""
        spec, refused = experiment.live, cls.library.missing(cls.name)
        if refused is None and spec is not None and spec.address is None and spec.env_class != INJECTED:
            declared = describe_class(spec.env_class, (str(scenario_dir.absolute()),)).action_space
            refused = None if declared is None else mismatch(cls.name, build(declared))
        return [refused] if refused else configs.problems(experiment.agent_config, experiment.most_trials)

    def _drive(self) -> None:
        problem = mismatch(self.name, self.env.action_space, self.env.observation_space)
        if problem is not None:
            self.failure, self.failure_hint = f"{problem.what}; it takes {problem.allowed}", problem.hint
            return
        self._train()

    def _train(self) -> None:
        """Train to the end of the budget; raises what ``LiveAgent.run`` expects."""
        from tunegym.tuning.agents.sb3.live import Sb3LiveTraining

        Sb3LiveTraining(self.env, self.name, self.config, self.seed).run()


def live_agent(name: str, config: type[LiveConfig], base: type[LivePolicy] = LivePolicy) -> type[LivePolicy]:
    """The class of the agent ``name`` for live systems."""
    title = name.title().replace("_", "")
    return type(f"Live{title}", (base,), {"name": name, "Config": config, "__module__": base.__module__})


LivePpo = live_agent("ppo", configs.LivePpoConfig)
LiveA2c = live_agent("a2c", configs.LiveA2cConfig)
LiveDqn = live_agent("dqn", configs.LiveDqnConfig)
LiveSac = live_agent("sac", configs.LiveSacConfig)
