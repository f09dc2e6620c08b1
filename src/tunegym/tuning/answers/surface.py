"""What all measurements together say of a setting: nearby settings, and other contexts, inform each other.

A single noisy sample says little, and the best of many says more about luck than about a setting. So rewards are
smoothed: the posterior mean of a Gaussian process (Rasmussen and Williams, 2006, chapters 2 and 5) over the knobs'
scales, with the likeliest of a few length scales and correlations between contexts. The noise check gives the noise, so
that without noise every measured value stays as it is. Bad values are cut off at a quantile: how bad a setting is
doesn't matter. Each context has its own scale, so that none drowns the others.

It ranks candidates, and settings that fresh samples can't tell apart. What is reported never comes from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tunegym.tuning.answers.contexts import domains_of
from tunegym.tuning.answers.intervals import SLACK, Spread
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.space import Knob, Range
from tunegym.tuning.model.values import Scalar, exact_key

LENGTHS = (0.1, 0.15, 0.3)
"""The length scale as a share of the diagonal of the knobs' scales: the likeliest of these."""
ELSEWHERE = (0.5, 0.0, 0.9)
"""The correlation of a setting's values in two contexts that have nothing in common: the likeliest of these."""
FEWEST = 10
"""Measurements for each range of contexts from which on values follow it."""
NEAR = 0.3
"""The length scale of an env_param that is a range."""
SHARED = 4.0
"""Weight, in measurements, of what is common to all contexts in the scale of each."""
CUT = 0.25
"""Below this quantile, values are all the same."""
MOST = 800
"""The most places that count, the best ones."""

Place = tuple[Mapping[str, Scalar], Mapping[str, Scalar]]
"""An action and a context."""


