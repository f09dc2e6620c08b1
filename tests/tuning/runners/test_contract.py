from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.testing.runners import RunnerSuite
from tunegym.tuning.runners.local import LocalRunner


class TestLocalRunner(RunnerSuite):
    @pytest.fixture(autouse=True)
    def _own_token(self, token: str) -> None:
        self._token = token

    def make_runner(self, tmp_path: Path) -> LocalRunner:
        return LocalRunner(self._token, slots=2)
