"""What holds for every storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.dataplane import values

from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.storage import BlockGoneError, Location, Storage
from tunegym.dataplane.storage.memory import MemoryStorage
from tunegym.dataplane.storage.mmap import MmapStorage
from tunegym.dataplane.storage.segments import SegmentUsage

Freeing = Callable[[list[Location]], None]


@pytest.fixture(params=["memory", "mmap"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    made = MemoryStorage() if request.param == "memory" else MmapStorage(tmp_path / "segments")
    yield made
    made.close()
    made.close()


@pytest.fixture
def free(storage: Storage, tmp_path: Path) -> Freeing:
    """As the ledger's host does."""
    if isinstance(storage, MemoryStorage):
        return storage.free

    def through_ledger(locations: list[Location]) -> None:
        usage = SegmentUsage(tmp_path / "segments")
        usage.recover(locations)
        usage.free(locations)
        storage.trim()

    return through_ledger


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(values.any_values, min_size=1, max_size=4))
def test_everything_comes_back(storage: Storage, written: list[Any]) -> None:
    columns = {f"field {at}": encode(one) for at, one in enumerate(written)}
    location, nbytes = storage.write("p", columns)
    storage.settle(location)
    assert nbytes >= sum(column.nbytes for column in columns.values())
    location = orjson.loads(orjson.dumps(location))
    for (name, column), given_values in zip(columns.items(), written, strict=True):
        places = list(range(column.rows))[::-1]
        rows = Rows([(storage.read(location)[name], places)])
        as_ = "torch" if isinstance(given_values[0], torch.Tensor) else "numpy"
        wanted = values.rows_of(given_values)
        assert values.same(rows.to_list(as_), wanted[::-1])


def test_a_producer_may_use_its_arrays_again(storage: Storage) -> None:
    array = np.arange(5)
    location, _ = storage.write("p", {"a": encode(array)})
    array += 1
    assert Rows([(storage.read(location)["a"], range(5))]).dense().tolist() == [0, 1, 2, 3, 4]


def test_nobody_can_write_to_what_was_read(storage: Storage) -> None:
    location, _ = storage.write("p", {"a": encode(np.arange(5)), "o": encode([{"x": np.arange(2)}])})
    view = Rows([(storage.read(location)["a"], range(5))]).dense()
    leaf = Rows([(storage.read(location)["o"], [0])]).to_list()[0]["x"]
    for array in (view, leaf):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_views_outlive_what_they_are_views_of(storage: Storage, free: Freeing) -> None:
    array = np.random.default_rng(1).random((64, 1024))
    location, _ = storage.write("p", {"a": encode(array)})
    storage.settle(location)
    view = Rows([(storage.read(location)["a"], range(64))]).dense()
    storage.close() if isinstance(storage, MmapStorage) else None
    free([location])
    free([location])
    assert (view == array).all()


def test_what_was_freed_is_gone(storage: Storage, free: Freeing, tmp_path: Path) -> None:
    location, _ = storage.write("p", {"a": encode(np.arange(5))})
    storage.settle(location)
    other = storage
    if isinstance(storage, MmapStorage):
        storage.close()
        other = MmapStorage(tmp_path / "segments")
    free([location])
    with pytest.raises(BlockGoneError):
        other.read(location)["a"]
    other.close()
