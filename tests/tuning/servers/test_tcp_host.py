from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tunegym.testing.hosts import IsolatedHostSuite
from tunegym.tuning.servers.remote import TcpHost


@pytest.mark.slow
class TestTcpHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _serving(self, serve: Callable[..., Any], secret: str) -> None:
        self._serve = serve
        self._secret = secret
        self._addresses: dict[str, tuple[str, int]] = {}

    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> TcpHost:
        if reference not in self._addresses:
            self._addresses[reference] = self._serve(reference=reference).address
        address = self._addresses[reference]
        return TcpHost(address, self._secret, reference, arguments, step_timeout_s=step_timeout_s)
