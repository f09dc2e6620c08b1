"""What goes into reading an experiment, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunegym.config.catalog import Catalog
from tunegym.tuning.model.scenario import Experiment


@dataclass(frozen=True)
class Surroundings:
    """What an experiment takes from its scenario."""

    catalog: Catalog
    scenario_dir: Path
    seed: int


@dataclass(frozen=True)
class Reading:
    """What came of one experiment.

    Attributes:
        driven: whether an agent drives it; None when its problems leave that open.
        experiment: None if it has a problem.
        live: whether a server answers it.
    """

    name: str
    driven: bool | None
    experiment: Experiment | None
    warnings: tuple[str, ...] = ()
    live: bool = False
