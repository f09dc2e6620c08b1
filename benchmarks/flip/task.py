"""The flip task: 3 contexts, 3 interacting knobs, 60 settings, and no setting that is good everywhere.

Each context has a best setting of its own. What ``b`` should be depends on ``a``, and what ``c`` should be on ``b``, so
no knob can be tuned by itself; a knob that is wrong takes the same share of whatever the others achieve. Contexts also
differ by an order of magnitude in how much there is to have at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.values import Action, Context, Scalar

NOISE = 0.05
"""The standard deviation of a measurement, as a share of the true value."""

KNOBS: dict[str, Choice] = {
    "a": Choice(("poll", "event", "batch")),
    "b": Choice((1, 2, 4, 8)),
    "c": Choice((16, 32, 64, 128, 256)),
}
DOMAIN = Choice(("idle", "bursty", "lossy"))
"""Of the env_param ``context``."""
CONTEXTS: tuple[dict[str, Scalar], ...] = tuple({"context": value} for value in DOMAIN.values)

_PEAK = {"idle": 1000.0, "bursty": 400.0, "lossy": 90.0}
_BEST_A = {"idle": 0, "bursty": 1, "lossy": 2}
_BEST_B = {"idle": (3, 1, 2), "bursty": (2, 0, 3), "lossy": (0, 2, 1)}
"""The place of the best ``b``, for each ``a``."""
_BEST_C = {"idle": (0, 1, 3, 4), "bursty": (2, 3, 1, 0), "lossy": (4, 0, 2, 3)}
"""The place of the best ``c``, for each ``b``."""
_WRONG_A = 0.55
_WRONG_B = (1.0, 0.65, 0.5, 0.4)
_WRONG_C = (1.0, 0.75, 0.55, 0.45, 0.4)
"""What is left of the throughput, by how many places a knob is away from its best."""


def throughput(context: str, a: str, b: int, c: int, noise: float = 0.0) -> float:
    """What is measured when the noise is so many standard deviations; 0 gives the true value."""
    place_a, place_b, place_c = (KNOBS[name].values.index(value) for name, value in (("a", a), ("b", b), ("c", c)))
    share = 1.0 if place_a == _BEST_A[context] else _WRONG_A
    share *= _WRONG_B[abs(place_b - _BEST_B[context][place_a])]
    share *= _WRONG_C[abs(place_c - _BEST_C[context][place_b])]
    return _PEAK[context] * share * (1.0 + NOISE * noise)


# what a benchmark judges by -------------------------------------------------------------------------------


def true_value(context: Context, action: Action) -> float:
    """What a setting gives without noise; ``context`` is one of ``CONTEXTS``."""
    named: dict[str, Any] = {**context, **action}
    return throughput(**named)


@cache
def actions() -> tuple[dict[str, Scalar], ...]:
    """All 60 settings."""
    values = itertools.product(*(knob.values for knob in KNOBS.values()))
    return tuple(dict(zip(KNOBS, one, strict=True)) for one in values)


def best_action(context: Context) -> dict[str, Scalar]:
    """The setting that is truly best there."""
    return max(actions(), key=lambda action: true_value(context, action))


def optimum(context: Context) -> float:
    """What it gives."""
    return true_value(context, best_action(context))


def score(choose: Callable[[Context], Action]) -> float:
    """What a policy's choices give, as a share of the optimum, on average over the contexts: 1 is perfect."""
    return fmean(true_value(context, choose(context)) / optimum(context) for context in CONTEXTS)


def best_single_share() -> float:
    """The score of the best policy that doesn't look at the context."""
    return max(score(lambda _, action=action: action) for action in actions())


# what a scenario measures ---------------------------------------------------------------------------------


class _Noise:
    """Draws of this process; owned, and of no use to anybody else."""

    generator = np.random.default_rng(0)


def seed(number: int) -> None:
    """Start the noise anew. Repeats of one setting differ, so a call can't say by itself which draw is its."""
    _Noise.generator = np.random.default_rng(number)


def measure(a: str, b: int, c: int, context: str) -> Mapping[str, float]:
    """One noisy measurement: ``callable = "benchmarks.flip.task:measure"``, in process and with ``cache = "off"``."""
    return {"throughput": throughput(context, a, b, c, float(_Noise.generator.standard_normal()))}
