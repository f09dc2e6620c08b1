"""The families by name: those that the design may look at, and those that judge it when everything is fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from benchmarks.families import simulations
from benchmarks.families.family import Family
from benchmarks.families.tables import DATASETS, function_family, hpo_family

HELD_OUT_DATA = ("protein_structure", "slice_localization")
"""Data sets of hpolib that only ``HELD_OUT`` uses."""
HPOLIB_DATA = tuple(name for name in DATASETS["hpolib"] if name not in HELD_OUT_DATA)

DESIGN: Mapping[str, Callable[[], Family]] = {
    "hpobench": partial(hpo_family, "hpobench"),
    "hpobench-5": partial(hpo_family, "hpobench", noise=0.05),
    "hpobench-15": partial(hpo_family, "hpobench", noise=0.15),
    "hpolib": partial(hpo_family, "hpolib", *HPOLIB_DATA),
    "nas": partial(hpo_family, "nas"),
    "nas-5": partial(hpo_family, "nas", noise=0.05),
    "car-15": partial(hpo_family, "hpobench", "car", noise=0.15),
    "unlike-scales": simulations.unlike_scales,
    "one-of-eight": simulations.one_of_eight,
    "ten-percent": simulations.ten_percent,
    "outliers": simulations.outliers,
    "drift": simulations.drift,
    "nothing-5": partial(simulations.nothing_better, 0.05, 1),
    "nothing-15": partial(simulations.nothing_better, 0.15, 3),
    "nothing-35": partial(simulations.nothing_better, 0.35, 6),
    "kernel": simulations.kernel,
    "encoders": simulations.encoders,
    "ranges": simulations.ranges,
}
"""The design may look at these."""

HELD_OUT: Mapping[str, Callable[[], Family]] = {
    "stencil": simulations.stencil,
    "hpolib-held-out": partial(hpo_family, "hpolib", *HELD_OUT_DATA),
    "bbob-15": partial(function_family, 15, 0.05),
    "bbob-21": partial(function_family, 21, 0.15),
}
"""Nothing is chosen on these: they are looked at only when everything is fixed."""


@cache
def family(name: str) -> Family:
    """A family by its name."""
    return {**DESIGN, **HELD_OUT}[name]()
