"""In CI a skip for a missing component is a failure; elsewhere it is a skip with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

CONFTEST = Path(__file__).with_name("conftest.py")
TEST = """
import pytest
def test_needs_something():
    pytest.skip("missing component: a Slurm")
def test_does_not_apply():
    pytest.skip("not for this kind")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "failed"), [("", 0), ("true", 1)])
def test_a_missing_component(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, failed: int) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TEST)
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(failed=failed, skipped=2 - failed)
    assert ("a missing component is a failure" in done.stdout.str()) == bool(failed)
