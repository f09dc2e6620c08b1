"""Tables with a known truth whose data sets are contexts of one search."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from benchmarks.search.problems import Action, Table, problem

FAMILIES = {
    "hpobench": ("car", "phoneme", "vehicle", "australian", "kc1", "segment", "blood_transfusion", "credit_g"),
    "hpolib": ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization"),
    "nas": ("cifar10", "cifar100", "imagenet"),
}
AGAINST = "contradicting"
NAMES = (*FAMILIES, AGAINST)


@dataclass(frozen=True)
class Contexts:
    """A family's tables by data set."""

    name: str
    tables: dict[str, Table]

    @property
    def knobs(self) -> dict[str, Any]:
        """The same in all of them."""
        return next(iter(self.tables.values())).knobs

    @property
    def goal(self) -> str:
        """Whether less or more is better, in all of them."""
        return next(iter(self.tables.values())).goal

    def seeded(self, seed: int) -> Contexts:
        """With the noise of a seed."""
        for table in self.tables.values():
            table.seed = seed
        return self


@cache
def contexts(name: str) -> Contexts:
    """A family, or HPOBench with every knob's values in another order in each context."""
    family = "hpobench" if name == AGAINST else name
    tables: dict[str, Any] = {dataset: problem(f"{family}/{dataset}", 0) for dataset in FAMILIES[family]}
    if name == AGAINST:
        tables = {dataset: _Moved.of(table) for dataset, table in tables.items()}
    return Contexts(name, tables)


@dataclass
class _Moved(Table):
    """A table whose knobs run backwards, or start elsewhere: what is good in one context is bad in the next."""

    @classmethod
    def of(cls, table: Table) -> _Moved:
        fields = {name: getattr(table, name) for name in ("goal", "knobs", "grid", "rows")}
        return cls(name=f"{table.name} moved", **fields)

    def _row(self, action: Action) -> Any:
        moved: dict[str, Any] = {}
        for name, candidates in self.grid.items():
            draw = random.Random(f"{self.name} {name}")
            size = len(candidates)
            at = size - 1 - action[name] if draw.random() < 0.5 else action[name]
            moved[name] = (at + draw.randrange(size) // 2) % size
        return super()._row(moved)


def one(table: Table, seed: int) -> Table:
    """A data set by itself, with the noise of a seed."""
    return replace(table, seed=seed)
