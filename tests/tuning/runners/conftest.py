"""Every test here has its token, and must leave no process that carries it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunegym.core.processes import marked
from tunegym.tuning.runners.local import LocalRunner

PATIENCE_S = 60.0


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


@pytest.fixture
def token() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    left = marked(name)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


@pytest.fixture
def runner(token: str) -> Iterator[LocalRunner]:
    local = LocalRunner(token, slots=2)
    yield local
    local.close()


@pytest.fixture
def wait() -> Callable[[Callable[[], object]], None]:
    return wait_until
