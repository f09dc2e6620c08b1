"""In CI a skip for a missing component is a failure; elsewhere it is a skip with its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
TEST = """
import pytest
def test_needs_something():
    pytest.skip("missing component: a Slurm")
def test_does_not_apply():
    pytest.skip("not for this kind")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "failed", "skipped"), [("", 0, 2), ("true", 1, 1)])
def test_a_missing_component(tmp_path: Path, ci: str, failed: int, skipped: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "CI": ci},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if failed else 0), done.stdout
    summary = done.stdout.strip().splitlines()[-1]
    assert f"{skipped} skipped" in summary
    assert (f"{failed} failed" in summary) == bool(failed)
    assert ("a missing component is a failure" in done.stdout) == bool(failed)
