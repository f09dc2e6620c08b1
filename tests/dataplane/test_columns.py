"""What a trainer gets of rows: padded, jagged, dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.dataplane import values

from tunegym.dataplane.columns import Rows, cut, kv_first_write, read_columns, write_columns
from tunegym.dataplane.encoding import encode
from tunegym.dataplane.errors import FieldError
from tunegym.dataplane.model import BatchMeta


def laid(rows: list[Any]) -> Rows:
    return Rows([(encode(rows), range(len(rows)))])


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
def test_padded(one: tuple[Rows, list[np.ndarray]], more: int, value: int) -> None:
    rows, wanted = one
    if not wanted:
        with pytest.raises(FieldError, match="no rows"):
            rows.padded()
        return
    width = max(map(len, wanted)) + more
    found = rows.padded(width if more else None, value)
    assert found.flags.writeable
    assert found.shape == (len(wanted), width, *wanted[0].shape[1:])
    for got, row in zip(found, wanted, strict=True):
        assert values.same(got[: len(row)].copy(), row)
        assert (got[len(row) :] == np.asarray(value).astype(row.dtype)).all()
    if width > more:
        with pytest.raises(FieldError, match="doesn't fit"):
            rows.padded(width - more - 1)


@given(gathered())
def test_jagged_and_lists(one: tuple[Rows, list[np.ndarray]]) -> None:
    rows, wanted = one
    assert len(rows) == len(wanted)
    assert values.same([row.copy() for row in rows], wanted)
    if wanted:
        found = rows.jagged()
        assert found.offsets.dtype == np.int64
        assert found.lengths.tolist() == rows.lengths == [len(row) for row in wanted]
        assert values.same([row.copy() for row in found], wanted)
        shapes = {row.shape for row in wanted}
        if len(shapes) == 1:
            assert values.same(rows.dense().copy(), np.stack(wanted))
        else:
            with pytest.raises(FieldError, match="padded"):
                rows.dense()


def test_as_torch() -> None:
    rows = [torch.ones(2, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)]
    found = laid(rows).padded(4, -1.5, as_="torch")
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[1, 1, -1.5, -1.5], [1, 1, 1, -1.5]]
    assert laid(rows).jagged(as_="torch").offsets().tolist() == [0, 2, 5]
    dense = Rows([(encode(np.eye(2)).copied(), [1])]).dense("torch")
    dense += 1  # its own, and not a view that can't be written to
    assert dense.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "value", [0.1, -3.7, 1e38, -1e-40, float("inf"), float("-inf"), float("nan"), 1.00390625, 3e-3]
)
def test_any_bfloat16_can_pad(value: float) -> None:
    row = torch.zeros(1, dtype=torch.bfloat16)
    found = laid([row]).padded(2, value, as_="torch")[0, 1:]
    assert torch.equal(found.nan_to_num(7), torch.tensor([value]).to(torch.bfloat16).nan_to_num(7))


@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", -1), ("int64", 0.5), ("int32", float("nan")), ("bool", 2), ("float16", 1e9)]
)
def test_a_value_that_the_dtype_lacks(dtype: str, value: float) -> None:
    with pytest.raises(FieldError, match=dtype):
        laid([np.zeros(2, dtype=dtype)]).padded(3, value)


def test_views_cannot_be_written_to() -> None:
    rows = Rows([(encode(np.arange(12.0).reshape(3, 4)).copied(), [1, 2])])
    view = rows.dense()
    assert not view.flags.owndata
    jagged = Rows([(encode([np.arange(3), np.arange(5)]).copied(), [0, 1])]).jagged()
    for one in (view, *rows.to_list(), jagged.values):
        with pytest.raises(ValueError, match="read-only"):
            one[...] = 0


def test_what_has_no_such_layout() -> None:
    numbers, objects = Rows([(encode(np.arange(3)), [0])]), Rows([(encode([{}, None]), [1, 0])])
    for rows, message in ((numbers, "no length"), (objects, "objects have no")):
        with pytest.raises(FieldError, match=message):
            rows.padded()
        with pytest.raises(FieldError, match=message):
            rows.jagged()
    assert objects.objects().tolist() == [None, {}]
    with pytest.raises(FieldError, match="different kinds"):
        Rows([(encode(np.arange(3)), [0]), (encode([{}]), [0])])


class Plane:
    """What is put is there."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}

    def put_samples(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Mapping[str, Any],
        *rest: Any,
        lengths: Sequence[int] | None = None,
        **more: Any,
    ) -> BatchMeta:
        self.columns.update({name: encode(one) for name, one in fields.items()})
        known = None if lengths is None else tuple(lengths)
        return BatchMeta(partition_id, tuple(sample_ids), tuple(fields), sequence_lengths=known)

    def get_samples(self, meta: BatchMeta, select_fields: Sequence[str]) -> dict[str, Rows]:
        return {name: Rows([(self.columns[name], range(meta.size))]) for name in select_fields}


