"""Observations as one flat vector on one scale: what a small network learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.tuning.envs.structure import structure_of
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Env

CLIP = 10.0
"""How many standard deviations from its mean a metric is shown at most."""
_LARGEST = float(np.finfo(np.float32).max)
"""A larger metric counts as this one, as in any observation: its square is still a number."""

HINT = 0.1
"""How much of that a policy sees of the last trial's metrics. They say little about the next one, which has another
context: in full they would be mere noise beside the context."""


class MetricScale:
    """The mean and spread of each metric over what was measured so far, so that seconds and bytes weigh the same."""

    def __init__(self, count: int) -> None:
        self._seen = 0
        self._mean = np.zeros(count)
        self._square = np.zeros(count)

    def learn(self, metrics: np.ndarray) -> None:
        """Take in one measurement."""
        metrics = np.clip(metrics, -_LARGEST, _LARGEST)
        self._seen += 1
        away = metrics - self._mean
        self._mean += away / self._seen
        self._square += away * (metrics - self._mean)

    def scaled(self, metrics: np.ndarray) -> np.ndarray:
        """The metrics in standard deviations from their mean, clipped."""
        if self._seen < 2:
            return np.zeros_like(metrics)
        spread = np.sqrt(self._square / self._seen)
        away = np.clip(metrics, -_LARGEST, _LARGEST) - self._mean
        scaled = np.divide(away, spread, out=np.zeros_like(away), where=spread > 1e-12 * np.abs(self._mean))
        return np.clip(scaled, -CLIP, CLIP)


class FlatObservations:
    """What a lane sees as one float32 vector: scaled metrics, ``measured``, the context's leaves (discrete: one-hot).

    ``learn`` is told of every measurement; ``encode`` learns nothing.
    """

    def __init__(self, env: Env) -> None:
        self._metrics: Sequence[str] = env.experiment.agent_metrics
        self._structure = structure_of(env)
        self._scale = MetricScale(len(self._metrics))
        self._leaves = {} if self._structure is None else dict(self._structure.space.items())
        self.space = flat_space(len(self._metrics), self._leaves)

    def learn(self, metrics: Mapping[str, float]) -> None:
        """Take in one measurement."""
        self._scale.learn(self._slots(metrics))

    def encode(self, shown: Observation) -> np.ndarray:
        """The vector for what a lane sees."""
        slots = np.zeros(len(self._metrics) + 1)
        if shown.measured:
            slots[:-1] = HINT * self._scale.scaled(self._slots(shown.metrics))
            slots[-1] = 1.0
        context = {} if self._structure is None else self._structure.encode(shown)
        return flat(slots, self._leaves, context)

    def usual(self, context: Context) -> np.ndarray:
        """The vector for a lane whose last trial measured what is usual."""
        slots = np.zeros(len(self._metrics) + 1)
        slots[-1] = 1.0
        leaves = {} if self._structure is None else self._structure.encode(Observation(0, context))
        return flat(slots, self._leaves, leaves)

    def _slots(self, metrics: Mapping[str, float]) -> np.ndarray:
        return np.array([metrics[name] for name in self._metrics], dtype=np.float64)


def flat_space(metrics: int, leaves: Mapping[str, spaces.Space[Any]]) -> spaces.Box:
    """The space of ``flat``."""
    low, high = [-CLIP] * metrics + [0.0], [CLIP] * metrics + [1.0]
    for leaf in leaves.values():
        if isinstance(leaf, spaces.Discrete):
            low += [0.0] * int(leaf.n)
            high += [1.0] * int(leaf.n)
        elif isinstance(leaf, spaces.Box):
            low += leaf.low.tolist()
            high += leaf.high.tolist()
    return spaces.Box(np.array(low, dtype=np.float32), np.array(high, dtype=np.float32), dtype=np.float32)


def flat(slots: np.ndarray, leaves: Mapping[str, spaces.Space[Any]], context: Mapping[str, Any]) -> np.ndarray:
    """Metric slots and the context's leaves, one after another."""
    parts: list[np.ndarray] = [slots]
    for name, leaf in leaves.items():
        if isinstance(leaf, spaces.Discrete):
            hot = np.zeros(int(leaf.n))
            hot[int(context[name])] = 1.0
            parts.append(hot)
        else:
            parts.append(context[name])
    return np.concatenate(parts).astype(np.float32)
