"""The benchmarks' families: what they measure is what they call the truth."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.families.catalog import DESIGN, HELD_OUT, family
from benchmarks.families.family import CONFIRMED, TRIMMED
from scipy.stats import trim_mean

SIMULATED = ("unlike-scales", "one-of-eight", "ten-percent", "outliers", "drift", "nothing-35", "kernel", "ranges")


@pytest.mark.parametrize("name", SIMULATED)
def test_truth(name: str) -> None:
    """The typical measurement during a confirmation is the truth, and no setting is better than the optimum."""
    simulated = family(name)
    draw = np.random.default_rng(0)
    for context, _ in simulated.contexts[:2]:
        measured = [simulated.measure(simulated.baseline, context, draw, CONFIRMED) for _ in range(4_000)]
        truth = simulated.truth(simulated.baseline, context)
        assert truth is not None
        assert trim_mean(measured, TRIMMED) / truth == pytest.approx(1.0, abs=0.03)
        assert simulated.is_null == (simulated.regret(simulated.baseline, context) == pytest.approx(0.0))


@pytest.mark.slow
def test_held_out() -> None:
    """The families that judge the design are no part of it, and load."""
    assert not set(DESIGN) & set(HELD_OUT)
    for name in HELD_OUT:
        held_out = family(name)
        assert all(held_out.truth(held_out.baseline, context) for context, _ in held_out.contexts)