@pytest.mark.parametrize("length", [3, 64])
def test_rows_that_differ_in_more_than_their_length_are_never_mixed(length: int) -> None:
    """They are of one dtype and rank, as a field must be; taken together they would be just as long."""
    parts = [(encode(np.full((1, length, width), width)), range(1)) for width in (3, 2, 4)]
    for lay_out in (Rows(parts).padded, Rows(parts).jagged, Rows(parts).dense):
        with pytest.raises(FieldError, match=r"more than their first dimension|rows of 3 shapes"):
            lay_out()
    jagged = (encode([np.zeros((length, 3)), np.zeros((length + 1, 3))]), range(2))
    other = (encode([np.zeros((length, 2)), np.zeros((length + 1, 2))]), range(2))
    with pytest.raises(FieldError, match=r"\(2,\) and \(3,\)"):
        Rows([jagged, other]).padded()
    assert [row.shape for row in Rows(parts).to_list()] == [(length, 3), (length, 2), (length, 4)]


def test_a_batch_there_and_back() -> None:
    plane = Plane()
    rollout = {"reward": [0.5, 1.0], "tokens": [np.arange(2), np.arange(4)], "log": [{"a": 1}, {"b": (2,)}]}
    meta = kv_first_write(plane, "p", ["a", "b"], rollout)
    found = read_columns(plane, meta, list(rollout), pad_to={"tokens": 5}, pad_values={"tokens": 9})
    assert found["tokens"].tolist() == [[0, 1, 9, 9, 9], [0, 1, 2, 3, 9]]
    assert found["reward"].tolist() == [0.5, 1.0]
    assert found["log"].tolist() == rollout["log"]
    assert read_columns(plane, meta, ["tokens"], layout="jagged")["tokens"].lengths.tolist() == [2, 4]
    write_columns(plane, meta, {"twice": cut(found["tokens"] * 2, [2, 4])})
    assert read_columns(plane, meta, ["twice"], pad_to=4)["twice"].tolist() == [[0, 2, 0, 0], [0, 2, 4, 6]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pad_to": 1}, "field 'tokens': a row of 4 doesn't fit into 1"),
        ({"pad_to": {"other": 1}}, "pad_to names 'other'"),
        ({"pad_values": {"other": 1}}, "pad_values names 'other'"),
        ({"layout": "jagged", "pad_to": 9}, "isn't padded"),
        ({"layout": "other"}, "layout is 'other'"),
        ({"as_": "other"}, "as_ is 'other'"),
    ],
)
def test_settings_that_do_nothing_are_refused(arguments: dict[str, Any], message: str) -> None:
    plane = Plane()
    meta = kv_first_write(plane, "p", ["a", "b"], {"tokens": [np.arange(2), np.arange(4)]})
    with pytest.raises(FieldError, match=message):
        read_columns(plane, meta, ["tokens"], **arguments)


def test_lengths_that_disagree() -> None:
    fields = {"prompt": [np.arange(2), np.arange(3)], "answer": [np.arange(4), np.arange(1)]}
    with pytest.raises(FieldError, match="different lengths: prompt, answer"):
        kv_first_write(Plane(), "p", ["a", "b"], fields)
    meta = kv_first_write(Plane(), "p", ["a", "b"], fields, lengths_of="answer")
    assert (meta.fields, meta.sequence_lengths) == (("prompt", "answer"), (4, 1))
    with pytest.raises(FieldError, match="no lengths"):
        kv_first_write(Plane(), "p", ["a", "b"], fields, lengths_of="other")


@pytest.mark.parametrize("package", [np, torch])
def test_cut_by_a_mask(package: Any) -> None:
    mask = package.asarray([[True, True, False], [True, False, False]])
    rows = cut(package.asarray([[1, 2, 0], [3, 0, 0]]), mask.sum(1))
    assert [row.tolist() for row in rows] == [[1, 2], [3]]


def test_cut() -> None:
    with pytest.raises(FieldError, match="lengths is"):
        cut(np.zeros((2, 3)), np.array([1.0, 2.0]))  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="1 lengths for 2"):
        cut(np.zeros((2, 3)), [1])
    with pytest.raises(FieldError, match="row 1 has 3 items, not 4"):
        cut(np.zeros((2, 3)), [1, 4])
