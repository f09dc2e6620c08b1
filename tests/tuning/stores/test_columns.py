from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.testing.sample_servers import SPACES
from tunegym.tuning.spaces import leaves
from tunegym.tuning.stores.columns import Columns, leaf_values, row_type

_EXTREMES: dict[str, tuple[spaces.Space[Any], list[Any]]] = {
    "uint64": (spaces.Box(0, 2**64 - 1, (2,), np.uint64), [np.array([2**64 - 1, 1], np.uint64)]),
    "int64": (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), [np.array([-(2**63), 2**63 - 1])]),
    "infinite": (spaces.Box(-np.inf, np.inf, (2,), np.float32), [np.array([np.inf, -0.0], np.float32)]),
    "float16": (spaces.Box(-np.inf, np.inf, (1,), np.float16), [np.array([6e-8], np.float16)]),
    "one number": (spaces.Box(-1.0, 1.0, (), np.float64), [np.array(0.1), np.float64(0.2), 0.3]),
    "from three": (spaces.Discrete(4, start=3), [3, np.int64(6)]),
    "nothing": (spaces.Dict({}), [{}, {}]),
    "unaligned": (
        spaces.Dict({"a": spaces.Box(0, 9, (1,), np.uint8), "b": spaces.Box(-1.0, 1.0, (3,), np.float64)}),
        [{"a": np.array([7], np.uint8), "b": np.array([0.1, 0.2, 0.3])}],
    ),
}


def samples() -> dict[str, tuple[spaces.Space[Any], list[Any]]]:
    drawn: dict[str, tuple[spaces.Space[Any], list[Any]]] = {}
    for name, space in SPACES.items():
        space.seed(3)
        drawn[name] = (space, [space.sample() for _ in range(3)])
    return drawn | _EXTREMES


@pytest.mark.parametrize("name", samples())
def test_elements_come_back_from_a_journal_and_look_the_same(name: str) -> None:
    space, elements = samples()[name]
    columns = Columns(space)
    columns.fill([columns.pack(element) for element in elements])
    text = orjson.dumps(columns.plain())
    cells = columns.cells()
    assert cells == columns.cells(), "made again, they are the same"
    again = Columns(space)
    again.load(orjson.loads(text))
    assert again.cells() == cells
    for leaf, values in zip(leaves(space), orjson.loads(text), strict=True):
        told = np.array([np.asarray(leaf.of(element), leaf.dtype) for element in elements])
        assert leaf_values(leaf, values).tobytes() == told.tobytes()


@pytest.mark.parametrize("name", samples())
def test_packed_elements_lie_as_in_their_file(name: str) -> None:
    space, elements = samples()[name]
    columns = Columns(space)
    if columns.scalar or not columns.leaves:
        assert columns.inline, "they never have one"
        return
    columns.fill([columns.pack(element) for element in elements])
    rows = np.frombuffer(columns.packed(), dtype=row_type(space))
    assert columns.row_bytes * len(elements) == len(columns.packed())
    for leaf in leaves(space):
        for at, element in enumerate(elements):
            assert np.array_equal(rows[leaf.name or "value"][at], leaf.of(element))


@pytest.mark.parametrize("shape", [(2,), ()])
def test_what_is_packed_is_a_copy(shape: tuple[int, ...]) -> None:
    columns = Columns(spaces.Box(0.0, 1.0, shape))
    element = np.zeros(shape, np.float32)
    packed = columns.pack(element)
    element[...] = 1.0
    columns.fill([packed])
    assert set(columns.cells()[0][0].split(",")) == {"0.0"}


@pytest.mark.parametrize("values", [[300], [-1], ["x"], [[1, 2]], [None]])
def test_what_is_no_element_is_damage(values: list[Any]) -> None:
    (leaf,) = leaves(spaces.Box(0, 255, (1,), np.uint8))
    if values == [[1, 2]]:
        (leaf,) = leaves(spaces.Box(0, 255, (3,), np.uint8))
    with pytest.raises(StoreError, match="the journal is damaged"):
        leaf_values(leaf, values)
