"""How much each knob matters: its share of the spread of costs within contexts, by the model.

A knob's effect is how the mean cost changes with its value; a pair's is what their values change together beyond that.
Means are over the same settings for every value. Failures are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

import numpy as np
from scipy.special import bdtrc

from tunegym.tuning.inference.coordinates import Floats
from tunegym.tuning.inference.observations import Observations, Row
from tunegym.tuning.inference.process import one_thread
from tunegym.tuning.inference.surrogate import INFLATION, Surrogate
from tunegym.tuning.model.space import Choice, Knob, Space
from tunegym.tuning.model.trial import FAILURES
from tunegym.tuning.model.values import Action, Scalar, number, spelled

FEWEST = 10
"""Measurements without which nothing is said of knobs."""
SETTINGS, VARIED = 32, 400
"""Settings that means are over, and those whose spread is the whole."""
VALUES, PAIR_VALUES, PAIRED = 5, 3, 4
"""Values of a knob that are compared, values of each knob of a pair, and how many knobs are looked at in pairs."""
TELLING = 0.5
"""An effect that is smaller than this share of the model's uncertainty about it counts as none. Chosen on three kinds
of simulated searches at 5 to 25 % noise, checked on three others: 98 % of knobs that do nothing are then below 2 %."""
DRAWS = 300
PARTS = 4
"""A range is looked at in so many parts for values that fail."""
SIGNIFICANT = 0.01
"""The chance that equal values, all together, look as if one of them failed more often."""


@dataclass(frozen=True)
class Share:
    """The share of the spread that a knob explains, or a pair beyond its knobs, with a 95 % interval."""

    names: tuple[str, ...]
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class FailingValue:
    """A value of a knob, or a part of its range, that fails far more often than the others; ``kinds`` by status."""

    name: str
    value: str
    failed: int
    trials: int
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class Importance:
    """What matters, the largest share first. There are no ``knobs`` if too few trials were ``measured``."""

    measured: int = 0
    knobs: tuple[Share, ...] = ()
    pairs: tuple[Share, ...] = ()
    failures: tuple[FailingValue, ...] = ()


@one_thread
def importance_of(surrogate: Surrogate | None) -> Importance:
    """Return how much each knob matters."""
    if surrogate is None:
        return Importance()
    observations = surrogate.observations
    measured, failures = len(observations.measured()), _failing_values(observations)
    if measured < FEWEST:
        return Importance(measured, failures=failures)
    knobs = _ranked([_effect(surrogate, (name,), VALUES) for name in observations.question.space.knobs])
    first = [effect.names[0] for effect in knobs[:PAIRED] if effect.size]
    pairs = _ranked([_effect(surrogate, names, PAIR_VALUES) for names in combinations(first, 2)])
    total = max(_spread(surrogate), sum(effect.size for effect in knobs + pairs), 1e-12)
    return Importance(
        measured=measured,
        knobs=tuple(effect.share(total) for effect in knobs),
        pairs=tuple(effect.share(total) for effect in pairs if effect.size),
        failures=failures,
    )


@dataclass(frozen=True)
class _Effect:
    """The variance of the means of some knobs' values, on the model's scale; ``draws`` from its posterior."""

    names: tuple[str, ...]
    size: float
    draws: Floats

    def share(self, total: float) -> Share:
        """Return its share of a variance."""
        share = self.size / total
        others = max(total - self.size, 1e-12)
        low, high = np.quantile(self.draws / (others + self.draws), [0.025, 0.975])
        return Share(self.names, share, min(float(low), share), max(float(high), share))


def _ranked(effects: list[_Effect]) -> list[_Effect]:
    return sorted(effects, key=lambda effect: effect.size, reverse=True)


def _settings(space: Space, count: int) -> list[Action]:
    return [space.draw(0, "importance", place) for place in range(count)]


def _spread(surrogate: Surrogate) -> float:
    """Return the variance of expected costs over all settings, within contexts."""
    question = surrogate.observations.question
    within = surrogate.cost.reach(surrogate.points(_settings(question.space, VARIED)))
    return float(question.contexts.weights @ surrogate.cost.means(within).var(axis=1))


def _effect(surrogate: Surrogate, names: tuple[str, ...], count: int) -> _Effect:
    """Return the effect of some knobs together, beyond that of each by itself, at ``count`` values of each."""
    posterior, question = surrogate.cost, surrogate.observations.question
    values = [_spread_values(question.space.knobs[name], count) for name in names]
    changes = [dict(zip(names, combination, strict=True)) for combination in product(*values)]
    settings, weights = _settings(question.space, SETTINGS), question.contexts.weights
    points = surrogate.points([{**setting, **change} for change in changes for setting in settings])
    within = posterior.reach(points).reshape(-1, len(changes), SETTINGS).mean(axis=2)
    alike = posterior.kernel(points, points).reshape(len(changes), SETTINGS, len(changes), SETTINGS).mean(axis=(1, 3))
    seen = np.hstack([posterior.solve(posterior.cross(within, context)) for context in range(len(weights))])
    # Take away the mean over each knob's values in each context: what is constant, and the effects of fewer knobs.
    centred = reduce(np.kron, [np.eye(len(each)) - 1.0 / len(each) for each in values], np.eye(len(weights)))
    means = centred @ posterior.means(within).ravel()
    covariance = centred @ (np.kron(posterior.shape.between, alike) - seen.T @ seen) @ centred
    counts = np.repeat(weights / len(changes), len(changes))
    size, doubt = float(counts @ means**2), float(counts @ np.diag(covariance))
    # The model is too sure of itself, and doubt alone makes draws larger than the means.
    draws = np.random.default_rng(1).multivariate_normal(means, INFLATION * covariance, DRAWS, method="eigh")
    sizes = np.maximum(draws**2 @ counts - INFLATION * doubt, 0.0)
    return _Effect(names, size if size > TELLING * doubt else 0.0, sizes)


def _spread_values(knob: Knob, count: int) -> list[Scalar]:
    """Return at most ``count`` different values, evenly spread."""
    values = [knob.from_unit((place + 0.5) / count) for place in range(count)]
    return list({(type(value), value): value for value in values}.values())


def _failing_values(observations: Observations) -> tuple[FailingValue, ...]:
    """Return the values that fail, the surest first. Each counts the trials that have none of those before it."""
    rows = [row for row in observations.rows if row.worked or row.trial.status in FAILURES]
    failing: list[FailingValue] = []
    while True:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row, (name, knob) in product(rows, observations.question.space.knobs.items()):
            groups.setdefault((name, _part(knob, row.trial.action[name])), []).append(row)
        usual = _failed(rows) / max(len(rows), 1)
        chances = {value: float(bdtrc(_failed(group) - 1, len(group), usual)) for value, group in groups.items()}
        surest = min(chances, key=lambda value: chances[value], default=None)
        if surest is None or chances[surest] * len(chances) > SIGNIFICANT:
            return tuple(failing)
        group = groups[surest]
        kinds = Counter(row.trial.status for row in group if not row.worked)
        failing.append(FailingValue(*surest, failed=kinds.total(), trials=len(group), kinds=kinds))
        numbers = {row.trial.number for row in group}
        rows = [row for row in rows if row.trial.number not in numbers]


def _failed(rows: list[Row]) -> int:
    return sum(not row.worked for row in rows)


def _part(knob: Knob, value: Scalar) -> str:
    """Return a value in words; of a range, the part that it is in."""
    if isinstance(knob, Choice):
        return spelled(value)
    part = min(int(knob.position(float(value)) * PARTS), PARTS - 1)
    ends = [number(float(knob.at_position((part + end) / PARTS))) for end in (0, 1)]
    return " to ".join(ends)
