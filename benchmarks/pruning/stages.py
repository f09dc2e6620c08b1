"""A function in stages, like the training of a model: each costs the same, and shows a noisy value."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

STAGES = 27
NOISE = 0.01
"""Standard deviation of what a stage shows; the values themselves are between 0 and 1."""


PACE = 4.0
"""After so many stages a setting shows 63 % of what it will show in the end."""


class Course:
    """What is searched for one seed, and how many stages were run of it.

    Args:
        seed: where the best setting is, and the noise.
        uneven: whether some settings start two or three times slower than others, and end no worse for it. Else
            an early rank is, but for the noise, the final one.
    """

    def __init__(self, seed: int, uneven: bool) -> None:
        self.stages = 0
        self._seed = seed
        self._uneven = uneven
        draw = random.Random(f"course {seed}")
        self._best = {name: draw.random() for name in ("width", "rate", "momentum")}

    def value(self, knobs: dict[str, float], stage: int) -> float:
        """What a setting shows after a stage: the same whenever it is asked for."""
        quality = math.exp(-sum((knobs[name] - best) ** 2 for name, best in self._best.items()))
        pace = PACE * (0.5 + knobs["momentum"]) if self._uneven else PACE
        noise = random.Random(f"{self._seed} {sorted(knobs.items())} {stage}").gauss(0, NOISE)
        return quality * (1 - math.exp(-stage / pace)) + noise


_courses: list[Course] = []


def begin(course: Course) -> None:
    """What is measured from now on: the callable of a scenario only gets knobs."""
    _courses[:] = [course]


def measure(width: float, rate: float, momentum: float, report: Callable[[int, float], None]) -> dict[str, float]:
    """The callable of the scenario."""
    course = _courses[0]
    knobs = {"width": width, "rate": rate, "momentum": momentum}
    value = 0.0
    for stage in range(1, STAGES + 1):
        course.stages += 1
        value = course.value(knobs, stage)
        report(stage, value)
    return {"value": value}
