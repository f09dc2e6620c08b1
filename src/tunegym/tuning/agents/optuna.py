"""Optuna's samplers as an agent. The journal is the truth: the study in memory is built from it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents import warm
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.proposing import ByNumber, ByStudy, Proposer
from tunegym.tuning.agents.samplers import TRAITS, SamplerName
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, Space
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Scalar, exact_key
from tunegym.tuning.ports import Env

PATIENCE = 3
"""So many trials of a run may be spent on what was measured, or failed, before; then only new settings are tried."""
AGAIN = 8
"""So many times the sampler may say something else before the agent looks elsewhere by itself."""
ATTEMPTS = 100
"""So many draws it takes to find something new; then the grid is gone through."""
MOST_LOOKED_AT = 100_000
"""Unless the grid is larger than this."""


@dataclass(frozen=True, kw_only=True)
class OptunaConfig(AgentConfig):
    """What the ``optuna`` agent takes.

    Attributes:
        sampler: which of Optuna's samplers proposes.
        startup_trials: how many are drawn at random before it learns; by default Optuna's own number.
        population: the size of a generation (``nsgaii``, ``cmaes``); by default Optuna's own.
        warm_start: the results folder of another run, whose trials are told first.
    """

    sampler: SamplerName = "tpe"
    startup_trials: int | None = None
    population: int | None = None
    warm_start: str | None = None


class OptunaAgent(BaseAgent):
    """Proposes with one of Optuna's samplers.

    The study lives in memory and is built anew from the recorded trials on a resume. Every trial has a seed of its
    own, so at one slot a resumed run proposes what the uninterrupted one would have (but for ``gp``, whose fits
    start where the last one ended).
    """

    Config: ClassVar[type[AgentConfig]] = OptunaConfig

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        name: SamplerName = self.config.sampler
        self._rehearses = TRAITS[name].rehearses
        self._proposer: Proposer
        if name in ("random", "qmc"):
            self._proposer = ByNumber(name, env.space, self.seed)
        else:
            options = {theirs: getattr(self.config, ours) for ours, theirs in TRAITS[name].options}
            given = {theirs: value for theirs, value in options.items() if value is not None}
            self._proposer = ByStudy(name, given, env.space, env.objectives, self.seed)
        self._chosen: set[int] = set()
        self._tried: Counter[bytes] = Counter()
        self._wasted = 0
        self._served = False

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Optuna itself must be there."""
        del space
        if importlib.util.find_spec("optuna") is None:
            what = "the agent optuna needs the package optuna"
            return Problem("agent", what, found='"optuna"', hint="pip install 'tunegym[optuna]'")
        return None

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse a sampler that can't work here, settings that it doesn't take, and a warm start from nowhere."""
        config: OptunaConfig = experiment.agent_config
        return [
            *_missing_packages(config.sampler),
            *_unused_settings(config),
            *_too_small(config),
            *_unsuitable(config.sampler, experiment),
            *_cold(config, scenario_dir),
        ]

    # proposing ----------------------------------------------------------------------------------------

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """What the sampler proposes; something else if it repeats itself; None when everything was tried."""
        size = self.env.space.size
        if self._served and size is not None and len(self._tried) >= size:
            return None  # the cache would answer for ever
        action = self._proposed(observation.number)
        self._chosen.add(observation.number)
        self._tried[exact_key(action)] += 1
        return action

    def _proposed(self, number: int) -> dict[str, Scalar]:
        if number == 1 and self.config.start_action == "first":
            return self._replaced(number, {name: knob.from_unit(0.0) for name, knob in self.env.space.knobs.items()})
        action = self._proposer.propose(number)
        if self._wasted < PATIENCE or exact_key(action) not in self._tried:
            return action
        return self._new(number) or self._replaced(number, action)

    def _replaced(self, number: int, action: dict[str, Scalar]) -> dict[str, Scalar]:
        self._proposer.replace(number, action)
        return action

    def _new(self, number: int) -> dict[str, Scalar] | None:
        """Something that was not tried: of the sampler, else from anywhere; None if there is nothing."""
        for attempt in range(1, AGAIN):
            another = self._proposer.again(number, attempt)
            if another is None:
                break
            if exact_key(another) not in self._tried:
                return another
        elsewhere = self._elsewhere(number)
        return self._replaced(number, elsewhere) if elsewhere is not None else None

    def _elsewhere(self, number: int) -> dict[str, Scalar] | None:
        """An action that was not tried; None if there is none, or none can be found."""
        space = self.env.space
        size = space.size
        if size is not None and len(self._tried) >= size:
            return None
        for attempt in range(ATTEMPTS):
            drawn = {
                name: knob.from_unit(unit(self.seed, "optuna", "elsewhere", name, number * ATTEMPTS + attempt))
                for name, knob in space.knobs.items()
            }
            if exact_key(drawn) not in self._tried:
                return drawn
        if size is None or size > MOST_LOOKED_AT:
            return None
        start = integer(self.seed, size, "optuna", "elsewhere", number)
        points = (space.point((start + index) % size) for index in range(size))
        return next((point for point in points if exact_key(point) not in self._tried), None)

    # learning -----------------------------------------------------------------------------------------

    def update_policy(self, feedback: Feedback) -> None:
        """Tell how a trial ended; one of an earlier session is made up for first."""
        if feedback.trial_index in self._chosen:
            self._chosen.remove(feedback.trial_index)
            self._proposer.tell(feedback)
        else:
            if self._rehearses:
                self._rehearse(feedback)
            else:
                self._proposer.add(feedback)
            self._tried[exact_key(feedback.action)] += 1
        self._served = feedback.cached
        # Without a cache a setting may well be measured again; what failed before is still not worth another try.
        failed_again = feedback.status != "measured" and self._tried[exact_key(feedback.action)] > 1
        self._wasted += feedback.cached or failed_again

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Tell of another run's trials. They were not tried here: their settings may come up again."""
        feedbacks = []
        for trial in trials:
            shown = Observation(trial.number, trial.context, trial.metrics, trial.measured)
            told = Feedback(trial.number, trial.reward, shown, shown, trial.action, done=False, status=trial.status)
            feedbacks.append(told)
        self._proposer.warm(feedbacks)

    def _rehearse(self, feedback: Feedback) -> None:
        """Ask as the earlier session did, so that the sampler is where it was; what was really run is what counts."""
        action = self._proposed(feedback.trial_index)
        if exact_key(action) != exact_key(feedback.action):
            self._proposer.replace(feedback.trial_index, feedback.action)
        self._proposer.tell(feedback)


