"""The contract of a storage (P8, P10), on every storage."""

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

Free = Callable[[Location], Storage]


@pytest.fixture(params=["memory", "mmap"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    made = MemoryStorage() if request.param == "memory" else MmapStorage(tmp_path / "segments")
    yield made
    made.close()
    made.close()


@pytest.fixture
def free(storage: Storage, tmp_path: Path) -> Iterator[Free]:
    """Frees a location as the ledger's host does; a storage of another client."""
    other = storage if isinstance(storage, MemoryStorage) else MmapStorage(tmp_path / "segments")

    def freed(location: Location) -> Storage:
        storage.settle(location)
        storage.close()
        if isinstance(storage, MemoryStorage):
            storage.free([location, location])
        else:
            usage = SegmentUsage(tmp_path / "segments")
            usage.recover([location])
            usage.free([location, location])
        storage.trim()
        return other

    yield freed
    other.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(values.any_values, min_size=1, max_size=4))
def test_columns_come_back_exactly(storage: Storage, written: list[Any]) -> None:
    columns = {f"field {at}": encode(one) for at, one in enumerate(written)}
    location, nbytes = storage.write("p", columns)
    storage.settle(location)
    assert nbytes >= sum(column.nbytes for column in columns.values())
    read = storage.read(orjson.loads(orjson.dumps(location)))
    for (name, column), given_values in zip(columns.items(), written, strict=True):
        rows = Rows([(read[name], list(range(column.rows))[::-1])])
        as_ = "torch" if isinstance(given_values[0], torch.Tensor) else "numpy"
        assert values.same(rows.to_list(as_), values.rows_of(given_values)[::-1])


def test_written_bytes_never_change(storage: Storage) -> None:
    """A producer may use its arrays again, and a reader can't write to its views."""
    array = np.arange(5)
    location, _ = storage.write("p", {"a": encode(array), "o": encode([{"x": np.arange(2)}] * 5)})
    array += 1
    read = {name: Rows([(column, range(5))]) for name, column in storage.read(location).items()}
    assert read["a"].dense().tolist() == [0, 1, 2, 3, 4]
    for view in (read["a"].dense(), read["o"].to_list()[0]["x"]):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_freed_bytes_are_gone_but_views_stay(storage: Storage, free: Free) -> None:
    array = np.random.default_rng(1).random((64, 1024))
    location, _ = storage.write("p", {"a": encode(array)})
    view = Rows([(storage.read(location)["a"], range(64))]).dense()
    other = free(location)
    with pytest.raises(BlockGoneError):
        other.read(location)
    assert (view == array).all()
