"""A tuning problem with a known truth: what is tuned, under which contexts, and what a setting truly gives.

The truth of a setting is its *typical* metric, the 10 % trimmed mean of its measurements: this is what answers report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
from scipy.stats import trim_mean

from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Space
from tunegym.tuning.model.values import Action, Context

TRIMMED = 0.1
"""Share of the measurements that the typical one leaves out at either end."""
CONFIRMED = 0.9
"""Where in a run its confirmation lies, on average: drift is judged there."""

Goal: TypeAlias = Literal["min", "max"]


class System(Protocol):
    """Something that measures settings and knows what they truly give. Metrics are positive."""

    def measure(self, action: Action, context: Context, draw: np.random.Generator, progress: float) -> float | None:
        """One noisy measurement at ``progress`` (0 to 1) of the run; None if the setting fails."""
        ...

    def typical(self, action: Action, context: Context) -> float | None:
        """The typical measurement; None if the setting fails."""
        ...

    def best(self, context: Context, goal: Goal) -> float:
        """The typical measurement of the best setting."""
        ...


@dataclass(frozen=True)
class Family:
    """A problem to search, with its baseline and budget.

    Attributes:
        trials: budget of one run, search and confirmation together.
        noise: relative noise of a measurement, where it is the same for all settings.
        is_null: no setting is better than the baseline in any context.
    """

    name: str
    knobs: Mapping[str, Knob]
    baseline: Action
    system: System
    trials: int
    params: Mapping[str, EnvParam] = field(default_factory=dict)
    goal: Goal = "min"
    noise: float | None = None
    is_null: bool = False

    @cached_property
    def space(self) -> Space:
        """The knobs as a space."""
        return Space(self.knobs)

    def env_params(self, seed: int) -> EnvParams:
        """The contexts as a run with this seed draws them."""
        return EnvParams(self.params, seed)

    @cached_property
    def contexts(self) -> tuple[tuple[Context, float], ...]:
        """The contexts in which answers are judged, with their weights."""
        return self.env_params(0).represented()

    def within(self, context: Context) -> Family:
        """Return the family with one context only."""
        return replace(self, params={name: EnvParam(Choice((value,))) for name, value in context.items()})

    def measure(
        self, action: Action, context: Context, draw: np.random.Generator, progress: float = 0.0
    ) -> float | None:
        """One noisy measurement at ``progress`` (0 to 1) of the run; None if the setting fails."""
        return self.system.measure(action, context, draw, progress)

    def truth(self, action: Action, context: Context) -> float | None:
        """The typical measurement; None if the setting fails."""
        return self.system.typical(action, context)

    def regret(self, action: Action, context: Context) -> float:
        """How much more the setting truly costs than the best one: 0 is the optimum, inf a setting that fails."""
        truth = self.truth(action, context)
        if truth is None:
            return math.inf
        best = self.system.best(context, self.goal)
        return max(self.ratio(truth, best) - 1.0, 0.0)

    def gain(self, action: Action, context: Context) -> float:
        """How many times better than the baseline the setting truly is; 0 if it fails."""
        truth, baseline = self.truth(action, context), self.truth(self.baseline, context)
        assert baseline is not None
        return 0.0 if truth is None else self.ratio(baseline, truth)

    def ratio(self, cost: float, other: float) -> float:
        """How many times more ``cost`` costs than ``other``."""
        return cost / other if self.goal == "min" else other / cost


@dataclass(frozen=True)
class Noise:
    """A random factor on every measurement.

    Attributes:
        spread: its relative standard deviation, outliers apart.
        outliers: share of measurements that are ``outlier_factor`` times as large.
        freedom: degrees of freedom of Student's t in place of the normal distribution.
        drift: by which factor metrics grow from the beginning of a run to its end.
    """

    spread: float
    outliers: float = 0.0
    outlier_factor: float = 4.0
    freedom: float | None = None
    drift: float = 1.0

    def factors(self, draw: np.random.Generator, progress: float, count: int) -> np.ndarray:
        """Independent factors at ``progress`` of the run."""
        sigma = math.sqrt(math.log1p(self.spread**2))
        deviations = draw.standard_normal(count) if self.freedom is None else draw.standard_t(self.freedom, count)
        outliers = np.where(draw.random(count) < self.outliers, self.outlier_factor, 1.0)
        return np.exp(sigma * deviations) * outliers * self.drift**progress

    @cached_property
    def typical(self) -> float:
        """The typical factor during the confirmation."""
        return float(trim_mean(self.factors(np.random.default_rng(0), CONFIRMED, 400_000), TRIMMED))


@dataclass(frozen=True)
class Simulation:
    """A system by a formula and a noise.

    Attributes:
        level: the metric of a setting in a context without noise; None if it fails.
        optimum: the best setting of a context, for spaces that can't be enumerated.
    """

    knobs: Mapping[str, Knob]
    level: Callable[[Action, Context], float | None]
    noise: Noise
    optimum: Callable[[Context], Action] | None = None
    _best: dict[tuple[object, ...], float] = field(default_factory=dict, compare=False, repr=False)

    def measure(self, action: Action, context: Context, draw: np.random.Generator, progress: float) -> float | None:
        level = self.level(action, context)
        return None if level is None else level * float(self.noise.factors(draw, progress, 1)[0])

    def typical(self, action: Action, context: Context) -> float | None:
        level = self.level(action, context)
        return None if level is None else level * self.noise.typical

    def best(self, context: Context, goal: Goal) -> float:
        key = (goal, *context.values())
        if key not in self._best:
            self._best[key] = self._search(context, goal)
        return self._best[key]

    def _search(self, context: Context, goal: Goal) -> float:
        if self.optimum is not None:
            best = self.typical(self.optimum(context), context)
            assert best is not None
            return best
        space = Space(self.knobs)
        assert space.size is not None
        levels = (self.level(space.point(index), context) for index in range(space.size))
        working = [level for level in levels if level is not None]
        return (min if goal == "min" else max)(working) * self.noise.typical
