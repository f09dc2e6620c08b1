"""The suite for live agents finds what it is there to find."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunegym.testing.agents import LiveAgentSuite
from tunegym.tuning.agents.search import LiveRandom


def suite(meddle: Callable[[], Any]) -> LiveAgentSuite:
    class Meddling(LiveRandom):
        def run(self) -> int:
            meddle()
            return super().run()

    class Suite(LiveAgentSuite):
        agent = Meddling
        steps = 10

    return Suite()


def test_shared_generators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = np.arange(5)
    torch = SimpleNamespace(get_rng_state=lambda: state)
    monkeypatch.setitem(sys.modules, "torch", torch)  # the real one takes seconds to import

    def drawn_from_torch() -> None:
        state[0] += 1

    meddling: dict[str, Callable[[], Any]] = {
        "random": random.random,
        "numpy": np.random.random,
        "torch": drawn_from_torch,
    }
    suite(lambda: None).test_no_global_randomness(tmp_path / "good")
    for name, meddle in meddling.items():
        with pytest.raises(AssertionError, match=name):
            suite(meddle).test_no_global_randomness(tmp_path / name)
