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

STATE = np.arange(5)


@pytest.mark.parametrize(
    ("name", "meddle"),
    [("random", random.random), ("numpy", np.random.random), ("torch", lambda: np.add(STATE, 1, out=STATE))],
)
def test_shared_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meddle: Callable[[], Any]
) -> None:
    class Meddling(LiveRandom):
        def run(self) -> int:
            meddle()
            return super().run()

    torch = SimpleNamespace(get_rng_state=STATE.copy)
    monkeypatch.setitem(sys.modules, "torch", torch)  # the real one takes seconds to import
    suite = type("Suite", (LiveAgentSuite,), {"agent": Meddling, "steps": 10})()
    with pytest.raises(AssertionError, match=name):
        suite.test_no_global_randomness(tmp_path)
