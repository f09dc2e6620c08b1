"""Columns come back exactly, or are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from tests.dataplane import values

from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode, restore
from tunegym.dataplane.errors import FieldError, StorageError


def read(column: Any, like: Any) -> list[Any]:
    found = Rows([(column, range(column.rows))])
    return found.to_list("torch" if isinstance(like, torch.Tensor) else "numpy")


@given(values.any_values)
def test_round_trip(given_values: Any) -> None:
    column = encode(given_values)
    description = orjson.loads(orjson.dumps(column.describe()))
    copied = column.copied()
    again = restore(description, np.concatenate([_filled(pieces[0]) for pieces in copied.buffers]))
    first = given_values[0]
    wanted = values.rows_of(given_values)
    for one in (column, copied, again):
        assert one.shape_key == column.shape_key
        assert one.lengths == column.lengths
        assert values.same(read(one, first), wanted)
    assert column.lengths is None or column.lengths == [len(row) for row in given_values]


def _filled(array: np.ndarray) -> np.ndarray:
    raw = np.frombuffer(array.tobytes(), dtype=np.uint8)
    return np.concatenate([raw, np.full(-len(raw) % 64, 7, dtype=np.uint8)])


@pytest.mark.parametrize(
    ("given_values", "kind", "key"),
    [
        (np.zeros(3, dtype=np.float32), "dense", ("float32", 0)),
        (np.zeros((3, 2), dtype=np.int64), "dense", ("int64", 1)),
        ([np.zeros(2), np.zeros(2)], "dense", ("float64", 1)),
        ([np.zeros(2), np.zeros(3)], "jagged", ("float64", 1)),
        ([np.zeros((2, 4)), np.zeros((3, 4))], "jagged", ("float64", 2)),
        ([1, 2], "dense", ("int64", 0)),
        ([True, False], "dense", ("bool", 0)),
        ([np.float32(1), np.float32(2)], "dense", ("float32", 0)),
        ([torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)], "jagged", ("bfloat16", 1)),
        (np.array([np.zeros(2), np.zeros(3)], dtype=object), "jagged", ("float64", 1)),
        (["a", None], "object", ("object", 0)),
        ([[1, 2], [3]], "object", ("object", 0)),
    ],
)
def test_kinds(given_values: Any, kind: str, key: tuple[str, int]) -> None:
    column = encode(given_values)
    assert (column.kind, column.shape_key) == (kind, key)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(3.0), torch.arange(5.0)], layout=layout)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors(layout: torch.layout) -> None:
    column = encode(nested(layout))
    assert column.kind == "jagged"
    assert column.lengths == [3, 5]
    assert values.same(read(column, torch.zeros(1)), [torch.arange(3.0), torch.arange(5.0)])


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], "more than their first dimension"),
        ([np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int64)], "several dtypes: int32, int64"),
        ([np.zeros(2), np.zeros((2, 2))], "several ranks: 1, 2"),
        ([np.zeros(2), torch.zeros(2)], "rows mix arrays"),
        ([np.zeros(2), None], "rows mix arrays"),
        (np.array([1, 2], dtype=object), "have no dtype"),
        ([1, 2.0], "several types: float, int"),
        ([2**64, 1], "beyond 64 bits"),
        ([], "empty list"),
        (np.float32(1), "can't be a column"),
        (np.array(1), "has no rows"),
        (torch.tensor(1), "has no rows"),
        (np.array(["a", "b"]), "texts"),
        (np.zeros(2, dtype=">c16"), "dtype >c16"),
        (np.zeros(2, dtype=[("a", int)]), "can't be a column"),
        (np.ma.masked_array([1, 2], [0, 1]), "masked"),
        ([np.ma.masked_array([1, 2], [0, 1])], "masked"),
        (torch.eye(2).to_sparse(), "sparse"),
        ([{"a": {1, 2}}], "row 0: a builtins.set"),
        ([{}, {"a": object()}], "row 1: a builtins.object"),
        (["\ud800"], "row 0: .*surrogates"),
        ({"a": 1}, "a dict can't be a column"),
        (np.empty((2, 2), dtype=object), "2 dimensions"),
    ],
)
def test_refused(given_values: Any, message: str) -> None:
    with pytest.raises(FieldError, match=message) as error:
        encode(given_values)
    assert error.value.hint


def test_exact_objects() -> None:
    row = {"big": 2**200, "nan": float("nan"), "minus": -0.0, "pair": (1, [2]), "$": {"$": b"\0"}, 3: True}
    row["array"] = np.array([{"a": (1,)}, None], dtype=object)
    assert values.same(read(encode([row]), None)[0]["pair"], row["pair"])
    found = read(encode([row]), None)[0]
    assert list(found) == list(row)
    assert found["big"] == 2**200
    assert np.isnan(found["nan"])
    assert found["$"] == {"$": b"\0"}
    assert found["array"].tolist() == [{"a": (1,)}, None]


def test_bfloat16_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    column = encode(torch.ones(2, 2, dtype=torch.bfloat16))
    with pytest.raises(FieldError, match="no bfloat16") as error:
        Rows([(column, [0])]).dense()
    assert 'as_="torch"' in (error.value.hint or "")


def test_damage_is_found() -> None:
    column = encode([np.arange(3), np.arange(5)]).copied()
    memory = np.concatenate([_filled(pieces[0]) for pieces in column.buffers])
    with pytest.raises(StorageError, match="longer than"):
        restore(column.describe(), memory[:64])
    memory[64:72] = 255
    with pytest.raises(StorageError, match="inconsistent"):
        restore(column.describe(), memory)
    with pytest.raises(StorageError, match="kind"):
        restore({**column.describe(), "kind": "other"}, memory)


def test_torch_is_not_imported() -> None:
    code = """
import sys
import numpy as np
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.storage.mmap import MmapStorage
Rows([(encode([np.arange(3), np.arange(2)]), range(2))]).padded()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
