from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunegym.testing.hosts import IsolatedHostSuite
from tunegym.tuning.servers.process import ProcessHost


@pytest.mark.slow
class TestProcessHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _own_token(self, token: str) -> None:
        self._token = token

    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> ProcessHost:
        return ProcessHost(reference, arguments, folder=folder, token=self._token, step_timeout_s=step_timeout_s)
