from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tuning.stores.suite import FINGERPRINT, DurableStoreSuite

from tunegym.tuning.stores.trials import JournalStore


class TestJournalStore(DurableStoreSuite):
    @pytest.fixture(autouse=True)
    def _journals(self, journal: Callable[..., JournalStore]) -> None:
        self._journal = journal

    def make_store(self, folder: Path) -> JournalStore:
        return self._journal(folder, knobs=("x", "name"), env_params=("load",), fingerprint=FINGERPRINT)
