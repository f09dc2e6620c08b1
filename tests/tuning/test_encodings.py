from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.encodings import ENCODINGS, encoding_of
from tunegym.tuning.envs.structure import leaf_space
from tunegym.tuning.model.space import Choice, EnvParam, ObsLeafDescriptor, Range

NUMBERS = Choice((0.001, 0.01, 0.1))
MIXED = Choice(("a", 1, 1.0, True))
FITTING = [
    ("categorical", NUMBERS), ("categorical", MIXED), ("onehot", NUMBERS), ("onehot", MIXED), ("ordinal", MIXED),
    ("ordinal", Choice(("only",))), ("minmax", NUMBERS), ("minmax", Range(-5, 5, "int")), ("minmax", Range(0.0, 1e9)),
    ("minmax", Range(-(2**63), 2**63 - 1, "int")),
    ("minmax", Choice((3, 3.0))), ("log", NUMBERS), ("log", Choice((0, 1, 10, 100))), ("log", Range(1, 1000, "int")),
    ("log", Range(0.0, 10.0)), ("log", Range(1e-9, 1e9, log=True)), ("log", Choice((0, 5))), ("log", Choice((5, 5.0))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "domain"), FITTING)
def test_every_value_is_in_the_space(name: str, domain: Choice | Range) -> None:
    """With the declared shape and dtype, at the edges too."""
    encoding = encoding_of(EnvParam(domain, encoding=name))
    space = leaf_space(encoding.descriptor())
    assert encoding.descriptor() == encoding.descriptor()
    for cell in range(201):
        value = domain.from_unit(min(cell / 200, 0.999_999_999))
        encoded = encoding.encode(value)
        assert space.contains(encoded)
        assert encoded.dtype == space.dtype


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.floats(0.0, 1.0, exclude_max=True))
def test_any_range_stays_in_its_box(low: float, width: float, unit: float) -> None:
    domain = Range(low, low + width) if low + width > low else Range(low, low + 1e6)
    encoding = encoding_of(EnvParam(domain, encoding="minmax"))
    assert leaf_space(encoding.descriptor()).contains(encoding.encode(domain.from_unit(unit)))


def test_a_width_that_is_no_float() -> None:
    encoding = encoding_of(EnvParam(Range(-1.7e308, 1.7e308)))
    assert [encoding.encode(value).tolist() for value in (-1.7e308, 0.0, 1.7e308)] == [[0.0], [0.5], [1.0]]


def test_defaults() -> None:
    assert leaf_space(encoding_of(EnvParam(NUMBERS)).descriptor()) == spaces.Discrete(3)
    assert leaf_space(encoding_of(EnvParam(Range(0.0, 1.0))).descriptor()) == spaces.Box(0.0, 1.0, (1,), np.float32)


@pytest.mark.parametrize(
    ("name", "descriptor"),
    [
        ("categorical", ObsLeafDescriptor("discrete", n=3)),
        ("onehot", ObsLeafDescriptor("box", dim=3, low=0.0, high=1.0)),
        ("ordinal", ObsLeafDescriptor("box", dim=1, low=0.0, high=1.0)),
        ("minmax", ObsLeafDescriptor("box", dim=1, low=0.0, high=1.0)),
        ("log", ObsLeafDescriptor("box", dim=2, low=0.0, high=1.0)),
    ],
)
def test_descriptors(name: str, descriptor: ObsLeafDescriptor) -> None:
    assert encoding_of(EnvParam(NUMBERS, encoding=name)).descriptor() == descriptor


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("categorical", 0.01, 1),
        ("onehot", 0.01, [0.0, 1.0, 0.0]),
        ("ordinal", 0.01, [0.5]),
        ("ordinal", 0.1, [1.0]),
        ("minmax", 0.001, [0.0]),
        ("minmax", 0.1, [1.0]),
        ("log", 0.01, [1.0, 0.5]),
        ("log", 0.001, [1.0, 0.0]),
    ],
)
def test_values(name: str, value: float, expected: Any) -> None:
    assert encoding_of(EnvParam(NUMBERS, encoding=name)).encode(value) == pytest.approx(np.array(expected))


def test_zero_has_a_slot_of_its_own_under_log() -> None:
    encoding = encoding_of(EnvParam(Choice((0, 1, 100)), encoding="log"))
    assert [list(encoding.encode(value)) for value in (0, 1, 100)] == [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]


def test_equal_looking_candidates_stay_apart() -> None:
    for name in ("categorical", "onehot", "ordinal"):
        encoding = encoding_of(EnvParam(MIXED, encoding=name))
        assert len({tuple(np.atleast_1d(encoding.encode(value))) for value in MIXED.values}) == 4


def test_stranger_is_refused() -> None:
    for name in ("categorical", "onehot", "ordinal"):
        with pytest.raises(ValueError, match=r"0\.5 is not one of"):
            encoding_of(EnvParam(NUMBERS, encoding=name)).encode(0.5)
        with pytest.raises(TypeError, match="list of candidates"):
            encoding_of(EnvParam(Range(0.0, 1.0), encoding=name))


def test_all_are_tested() -> None:
    assert {name for name, _ in FITTING} == set(ENCODINGS)
