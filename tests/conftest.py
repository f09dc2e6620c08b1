"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

MISSING = "missing component: "
"""How a skip begins when what the test needs is not installed. In CI such a skip is a failure."""


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """In CI, turn a skip for a missing component into a failure: everything can be installed there."""
    skipped = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
    if os.environ.get("CI") and skipped and str(call.excinfo.value).startswith(MISSING):
        reason = f"{call.excinfo.value} (in CI a missing component is a failure)"
        try:
            pytest.fail(reason, pytrace=False)
        except pytest.fail.Exception as failure:
            call.excinfo = pytest.ExceptionInfo.from_exception(failure)


@pytest.fixture(autouse=True)
def _own_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves results in the checkout."""
    monkeypatch.chdir(tmp_path)
    yield
