"""The example ``examples/async/grpo.py``: it learns, and trains on nothing that is too old."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "async" / "grpo.py"

pytestmark = pytest.mark.slow


def test_grpo() -> None:
    """Far enough to be sure that it learns; it starts at 0.1."""
    command = [sys.executable, str(EXAMPLE), "--target", "0.6", "--seconds", "600"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()[-2:]
    for staleness, row in enumerate(rows):
        ages = ast.literal_eval(row[row.index("{") : row.index("}") + 1])
        assert (int(row.split()[0]), max(map(int, ages))) == (staleness, staleness)
