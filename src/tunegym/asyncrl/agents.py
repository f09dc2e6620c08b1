"""The agent ``async_ppo``: its settings, for trials and for live experiments. ``async_ppo`` has the learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

from tunegym.core.errors import Problem
from tunegym.dataplane import StalenessPolicy
from tunegym.dataplane.connect import TIMEOUT_S
from tunegym.tuning.agents.base import LiveConfig
from tunegym.tuning.agents.sb3 import config as configs
from tunegym.tuning.agents.sb3.agents import Library, LivePolicy, Ppo, too_many
from tunegym.tuning.agents.sb3.config import Schedule
from tunegym.tuning.envs.actions import BINS
from tunegym.tuning.model.scenario import Experiment

if TYPE_CHECKING:
    from tunegym.asyncrl.async_ppo import AsyncLearner
    from tunegym.tuning.inference.experience import Experience

TORCH = Library(("torch",), "torch", "rl")


@dataclass(frozen=True, kw_only=True)
class PlaneConfig:
    """``[plane]``: the data plane between collectors and learner; ``{folder}`` is the experiment's results."""

    url: str = "mmap://{folder}/plane"
    lease_s: float | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.url.partition("://")[0] in ("memory", self.url):
            raise ValueError('url must be of a plane that processes share, such as "mmap:///folder" or "tq://name"')
        for name in ("lease_s", "timeout_s"):
            if (seconds := getattr(self, name)) is not None and seconds <= 0:
                raise ValueError(f"{name} must be above 0")

    def options(self, folder: Path) -> dict[str, Any]:
        """The arguments of ``connect`` and ``attach``."""
        return {**vars(self), "url": self.url.replace("{folder}", str(folder.absolute()))}


@dataclass(frozen=True, kw_only=True)
class LiveAsyncPpoConfig(LiveConfig):
    """Settings of ``async_ppo`` on live systems. A version of the weights is made of ``batch`` rollouts."""

    num_collectors: int | None = None
    max_staleness: int = 1
    dp_world: int = 1
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    batch: int = 16
    n_steps: int = 64
    minibatch: int = 256
    n_epochs: int = 10
    learning_rate: float = 1e-3
    learning_rate_schedule: Schedule = "constant"
    gamma: float = 0.98
    gae_lambda: float = 0.9
    clip_range: float = 0.2
    importance_limit: float = 2.0
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    net_arch: tuple[int, ...] = (64, 64)
    checkpoint_every: int = 5

    def policy(self) -> StalenessPolicy:
        """How far collectors may run ahead."""
        return StalenessPolicy(self.batch, self.max_staleness, commit_every=self.checkpoint_every)


@dataclass(frozen=True, kw_only=True)
class AsyncPpoConfig(LiveAsyncPpoConfig):
    """Settings of ``async_ppo`` on trials."""

    batch: int = 100
    minibatch: int = 100
    learning_rate: float = 3e-3
    gamma: float = 0.0  # a trial doesn't change the next
    gae_lambda: float = 1.0
    ent_coef: float = 0.01
    bins: int = BINS
    joint: bool | None = None


def _problems(experiment: Experiment) -> list[Problem]:
    config, most = experiment.agent_config, experiment.most_trials
    found = configs.problems(config, most)
    if config.batch < config.dp_world:
        hint = "each rank needs a rollout: give a larger batch"
        found.append(
            Problem(
                "agent_config.dp_world",
                f"more ranks than rollouts: a batch has {config.batch}",
                str(config.dp_world),
                hint=hint,
            )
        )
    if most is not None and config.batch > most:
        what, hint = f"it would never learn: the budget is {most}", "give a smaller batch, or a larger budget"
        found.append(Problem("agent_config.batch", what, str(config.batch), f"at most {most}", hint))
    return found


class AsyncPpo(Ppo):
    """PPO whose rollouts come from collectors that don't wait for each other, through the data plane."""

    Config: ClassVar[Any] = AsyncPpoConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveAsyncPpo"}
    name: ClassVar[str] = "async_ppo"
    library: ClassVar[Library] = TORCH

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse settings that can't work."""
        del scenario_dir
        return _problems(experiment) or too_many(cls.name, experiment.agent_config, experiment.space)

    def learner(
        self, observations: spaces.Space[Any], actions: spaces.Space[Any], experience: Experience
    ) -> AsyncLearner:
        """The learner for these spaces."""
        from tunegym.asyncrl.async_ppo import AsyncLearner

        del experience
        return AsyncLearner(self.config, self.seed, int(observations.shape[0]), actions)  # type: ignore[index]

    def run(self) -> int:
        """Train on trials until the budget is used up; 1 if the algorithm fails."""
        from tunegym.asyncrl.async_ppo import AsyncTrials

        return self._train(AsyncTrials)


class LiveAsyncPpo(LivePolicy):
    """PPO whose rollouts come from collectors that don't wait for each other, through the data plane."""

    Config: ClassVar[Any] = LiveAsyncPpoConfig
    name: ClassVar[str] = "async_ppo"
    library: ClassVar[Library] = TORCH

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """As other agents, and an episode must keep its context, since lanes have no common next step."""
        varying = [name for name, param in experiment.env_params.params.items() if param.every_step]
        if varying:
            what, hint = "async_ppo needs one context for an episode", 'write draw = "episode", or agent = "ppo"'
            return [Problem(f"env_params.{varying[0]}.draw", what, '"step"', '"episode"', hint)]
        return super().check(experiment, scenario_dir) or _problems(experiment)

    def _train(self) -> None:
        from tunegym.asyncrl.async_ppo import AsyncLive

        AsyncLive(self.env, self.name, self.config, self.seed).run()
