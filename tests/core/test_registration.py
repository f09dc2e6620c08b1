"""The environment's name in Gymnasium."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "imports", ["gymnasium, tunegym", "tunegym.envs, gymnasium", "tunegym, tunegym.envs, gymnasium"]
)
def test_the_environment_is_registered(imports: str) -> None:
    assert run(f"import {imports}; print('tunegym/Tune-v0' in gymnasium.registry)").stdout == "True\n"


def test_it_is_found_by_its_module_and_loaded_late() -> None:
    made = "gymnasium.make('tunegym.envs:tunegym/Tune-v0', scenario='not_there.toml')"
    done = run(f"import sys, tunegym; print('gymnasium' in sys.modules); import gymnasium; {made}")
    assert done.stdout == "False\n"
    assert "not_there.toml" in "".join(done.stderr.splitlines()[-2:])
