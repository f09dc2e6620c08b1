from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.text import closest, escaped, escaped_json, escaped_lines, escaped_toml

text = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.text())
def test_the_result_is_printable(given: str) -> None:
    assert escaped(given).isprintable()
    assert escaped_lines(given).replace("\n", "").replace("\t", "").isprintable()
    assert escaped_lines(given).count("\n") == given.count("\n")


@given(text)
def test_toml_and_json_stay_equal(given: str) -> None:
    for quoted in (json.dumps(given), json.dumps(given, ensure_ascii=False)):
        shown = escaped_json(quoted)
        assert shown.isprintable()
        assert json.loads(shown) == given
    basic = '"' + "".join(char if ord(char) > 0x7F else f"\\u{ord(char):04x}" for char in given) + '"'
    shown = escaped_toml(basic)
    assert shown.isprintable()
    assert tomllib.loads(f"x = {shown}") == {"x": given}


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("grid_serch", "grid_search"),
        ("Random_Search", "random_search"),
        ("grid", "grid_search"),
        ("identity_of_the_metric", "identity"),
        ("in", None),
        ("zzz", None),
    ],
)
def test_closest(word: str, found: str | None) -> None:
    assert closest(word, ["grid_search", "random_search", "identity", "inverse"]) == found
