from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.values import exact_key, spelled, storable

scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
mappings = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), scalars, max_size=4)


def typed(mapping: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {key: (type(value).__name__, repr(value)) for key, value in mapping.items()}


@given(mappings, mappings)
def test_keys_meet_only_their_own_values(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (exact_key(one) == exact_key(other)) == (typed(one) == typed(other))
    assert exact_key(one) == exact_key(dict(reversed(one.items())))


@given(mappings, mappings)
def test_action_and_context_are_not_mixed_up(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (exact_key(one, other) == exact_key(other, one)) == (typed(one) == typed(other))


def test_equal_looking_values_have_different_keys() -> None:
    keys = {exact_key({"x": value}) for value in (1, 1.0, True, "1", "true", "1.0", 0, False, 0.0, -0.0, "")}
    assert len(keys) == 11


@given(scalars)
def test_storable(value: Any) -> None:
    assert storable(value) is None


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, math.nan, math.inf, None, [1], {}, object(), 1j, b"x"])
def test_not_storable(value: object) -> None:
    assert storable(value) is not None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (1, "1"), (1.0, "1.0"), ('a"b\n', '"a\\"b\\n"'), ([1, "x", False], '[1, "x", false]'),
        ((), "[]"), ({"low": 1, "log": True}, "{low = 1, log = true}"),
    ],
)  # fmt: skip
def test_spelled_as_toml(value: object, text: str) -> None:
    assert spelled(value) == text


@given(scalars)
def test_spelled_is_printable_toml(value: Any) -> None:
    assert spelled(value).isprintable()
    assert typed(tomllib.loads(f"x = {spelled(value)}")) == typed({"x": value})


def test_what_is_not_printable_is_escaped() -> None:
    assert spelled("\x1b[31m\x9b\u202e\U000e0001") == '"\\u001b[31m\\u009b\\u202e\\U000e0001"'
    assert spelled({"\x1b": ["\x7f"]}) == '{"\\u001b" = ["\\u007f"]}'
