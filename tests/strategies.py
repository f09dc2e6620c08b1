"""Hypothesis strategies for values, knobs and ranges, as configuration lets them through; and equality to the bit."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tunegym.tuning.model.space import Choice, Range

INT64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
scalars = st.one_of(texts, INT64, st.floats(allow_nan=False, allow_infinity=False), st.booleans())
choices = st.builds(
    lambda values: Choice(tuple(values)),
    st.lists(scalars, min_size=1, max_size=8, unique_by=lambda value: (type(value), value)),
)


def pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=2, max_size=2, unique=True).map(sorted)


@st.composite
def stepped_integers(draw: st.DrawFn) -> Range:
    low, width = draw(INT64), draw(st.integers(1, 2**40))
    high = low + width * draw(st.integers(1, 2**20))
    assume(high < 2**63)
    return Range(low, high, "int", step=width)


@st.composite
def stepped_floats(draw: st.DrawFn) -> Range:
    """As a user writes them, in decimal; configuration allows a step down to 1e-11 of the bounds."""
    digits, low = draw(st.integers(0, 9)), draw(st.integers(-(10**11), 10**11))
    step, count = draw(st.integers(1, 10**6)), draw(st.integers(1, 10**5))
    texts = [f"{number}e-{digits}" for number in (low, low + step * count, step)]
    return Range(float(texts[0]), float(texts[1]), "float", step=float(texts[2]))


stepped = st.one_of(stepped_integers(), stepped_floats())
ranges = st.one_of(
    stepped,
    pairs(INT64).map(lambda pair: Range(*pair, "int")),
    pairs(st.floats(-1e15, 1e15)).map(lambda pair: Range(*pair)),
    pairs(st.integers(1, 2**40)).map(lambda pair: Range(*pair, "int", log=True)),
    pairs(st.floats(1e-12, 1e12)).map(lambda pair: Range(*pair, "float", log=True)),
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, dtype and shape, and to the bit; any NaN of Python's equals another."""
    if type(one) is not type(other):
        return False
    if (torch := sys.modules.get("torch")) is not None and isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return not one.numel() or torch.equal(
            *(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
        )
    if isinstance(one, np.ndarray | np.generic):
        if one.dtype.str != other.dtype.str or one.shape != other.shape:
            return False
        return same(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)
