"""The environment's name in Gymnasium."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBED = "import importlib.util, tunegym; importlib.util.find_spec('gymnasium'); import gymnasium"


@pytest.mark.parametrize("imports", ["import tunegym, gymnasium", "import gymnasium, tunegym", PROBED])
def test_known_in_whatever_order_both_are_imported(imports: str) -> None:
    script = f"{imports}; print('tunegym/Tune-v0' in gymnasium.registry)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_gymnasium_is_not_loaded_for_it() -> None:
    script = "import sys, tunegym; print('gymnasium' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
