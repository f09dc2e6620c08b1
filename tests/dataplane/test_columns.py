"""Columns come back exactly or are refused (P8), in the layout that a trainer asks for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.dataplane import values
from tests.strategies import same

from tunegym.dataplane import DataPlaneClient, connect, cut, kv_first_write, read_columns, write_columns
from tunegym.dataplane.columns import Rows
from tunegym.dataplane.encoding import encode, restore
from tunegym.dataplane.errors import FieldError, StorageError


def rows_of(given_values: Any) -> Rows:
    column = encode(given_values)
    return Rows([(column, range(column.rows))])


# encoding ---------------------------------------------------------------------------------------------


HALF = torch.zeros(2, dtype=torch.bfloat16)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors(layout: torch.layout) -> None:
    rows = [torch.arange(3.0), torch.arange(5.0)]
    found = rows_of(torch.nested.nested_tensor(rows, layout=layout))
    assert found.lengths == [3, 5]
    assert same(found.to_list("torch"), rows)


@pytest.mark.parametrize(
    ("given_values", "dtype", "lengths"),
    [
        ([[1, 2], [], (3,)], "int64", [2, 0, 1]),
        ([[0.5], [1.5]], "float64", [1, 1]),
        ([[], [True]], "bool", [0, 1]),
        ([[np.float32(1)], []], "float32", [1, 0]),
        ([[1], np.arange(2)], "int64", [1, 2]),
        ([[], np.zeros(2, dtype=np.int32)], "int32", [0, 2]),
        ([[1], None], "object", None),
        ([[1], ["a"]], "object", None),
        ([[[1]], [[2]]], "object", None),
        ([[], [{}]], "object", None),
        (np.array([[1], [2, 3]], dtype=object), "object", None),
    ],
)
def test_lists_of_numbers_are_arrays(given_values: Any, dtype: str, lengths: list[int] | None) -> None:
    found = rows_of(given_values)
    assert (found.dtype, found.lengths) == (dtype, lengths)
    assert [list(row) if dtype != "object" else row for row in found] == [
        list(row) if dtype != "object" else row for row in given_values
    ]


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], "more than their first dimension"),
        ([np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int64)], "several dtypes: int32, int64"),
        ([np.zeros(2), np.zeros((2, 2))], "several ranks: 1, 2"),
        ([np.zeros(2), torch.zeros(2)], "rows mix arrays"),
        (np.array([1, 2], dtype=object), "have no dtype"),
        ([1, 2.0], "several types: float, int"),
        ([2**64, 1], "beyond 64 bits"),
        ([], "empty list"),
        ([[1, 2], [0.5]], "several types: float, int"),
        ([[1], [np.int64(2)]], "several types: int, int64"),
        ([[1], [2**64]], "beyond 64 bits"),
        ([[], []], "without any numbers"),
        ([[1], np.zeros(2, dtype=np.int32)], "several dtypes: int32, int64"),
        ([[1], torch.zeros(2)], "rows mix arrays"),
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
        (np.empty((2, 2), dtype=object), "2 dimensions"),
    ],
)
def test_refused_values(given_values: Any, message: str) -> None:
    with pytest.raises(FieldError, match=message) as error:
        encode(given_values)
    assert error.value.hint


def test_bfloat16_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(FieldError, match="no bfloat16") as error:
        rows_of([HALF]).dense()
    assert 'as_="torch"' in (error.value.hint or "")


def test_damage_is_found() -> None:
    column = encode([np.arange(3), np.arange(5)])
    memory = np.frombuffer(bytearray().join(column.pieces()), dtype=np.uint8)
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
from tunegym.dataplane import connect, read_columns
with connect("memory://torch") as plane:
    plane.register_partition("p", ["x"], ["train"])
    read_columns(plane, plane.put_samples("p", ["a", "b"], {"x": [np.arange(3), np.arange(2)]}), ["x"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# layouts ----------------------------------------------------------------------------------------------


@st.composite
def gathered(draw: st.DrawFn) -> tuple[Rows, list[np.ndarray]]:
    """Rows of several columns, at any places, and the same one by one."""
    more, dtype = draw(values.inner), draw(st.sampled_from(["int64", "float32", "bool", "datetime64[us]"]))
    parts: list[tuple[Any, list[int]]] = []
    wanted: list[np.ndarray] = []
    for sizes in draw(st.lists(values.lengths, min_size=1, max_size=3)):
        equal = draw(st.booleans())
        rows = [values.array(at, (sizes[0] if equal else size, *more), dtype) for at, size in enumerate(sizes)]
        places = draw(st.one_of(st.lists(st.integers(0, len(rows) - 1), max_size=6), st.just(list(range(len(rows))))))
        parts.append((encode(rows), places))
        wanted += [rows[place] for place in places]
    return Rows(parts), wanted


@given(gathered(), st.integers(0, 3), st.sampled_from([0, 1]))
def test_every_layout_has_every_row(one: tuple[Rows, list[np.ndarray]], more: int, value: int) -> None:
    rows, wanted = one
    assert same([row.copy() for row in rows], wanted)
    if not wanted:
        with pytest.raises(FieldError, match="no rows"):
            rows.padded()
        return
    width = max(map(len, wanted)) + more
    padded = rows.padded(width if more else None, value)
    assert padded.flags.writeable
    assert padded.shape == (len(wanted), width, *wanted[0].shape[1:])
    for got, row in zip(padded, wanted, strict=True):
        assert same(got[: len(row)].copy(), row)
        assert (got[len(row) :] == np.asarray(value).astype(row.dtype)).all()
    if width > more:
        with pytest.raises(FieldError, match="doesn't fit"):
            rows.padded(width - more - 1)
    jagged = rows.jagged()
    assert jagged.offsets.dtype == np.int64
    assert jagged.lengths.tolist() == rows.lengths == [len(row) for row in wanted]
    assert same([row.copy() for row in jagged], wanted)
    if len({row.shape for row in wanted}) == 1:
        assert same(rows.dense().copy(), np.stack(wanted))
    else:
        with pytest.raises(FieldError, match="padded"):
            rows.dense()


def test_as_torch() -> None:
    rows = rows_of([HALF + 1, torch.ones(3, dtype=torch.bfloat16)])
    found = rows.padded(4, -1.5, as_="torch")
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[1, 1, -1.5, -1.5], [1, 1, 1, -1.5]]
    assert rows.jagged(as_="torch").offsets().tolist() == [0, 2, 5]
    dense = Rows([(encode(np.eye(2)).copied(), [1])]).dense("torch")
    dense += 1  # writable, and not a view
    assert dense.tolist() == [[1, 2]]


@given(st.floats(width=32))
def test_any_bfloat16_can_pad(value: float) -> None:
    found = rows_of([HALF]).padded(3, value, as_="torch")[0, 2:]
    assert torch.equal(found.nan_to_num(7), torch.tensor([value]).to(torch.bfloat16).nan_to_num(7))


def test_a_pad_value_must_fit_the_dtype() -> None:
    for dtype, value in (("uint8", -1), ("int64", 0.5), ("int32", float("nan")), ("bool", 2), ("float16", 1e9)):
        with pytest.raises(FieldError, match=dtype):
            rows_of([np.zeros(2, dtype=dtype)]).padded(3, value)


def test_layouts_that_rows_do_not_have() -> None:
    numbers, objects = rows_of(np.arange(3)), rows_of([{}, None])
    for rows, message in ((numbers, "no length"), (objects, "objects have no")):
        for lay_out in (rows.padded, rows.jagged):
            with pytest.raises(FieldError, match=message):
                lay_out()
    with pytest.raises(FieldError, match="different kinds"):
        Rows([(encode(np.arange(3)), [0]), (encode([{}]), [0])])


def test_rows_that_differ_in_more_than_their_length_are_not_mixed() -> None:
    """They have one dtype and rank, as a field must, and the same number of items in total."""
    parts = [(encode(np.full((1, 64, width), width)), range(1)) for width in (3, 2, 4)]
    for lay_out in (Rows(parts).padded, Rows(parts).jagged, Rows(parts).dense):
        with pytest.raises(FieldError, match=r"more than their first dimension|rows of 3 shapes"):
            lay_out()
    jagged = [(encode([np.zeros((3, width)), np.zeros((4, width))]), range(2)) for width in (3, 2)]
    with pytest.raises(FieldError, match=r"\(2,\) and \(3,\)"):
        Rows(jagged).padded()
    assert [row.shape for row in Rows(parts).to_list()] == [(64, 3), (64, 2), (64, 4)]


# calls of a pipeline ----------------------------------------------------------------------------------


@pytest.fixture
def plane() -> Iterator[DataPlaneClient]:
    with connect("memory://columns") as client:
        client.register_partition("p", ["tokens", "reward", "log", "twice"], ["train"])
        yield client


def test_a_batch_there_and_back(plane: DataPlaneClient) -> None:
    rollout = {"reward": [0.5, 1.0], "tokens": [np.arange(2), np.arange(4)], "log": [{"a": 1}, {"b": (2,)}]}
    meta = kv_first_write(plane, "p", ["a", "b"], rollout)
    found = read_columns(plane, meta, list(rollout), pad_to={"tokens": 5}, pad_values={"tokens": 9})
    assert found["tokens"].tolist() == [[0, 1, 9, 9, 9], [0, 1, 2, 3, 9]]
    assert found["reward"].tolist() == [0.5, 1.0]
    assert found["log"].tolist() == rollout["log"]
    assert read_columns(plane, meta, ["tokens"], layout="jagged")["tokens"].lengths.tolist() == [2, 4]
    write_columns(plane, meta, {"twice": cut(found["tokens"] * 2, [2, 4])})
    assert read_columns(plane, meta, ["twice"], pad_to=4)["twice"].tolist() == [[0, 2, 0, 0], [0, 2, 4, 6]]
    for arguments, message in (
        ({"pad_to": 1}, "field 'tokens': a row of 4 doesn't fit into 1"),
        ({"pad_to": {"other": 1}}, "pad_to names 'other'"),
        ({"pad_values": {"other": 1}}, "pad_values names 'other'"),
        ({"layout": "jagged", "pad_to": 9}, "isn't padded"),
        ({"layout": "other"}, "layout is 'other'"),
        ({"as_": "other"}, "as_ is 'other'"),
    ):
        with pytest.raises(FieldError, match=message):
            read_columns(plane, meta, ["tokens"], **arguments)


@pytest.mark.parametrize("package", [np, torch])
def test_cut(package: Any) -> None:
    rows, mask = package.asarray([[1, 2, 0], [3, 0, 0]]), package.asarray([[1, 1, 0], [1, 0, 0]])
    assert [row.tolist() for row in cut(rows, mask.sum(1))] == [[1, 2], [3]]
    for lengths, message in (
        (np.array([1.0, 2.0]), "lengths is"),
        ([1], "1 lengths for 2"),
        ([1, 4], "3 items, not 4"),
    ):
        with pytest.raises(FieldError, match=message):
            cut(rows, lengths)  # type: ignore[arg-type]
