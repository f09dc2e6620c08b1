from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunegym.tuning.runners.local import LocalRunner


@pytest.fixture
def runner(token: str) -> Iterator[LocalRunner]:
    local = LocalRunner(token, slots=2)
    yield local
    local.close()
