"""The example ``examples/llm_deployment``: its predictions, and a search that finds its known optimum."""

from __future__ import annotations

import pytest

pytest.importorskip("aiconfigurator", reason="made by `make test-systems` alone")

from benchmarks.deployment import AGENTS, NEAR, measured_share, run

pytestmark = pytest.mark.systems

OPTIMUM = {"p_tp": 1, "p_bs": 1, "p_workers": 6, "d_tp": 4, "d_bs": 128, "d_workers": 1}


def test_the_known_optimum() -> None:
    """The figure that the benchmark compares with."""
    assert measured_share(OPTIMUM) == pytest.approx(1.0, abs=1e-4)


def test_the_search_finds_it() -> None:
    """Within 1 % in 100 trials."""
    found = run(AGENTS["bayes"], seed=1, trials=100)
    assert found.recommended >= NEAR
