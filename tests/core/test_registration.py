"""The environment's name in Gymnasium."""

from __future__ import annotations

import subprocess
import sys

import pytest


def printed(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "imports",
    ["import gymnasium, tunegym", "import tunegym.envs, gymnasium", "import tunegym, tunegym.envs, gymnasium"],
)
def test_the_environment_is_registered(imports: str) -> None:
    assert printed(f"{imports}; print('tunegym/Tune-v0' in gymnasium.registry)") == "True"


def test_it_is_found_by_its_module() -> None:
    script = "import tunegym, gymnasium; gymnasium.make('tunegym.envs:tunegym/Tune-v0', scenario='not_there.toml')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "not_there.toml" in done.stderr.splitlines()[-2] + done.stderr.splitlines()[-1]


def test_gymnasium_is_not_loaded_for_it() -> None:
    assert printed("import sys, tunegym; print('gymnasium' in sys.modules)") == "False"
