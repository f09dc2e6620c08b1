from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.files import dump_toml

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=25,
)


def exact(value: Any) -> Any:
    """A value in which types and the sign of zero count, and the order of keys doesn't."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return (type(value).__name__, repr(value))


@given(st.dictionaries(text, values, max_size=6))
def test_round_trip(document: dict[str, Any]) -> None:
    assert exact(tomllib.loads(dump_toml(document))) == exact(document)
    assert dump_toml(document).replace("\n", "").isprintable()


@pytest.mark.parametrize("value", [1, 1.0, True, -0.0, 1e300, 5e-324, 1e22, math.inf, -math.inf, 2**63 - 1])
def test_scalars_keep_their_type(value: object) -> None:
    assert exact(tomllib.loads(dump_toml({"x": value}))) == exact({"x": value})


def test_nan() -> None:
    assert math.isnan(tomllib.loads(dump_toml({"x": math.nan}))["x"])


def test_reads_like_a_scenario() -> None:
    document = {
        "name": "tcp",
        "seed": 42,
        "system": {"runner": "local", "slots": 2},
        "experiments": [
            {
                "name": "iperf",
                "agent": None,
                "cmd_args": {"command": "run {a}", "buffer_kb": {"low": 64, "high": 8192, "dtype": "int"}},
                "metrics": {"mbps": {"regex": r"mbps=(\d+)"}},
            }
        ],
    }
    assert dump_toml(document) == (
        'name = "tcp"\nseed = 42\n\n[system]\nrunner = "local"\nslots = 2\n\n'
        '[[experiments]]\nname = "iperf"\n\n'
        '[experiments.cmd_args]\ncommand = "run {a}"\n'
        'buffer_kb = { low = 64, high = 8192, dtype = "int" }\n\n'
        "[experiments.metrics]\nmbps = { regex = 'mbps=(\\d+)' }\n"
    )


def test_none_is_left_out_and_empty_tables_stay() -> None:
    document = {"a": None, "t": {"b": None}, "e": {}, "l": [{}, {"x": {}}], "deep": {"er": {"est": {}}}}
    assert tomllib.loads(dump_toml(document)) == {
        "t": {},
        "e": {},
        "l": [{}, {"x": {}}],
        "deep": {"er": {"est": {}}},
    }
    assert dump_toml({}) == ""


def test_long_arrays_get_a_line_per_element() -> None:
    document = {"x": [["a" * 30] * 5, [{"k": "v" * 90}]]}
    written = dump_toml(document)
    assert tomllib.loads(written) == document
    assert max(map(len, written.splitlines())) < 130


@pytest.mark.parametrize("value", [object(), b"x", {1}, [None], 1j, {"x": {1: 2}}])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        dump_toml({"x": value})


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        dump_toml({"x": "\ud800"})
