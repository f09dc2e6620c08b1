"""Steps on record as an agent learns from them; whole journals are in ``test_engine.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.envs.live.replay import _Elements


def test_the_largest_integers_come_back_as_they_were(tmp_path: Path) -> None:
    most = 2**64 - 1
    elements = _Elements(tmp_path, "observation", spaces.Box(0, most, (2,), np.uint64))
    found = elements.of([[[1, most], [most - 1, 2**63 + 1]]], 0, 2)
    assert [one.tolist() for one in found] == [[1, most], [most - 1, 2**63 + 1]]
    assert found[0].dtype == np.uint64


def test_what_is_no_element_is_said(tmp_path: Path) -> None:
    elements = _Elements(tmp_path, "observation", spaces.Box(0, 255, (2,), np.uint8))
    with pytest.raises(StoreError, match="the journal is damaged"):
        elements.of([[[1, 256], [0, 1]]], 0, 2)
