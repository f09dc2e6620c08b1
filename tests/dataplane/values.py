"""Strategies for the values of columns, of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

NUMPY = ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64"]
NUMPY += [">i4", ">c8", ">M8[s]", "datetime64[us]"]
TORCH = [torch.bool, torch.int64, torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16]


def array(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Any bits, NaN included."""
    generator = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer(generator.bytes(size), dtype=kind).reshape(shape)


def tensor(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.from_numpy(array(seed, shape, "bool"))
    kind = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[dtype.itemsize]
    return torch.from_numpy(array(seed, shape, kind).copy()).view(dtype)


seeds = st.integers(0, 2**32)
inner = st.lists(st.integers(0, 3), max_size=2).map(tuple)
lengths = st.lists(st.integers(0, 9), min_size=1, max_size=12)


kinds = st.sampled_from([*((array, one) for one in NUMPY), *((tensor, one) for one in TORCH)])
dense = st.builds(
    lambda kind, seed, rows, more: kind[0](seed, (rows, *more), kind[1]), kinds, seeds, st.integers(1, 12), inner
)
jagged = st.builds(
    lambda kind, seed, sizes, more: [kind[0](seed + at, (size, *more), kind[1]) for at, size in enumerate(sizes)],
    *(kinds, seeds, lengths, inner),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just("$") | st.binary(max_size=8)
leaves = st.one_of(
    scalars,
    st.builds(array, seeds, inner, st.sampled_from(NUMPY)),
    st.builds(lambda seed, dtype: array(seed, (), dtype)[()], seeds, st.sampled_from(NUMPY[:9])),
    st.builds(tensor, seeds, inner, st.sampled_from(TORCH)),
    st.lists(texts, min_size=1, max_size=3).map(np.array),
    st.lists(scalars, max_size=3).map(lambda items: np.array([*items, {}], dtype=object)),
)
keys = st.one_of(texts, st.just("$"), st.integers(), st.tuples(st.integers(), texts))


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inside, max_size=4), st.lists(inside, max_size=3).map(tuple), st.dictionaries(keys, inside, max_size=4)
    )


trees = containers(st.recursive(leaves, containers, max_leaves=12))
objects = st.lists(trees, max_size=5).map(lambda rows: [*rows, {}])
numbers = st.one_of(
    st.lists(st.lists(kind, max_size=5) | st.lists(kind, max_size=5).map(tuple), min_size=1, max_size=6).filter(any)
    for kind in (st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats())
)
any_values = st.one_of(dense, jagged, objects, numbers)


def rows_of(given: Any) -> list[Any]:
    """The rows that must come back: rows of numbers are arrays of one dtype, never numbers."""
    if isinstance(given[0], list | tuple) and type(given[-1]) is not dict:
        dtype = np.array(next(row for row in given if row)).dtype
        return [np.array(row, dtype=dtype) for row in given]
    return [given[at, ...] for at in range(len(given))] if isinstance(given, np.ndarray) else list(given)
