"""Descriptors that make sense, and those that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tunegym.tuning.model.context import ObsLeafDescriptor


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "box"},
        {"kind": "box", "dim": 7},
        {"kind": "box", "dim": 2, "low": 0, "high": 1},
        {"kind": "box", "low": -1.5},
        {"kind": "discrete", "n": 1},
        {"kind": "discrete", "dim": 1, "n": 10},
    ],
)
def test_good(settings: dict[str, Any]) -> None:
    leaf = ObsLeafDescriptor(**settings)
    assert leaf == ObsLeafDescriptor(**settings)
    assert hash(leaf) == hash(ObsLeafDescriptor(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "Box"}, 'kind must be "box" or "discrete", not \'Box\''),
        ({"kind": None}, "kind must be"),
        ({"kind": "box", "dim": 0}, "dim must be an integer of at least 1, not 0"),
        ({"kind": "box", "dim": -1}, "dim must be"),
        ({"kind": "box", "dim": 1.0}, "dim must be"),
        ({"kind": "box", "dim": True}, "dim must be"),
        ({"kind": "box", "dim": None}, "dim must be"),
        ({"kind": "box", "n": 3}, "a box has a dim and no n, here n=3"),
        ({"kind": "box", "low": 1.0, "high": 1.0}, "low must be below high"),
        ({"kind": "box", "low": 2.0, "high": 1.0}, "low must be below high"),
        ({"kind": "box", "low": math.nan}, "low must be below high"),
        ({"kind": "box", "high": math.nan}, "low must be below high"),
        ({"kind": "box", "low": "0", "high": 1.0}, "low must be below high"),
        ({"kind": "box", "low": np.zeros(2), "high": 1.0}, "low must be below high"),
        ({"kind": "discrete"}, "a discrete leaf needs n, an integer of at least 1, not None"),
        ({"kind": "discrete", "n": 0}, "a discrete leaf needs n"),
        ({"kind": "discrete", "n": 2.0}, "a discrete leaf needs n"),
        ({"kind": "discrete", "n": True}, "a discrete leaf needs n"),
        ({"kind": "discrete", "n": 2, "dim": 2}, "neither dim nor bounds"),
        ({"kind": "discrete", "n": 2, "low": 0.0}, "neither dim nor bounds"),
        ({"kind": "discrete", "n": 2, "high": 1.0}, "neither dim nor bounds"),
    ],
)
def test_bad(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ObsLeafDescriptor(**settings)
