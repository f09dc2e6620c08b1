"""Tables with noise whose truth is known: their own, or noise added to the mean of each row."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import fmean
from typing import Literal

from benchmarks.contexts.tables import contexts
from benchmarks.search.problems import Action, Knobs

HPOBENCH = ("australian", "blood_transfusion", "car", "credit_g", "kc1", "phoneme", "segment", "vehicle")
ADDED = tuple(f"hpobench/{name}" for name in HPOBENCH)
OWN = (
    *ADDED,
    *(f"hpolib/{name}" for name in ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure")),
    "hpolib/slice_localization",
    *(f"nas/{name}" for name in ("cifar10", "cifar100", "imagenet")),
)
NOISES = ("own", "none", "5 %", "15 %", "heavy")
"""The table's own; lognormal; ``heavy`` is Student's t with 3 degrees of freedom at 10 %."""


@dataclass
class NoisyTable:
    """A table, and which noise a measurement has; ``who`` measures sees other draws."""

    name: str
    noise: str
    seed: int
    who: str

    def __post_init__(self) -> None:
        family, data = self.name.split("/")
        self.table = contexts(family).tables[data]
        self.goal: Literal["min", "max"] = self.table.goal
        self.knobs: Knobs = self.table.knobs

    def measure(self, action: Action, call: int) -> float:
        draw = random.Random(f"{self.name} {self.noise} {self.seed} {self.who} {call}")
        row = self.table._row(action)
        if self.noise == "own":
            return float(draw.choice(row))
        mean = fmean(row)
        if self.noise == "heavy":
            return mean * (1 + 0.1 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3))
        relative = {"none": 0.0, "5 %": 0.05, "15 %": 0.15}[self.noise]
        sigma = math.sqrt(math.log1p(relative**2))
        return mean * math.exp(draw.gauss(0, sigma) - sigma**2 / 2) if relative else mean

    def truth(self, action: Action) -> float:
        """The mean of what ``measure`` shows."""
        return fmean(self.table._row(action))

    def regret(self, action: Action) -> float:
        """How much worse it truly is than the optimum, as a share of that."""
        best = _optimum(self.name)
        return abs(self.truth(action) - best) / abs(best)

    def worse_by(self, share: float) -> Action:
        """A setting that is truly worse than the optimum by about this share."""
        return _nearest(self.name, share)


@cache
def _optimum(name: str) -> float:
    table = NoisyTable(name, "none", 0, "").table
    return (min if table.goal == "min" else max)(fmean(row) for row in table.rows.values())


@cache
def _nearest(name: str, share: float) -> Action:
    found = NoisyTable(name, "none", 0, "")
    grid = {
        knob: spec if isinstance(spec, list) else range(spec["low"], spec["high"] + 1)
        for knob, spec in found.knobs.items()
    }
    actions = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return min(actions, key=lambda action: abs(found.regret(action) - share))
