"""Journals to write into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import heads

from tunegym.core.errors import StoreError
from tunegym.tuning.model.head import Head
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.trials import JournalStore


def head(knobs: Any = ("x",), env_params: Any = (), **plain: Any) -> Head:
    """Knobs and env_params by name, or as specs."""
    if isinstance(knobs, tuple):
        knobs = {name: {"values": [1, 2, 3]} for name in knobs}
    if isinstance(env_params, tuple):
        env_params = {name: {"values": [1, 2, 3]} for name in env_params}
    return heads.head(**{"knobs": knobs, "env_params": env_params, "metrics": ["score"], **plain})


@pytest.fixture
def journal() -> Iterator[Callable[..., JournalStore]]:
    """Opens journals, and closes them after the test."""
    opened: list[JournalStore] = []

    def make(folder: Path, *, fingerprint: str = "f", **changes: Any) -> JournalStore:
        store = JournalStore(folder, head(**changes), SessionRecord(fingerprint))
        opened.append(store)
        return store

    yield make
    for store in opened:
        with contextlib.suppress(StoreError):
            store.close()
