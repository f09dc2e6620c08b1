"""The head of a journal: the experiment that it belongs to, as it was when the run began. Parsed once, and frozen."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from tunegym.tuning.model.scenario import Confirm, Experiment, Goal, Judged, Objective, OverContexts, Recording
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Range, Space
from tunegym.tuning.model.values import Scalar

VERSION = 3
"""The format of journals that this version of tunegym writes and reads."""


class KnobSpec(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A knob as plain data: a list has ``values``, a range has bounds and a type."""

    values: tuple[Scalar, ...] | None = None
    low: int | float | None = None
    high: int | float | None = None
    dtype: Literal["int", "float"] | None = None
    log: bool = False
    step: int | float | None = None

    def __post_init__(self) -> None:
        if not self.values and None in (self.low, self.high, self.dtype):
            raise ValueError("a knob has values, or low, high and dtype")

    @cached_property
    def domain(self) -> Knob:
        """The knob."""
        if self.values is not None:
            return Choice(self.values)
        assert self.low is not None
        assert self.high is not None
        return Range(self.low, self.high, self.dtype or "float", self.log, self.step)


class ParamSpec(KnobSpec, frozen=True, omit_defaults=True, dict=True):
    """An env_param as plain data."""

    weights: tuple[float, ...] | None = None
    draw: Literal["episode", "step"] = "episode"

    @classmethod
    def of(cls, param: EnvParam) -> ParamSpec:
        """An env_param as plain data."""
        draw = "step" if param.every_step else "episode"
        return cls(**param.domain.spec(), weights=param.weights, draw=draw)


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="head", dict=True):
    """The experiment that a journal belongs to. Everything but ``run`` and ``at`` must be the same on resume."""

    version: int = VERSION
    at: float = 0.0
    experiment: str
    run: str  # a random token; marks the processes of this run
    seed: int = 0
    agent: str | None = None
    knobs: dict[str, KnobSpec] = {}
    env_params: dict[str, ParamSpec] = {}
    metrics: tuple[str, ...] = ()  # the names that have a column in the CSV view
    repeats: int | Literal["auto"] = 1
    warmup: int = 0
    objectives: tuple[Objective, ...] = ()  # empty where the reward alone decides
    goals: dict[str, Goal] = {}  # by metric, where a direction is known
    judged: Judged = Judged()
    reward: str | None = None  # the reward's name or reference; None if objectives or a live server define it
    baseline: dict[str, Scalar] | None = None  # the settings in use today
    confirm: Confirm | None = None  # None where nothing is confirmed
    over_contexts: OverContexts = "mean"
    live: Recording | None = None  # which steps of a live experiment are recorded; None for one that runs jobs

    @classmethod
    def of(cls, experiment: Experiment, run: str) -> Head:
        """The head of an experiment's journal; ``run`` is the token of the run."""
        searches = experiment.agent is not None and experiment.live is None
        declared = [spec.name for spec in experiment.metrics]
        return cls(
            experiment=experiment.name,
            run=run,
            seed=experiment.env_params.seed,
            agent=experiment.agent,
            knobs={name: KnobSpec(**knob.spec()) for name, knob in experiment.space.knobs.items()},
            env_params={name: ParamSpec.of(param) for name, param in experiment.env_params.params.items()},
            metrics=tuple(dict.fromkeys([*experiment.agent_metrics, *declared])),
            repeats=experiment.repeats,
            warmup=experiment.warmup,
            objectives=experiment.objectives,
            goals=dict(experiment.goals),
            judged=experiment.judged,
            reward=experiment.reward,
            baseline=None if experiment.baseline is None else dict(experiment.baseline),
            confirm=experiment.confirm if searches else None,
            over_contexts=experiment.over_contexts,
            live=None if experiment.live is None else experiment.live.recording,
        )

    @property
    def kind(self) -> Literal["trials", "live"]:
        """``live`` if a server answers each step, else ``trials``."""
        return "trials" if self.live is None else "live"

    @cached_property
    def space(self) -> Space:
        """The knobs."""
        return Space({name: spec.domain for name, spec in self.knobs.items()})

    @cached_property
    def params(self) -> EnvParams:
        """The env_params."""
        params = {
            name: EnvParam(spec.domain, spec.weights, every_step=spec.draw == "step")
            for name, spec in self.env_params.items()
        }
        return EnvParams(params, self.seed)
