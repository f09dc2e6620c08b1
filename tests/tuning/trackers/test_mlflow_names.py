from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.trackers.mlflow_names import finite, key, keyed, text

NAMES = st.text(st.characters(), max_size=400) | st.text(alphabet="./ a-", max_size=12)


@pytest.mark.slow  # mlflow takes its time to be imported
@given(NAMES)
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name, _validate_param_name

    name = key(name)
    _validate_metric_name(name)
    _validate_param_name(name)
    assert len(name) <= MAX_ENTITY_KEY_LENGTH


@given(st.dictionaries(NAMES, st.integers(), max_size=20))
def test_no_two_names_become_one(values: dict[str, int]) -> None:
    found = keyed(values)
    assert list(found.values()) == list(values.values())
    assert len({name.lower() for name in found}) == len(values)


def test_ordinary_names_stay() -> None:
    for name in ("threads", "server.port", "extra_env_vars.OMP_NUM_THREADS", "context.load", "p99 ms", "a/b"):
        assert key(name) == name
    assert key("p99%") == "p99_"
    assert key("../x") == ".._x".replace(".", "_")
    assert key("a//b") == "a__b"
    assert key("") == "_"


def test_values() -> None:
    assert [text(value) for value in (1, 1.0, True, "1", "a b")] == ["1", "1.0", "true", "1", "a b"]
    assert text("x" * 7000) == "x" * 5997 + "..."
    assert text("a\0b\ud800") == "a\\0b\\ud800"
    assert finite({"a": 1, "b": math.nan, "c": math.inf, "d": None, "e": 2.5}) == {"a": 1.0, "e": 2.5}