class Surface:
    """Smoothed advantages over what is typical in a context.

    Args:
        head: the journal's first record.
        samples: the measured rewards by place.
        spread: of one setting's rewards.
    """

    def __init__(self, head: Head, samples: Iterable[tuple[Place, Sequence[float]]], spread: Spread) -> None:
        self._knobs = head.space.knobs
        self._params = domains_of(head)
        some = list(samples)
        means = np.array([np.mean(values) for _, values in some])
        groups: dict[str, list[int]] = {}
        for at, ((_, context), _) in enumerate(some):
            groups.setdefault(self._group(context), []).append(at)
        advantage, scales = np.empty(len(some)), np.empty(len(some))
        # Relative spreads are the same everywhere on the scale of logarithms, which only values of one sign have.
        self.relative = spread.relative and bool(np.all(means > 0) or np.all(means < 0))
        for rows in groups.values():
            values = np.log(np.abs(means[rows])) * np.sign(means[rows]) if self.relative else means[rows]
            found = values - self._typical([some[at][0][1] for at in rows], values)
            advantage[rows] = np.maximum(found, np.quantile(np.unique(found), CUT))
        self._scale = float(np.abs(advantage).mean()) or 1.0 if some else 1.0
        self._scales: dict[str, float] = {}
        for group, rows in groups.items():
            total = float(np.abs(advantage[rows]).sum()) + SHARED * self._scale
            scales[rows] = self._scales[group] = total / (len(rows) + SHARED)
        # An interpolation may be far off where values jump.
        exact = some if spread.freedom and spread.variance <= SLACK**2 else ()
        self._exact = {exact_key(*place): float(one) for (place, _), one in zip(exact, advantage, strict=False)}
        advantage /= scales
        kept = np.argsort(-advantage, kind="stable")[:MOST]
        self._columns = self._coordinates([some[at][0] for at in kept])
        values = advantage[kept]
        self._mean = float(values.mean()) if len(values) else 0.0
        total = min(max(float(values.var()), 1e-300), 1e300) if len(values) else 1.0
        known = np.full(len(values), total / 10)
        if spread.freedom:
            usual = float(np.median(np.abs(means))) if spread.relative and not self.relative else 1.0
            known = np.minimum(spread.variance * (usual / scales[kept]) ** 2, total)
        signal = max(total - float(known.mean()), total / 10) if len(values) else 1.0
        noise = np.diag(known / signal / np.array([len(some[at][1]) for at in kept]) + 1e-8)
        best = -np.inf
        for shape in self._shapes(len(groups)):
            lower = np.linalg.cholesky(self._covariance(self._columns, *shape) + noise)
            half = np.linalg.solve(lower, values - self._mean)
            likely = -0.5 * half @ half / signal - np.log(np.diag(lower)).sum()
            if not likely <= best:  # also where squares overflow
                best, self._shape, self._weights = likely, shape, np.linalg.solve(lower.T, half)

    def _shapes(self, groups: int) -> Iterator[tuple[float, float]]:
        """Length scales, then, with the likeliest so far, correlations between contexts."""
        yield from ((length, ELSEWHERE[0]) for length in LENGTHS if groups)
        yield from ((self._shape[0], elsewhere) for elsewhere in ELSEWHERE[1:] if groups > 1)

    def _typical(self, contexts: Sequence[Mapping[str, Scalar]], values: np.ndarray) -> np.ndarray | float:
        """What is typical in each context: the median; along ranges a parabola through all values."""
        ranges = [(name, knob) for name, knob in self._params.items() if isinstance(knob, Range)]
        columns = [scaled(knob, [one[name] for one in contexts]) for name, knob in ranges]
        if not ranges or len(values) < FEWEST * len(ranges):
            return float(np.median(values))
        design = np.column_stack([np.ones(len(values)), *columns, *(column**2 for column in columns)])
        return design @ np.linalg.lstsq(design, values)[0]

    def at(self, places: Sequence[Place]) -> list[float]:
        """The smoothed advantages; where they are ``relative``, to the context's typical reward."""
        covariance = self._covariance(self._coordinates(places), *self._shape)
        scales = (self._scales.get(self._group(context), self._scale) for _, context in places)
        smooth = (self._mean + covariance @ self._weights) * [*scales]
        return [self._exact.get(exact_key(*place), float(one)) for place, one in zip(places, smooth, strict=True)]

    def _group(self, context: Mapping[str, Scalar]) -> str:
        """A context without its ranges."""
        return repr(sorted(one for one in context.items() if not isinstance(self._params[one[0]], Range)))

    def _coordinates(self, places: Sequence[Place]) -> list[np.ndarray]:
        """A column for each knob, then for each env_param."""
        columns = [scaled(knob, [action[name] for action, _ in places]) for name, knob in self._knobs.items()]
        return columns + [scaled(knob, [one[name] for _, one in places]) for name, knob in self._params.items()]

    def _covariance(self, rows: Sequence[np.ndarray], length: float, elsewhere: float) -> np.ndarray:
        domains = [*self._knobs.values(), *self._params.values()]
        actions = contexts = np.zeros((len(rows[0]), len(self._columns[0])))
        for at, (knob, mine, theirs) in enumerate(zip(domains, rows, self._columns, strict=True)):
            gaps = np.abs(mine[:, None] - theirs)
            if at < len(self._knobs):
                has_order = isinstance(knob, Range) or all(type(value) in (int, float) for value in knob.values)
                actions = actions + (gaps**2 if has_order else gaps > 0)
            elif isinstance(knob, Range):
                contexts = contexts + (gaps / NEAR) ** 2
            else:
                contexts = contexts + np.where(gaps > 0, np.inf, 0.0)
        same = elsewhere + (1 - elsewhere) * np.exp(-contexts / 2)
        return same * np.exp(-actions / (2 * length**2 * len(self._knobs)))


def scaled(knob: Knob, values: Sequence[Scalar]) -> np.ndarray:
    """Values from 0 to 1 on the scale of a range, or of candidates in their order."""
    if isinstance(knob, Range):
        return np.array([knob.position(float(value)) for value in values])
    step = max(knob.size - 1, 1)
    return np.array([(knob.index(value) or 0) / step for value in values])