def _missing_packages(name: SamplerName) -> list[Problem]:
    extra = "gp" if name == "gp" else "optuna"
    return [
        Problem(
            "agent_config.sampler",
            f"the sampler {name} needs the package {package}",
            found=f'"{name}"',
            hint=f"pip install 'tunegym[{extra}]'",
        )
        for package in TRAITS[name].packages
        if importlib.util.find_spec(package) is None
    ]


def _unused_settings(config: OptunaConfig) -> list[Problem]:
    takes = [ours for ours, _ in TRAITS[config.sampler].options]
    return [
        Problem(
            f"agent_config.{setting}",
            f"the sampler {config.sampler} has no {setting}",
            found=str(value),
            allowed=", ".join(takes) or "none of these settings",
            hint=f"remove {setting}, or choose another sampler",
        )
        for setting in ("startup_trials", "population")
        if (value := getattr(config, setting)) is not None and setting not in takes
    ]


def _too_small(config: OptunaConfig) -> list[Problem]:
    least = {"startup_trials": 1, "population": 2}
    return [
        Problem(
            f"agent_config.{setting}",
            "the value is out of bounds",
            found=str(value),
            allowed=f"an integer of at least {bound}",
            hint=f"write {setting} = {bound} or more",
        )
        for setting, bound in least.items()
        if (value := getattr(config, setting)) is not None and value < bound
    ]


def _unsuitable(name: SamplerName, experiment: Experiment) -> list[Problem]:
    knobs = experiment.space.knobs.values()
    if name == "cmaes" and all(isinstance(knob, Choice) for knob in knobs):
        return [
            Problem(
                "agent_config.sampler",
                "cmaes moves through ranges, and every knob here is a list",
                found='"cmaes"',
                allowed='"cmaes" with at least one range',
                hint='write sampler = "tpe"',
            )
        ]
    return []


def _cold(config: OptunaConfig, scenario_dir: Path) -> list[Problem]:
    """Why there can be no warm start, if one is asked for."""
    folder = config.warm_start
    if folder is not None and config.sampler in ("random", "qmc"):
        what, hint = f"the sampler {config.sampler} learns nothing", "remove warm_start, or choose another sampler"
        return [Problem(warm.WHERE, what, f'"{folder}"', warm.ALLOWED, hint)]
    return warm.cold(folder, scenario_dir)
