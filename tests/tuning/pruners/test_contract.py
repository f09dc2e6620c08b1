from __future__ import annotations

from typing import Any, ClassVar

from tunegym.testing.pruners import PrunerSuite
from tunegym.tuning.pruners.hyperband import HyperbandPruner
from tunegym.tuning.pruners.median import MedianPruner


class TestMedian(PrunerSuite):
    pruner = MedianPruner


class TestMedianWithSettings(PrunerSuite):
    pruner = MedianPruner
    settings: ClassVar[dict[str, Any]] = {"startup_trials": 2, "warmup_steps": 4}


class TestHyperband(PrunerSuite):
    pruner = HyperbandPruner


class TestHyperbandWithSettings(PrunerSuite):
    pruner = HyperbandPruner
    settings: ClassVar[dict[str, Any]] = {"min_steps": 2, "reduction": 2, "max_steps": 30}
