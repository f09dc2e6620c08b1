from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.scenario import MetricSpec
from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import extract as extract_module
from tunegym.tuning.workloads.extract import extract, parse_json_path


def read(tmp_path: Path, content: bytes | str, kind: Any, expression: str, **options: Any) -> float:
    file = tmp_path / (options.get("file") or "stdout.txt")
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return extract(MetricSpec("x", kind, expression, **options), str(tmp_path))


TABLE = "a, b\n1,2\n\n3,4\n5\n"
OUT = {"file": "out.json"}


@pytest.mark.parametrize(
    ("kind", "content", "expression", "options", "value"),
    [
        ("regex", "t=1\nt=2.5\n", r"t=([0-9.]+)", {}, 2.5),
        ("regex", "t=1\nt=2.5\n", r"t=([0-9.]+)", {"match": "first"}, 1.0),
        ("regex", "took 17", r"\d+", {}, 17.0),
        ("regex", b"\xff\x00\xfe t=3 \x80\xff\n", r"t=(\d)", {}, 3.0),
        ("regex", "a=1\nb=2", r"a=(\d)|b=(\d)", {}, 2.0),
        ("regex", "xt=1\nt=2\nxt=3", r"^t=(\d)$", {}, 2.0),
        ("regex", "t=-1.5e3", r"t=(\S+)", {}, -1500.0),
        ("regex", "t= 4 ms", r"t=(.*)ms", {}, 4.0),
        ("regex", "3 µs", r"(\d) µs", {"file": "log"}, 3.0),
        ("json", '{"a": {"b": [{"c": 4}]}}', "a.b[0].c", {}, 4.0),
        ("json", '{"a": {"x.y": 1}}', 'a["x.y"]', {}, 1.0),
        ("json", '{"a": {"x.y": 1}}', "a['x.y']", {}, 1.0),
        ("json", '{"a": [1, 2, 3]}', "a[-1]", {}, 3.0),
        ("json", '{"a": "2.5"}', "a", {}, 2.5),
        ("json", "[[7]]", "[0][0]", {}, 7.0),
        ("json", "42", "$", {}, 42.0),
        ("json", '{"a": 1}', "$.a", {}, 1.0),
        ("json", '{"max-rate": 1}', "max-rate", {}, 1.0),
        ("json", 'log\n{"a": 1}\n{"a": 2}\ndone\n', "a", {}, 2.0),
        ("json", 'log\n{\n  "a": 3\n}\n', "a", {}, 3.0),
        ("json", 'log {x}\n{"a": 1}\n{broken}\n', "a", {}, 1.0),
        ("csv", TABLE, "b", {"row": 1}, 4.0),
        ("csv", TABLE, "b", {"row": 0}, 2.0),
        ("csv", TABLE, "a", {"row": -3}, 1.0),
        ("csv", "\ufeff" + TABLE, "a", {"row": -1, "file": "t.csv"}, 5.0),
    ],
)
def test_values(tmp_path: Path, kind: Any, content: bytes | str, expression: str, options: Any, value: float) -> None:
    assert read(tmp_path, content, kind, expression, **options) == value


@pytest.mark.parametrize(
    ("kind", "content", "expression", "options", "message"),
    [
        ("regex", "nothing", "throughput=([0-9.]+)", {}, "no match for 'throughput=([0-9.]+)' in stdout.txt"),
        ("regex", "", "t=(.*)", {}, "no match for 't=(.*)' in stdout.txt"),
        ("regex", "t=abc", "t=(.*)", {}, "'abc' is not a number"),
        ("regex", "t=1_0", "t=(.*)", {}, "'1_0' is not a number"),
        ("regex", "t=", "t=(.*)", {}, "'' is not a number"),
        ("regex", "t=NaN", "t=(.*)", {}, "is NaN"),
        ("regex", "t=-inf", "t=(.*)", {}, "is infinite"),
        ("regex", "t=1e999", "t=(.*)", {}, "is infinite"),
        ("regex", "t", "t=?([0-9])?", {}, "the group of 't=?([0-9])?' matched nothing in stdout.txt"),
        ("json", '{"a": {"c": 1, "d": 2}}', "a.b", OUT, "no 'b' in a (there is: c, d)"),
        ("json", "{}", "a", OUT, "no 'a' in out.json (there is: nothing)"),
        ("json", '{"a": [1]}', "a[1]", OUT, "no [1] in a (its length is 1)"),
        ("json", '{"a": 1}', "a.b", OUT, "no 'b' in a, which is a number"),
        ("json", '{"a": {"b": {}}}', "a.b[0]", OUT, "no [0] in a.b, which is a table"),
        ("json", '{"a": true}', "a", OUT, "true is not a number"),
        ("json", '{"a": null}', "a", OUT, "null is not a number"),
        ("json", '{"a": [1]}', "a", OUT, "a list is not a number"),
        ("json", '{"a": NaN}', "a", OUT, "is NaN"),
        ("json", '{"a": Infinity}', "a", OUT, "is infinite"),
        ("json", '{"a": ' + "9" * 400 + "}", "a", OUT, "is infinite"),
        ("json", "", "a", OUT, "out.json is not JSON: it is empty"),
        ("json", 'x\n{"a": 1}', "a", OUT, "out.json is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("json", "[" * 100_000, "a", OUT, "out.json is not JSON: "),
        ("json", '{"a": "' + "z" * 200 + '"}', "a", OUT, f"'{'z' * 76}... is not a number"),
        ("csv", TABLE, "c", {}, "no column 'c' in stdout.txt (there is: a, b)"),
        ("csv", TABLE, "a", {"row": 3}, "no row 3 in stdout.txt (it has 3)"),
        ("csv", TABLE, "b", {}, "row -1 of stdout.txt has no 'b'"),
        ("csv", "a\n", "a", {}, "no row -1 in stdout.txt (it has 0)"),
        ("csv", "", "a", {}, "stdout.txt is empty"),
        ("csv", "a\nzz\n", "a", {}, "'zz' is not a number"),
        ("csv", 'a\n"' + "x" * 200_000, "a", {}, "stdout.txt is not CSV: field larger than field limit (131072)"),
    ],
)
def test_reasons(tmp_path: Path, kind: Any, content: str, expression: str, options: Any, message: str) -> None:
    with pytest.raises(MetricError) as caught:
        read(tmp_path, content, kind, expression, **options)
    assert str(caught.value).startswith(f"metric x: {message}")


def test_files(tmp_path: Path) -> None:
    missing = MetricSpec("x", "json", "a", file="out.json")
    with pytest.raises(MetricError, match=r"^metric x: out.json does not exist$"):
        extract(missing, str(tmp_path))
    os.mkfifo(tmp_path / "out.json")
    with pytest.raises(MetricError, match=r"out.json is not a regular file"):
        extract(missing, str(tmp_path))
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text('{"a": 5}')
    assert extract(MetricSpec("x", "json", "a", file=str(elsewhere)), "/nowhere") == 5.0


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "a[", "a[x]", 'a["x]', "a]b", "a b", "a[0]b", 'a["\\q"]'])
def test_bad_paths(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(position \d+\)"):
        parse_json_path(text)


@given(st.text(st.sampled_from("ab.[]0-1\"'$ \\"), max_size=12))
def test_any_path_is_parsed_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_json_path(text), tuple)
    except ValueError as error:
        assert "position" in str(error)  # noqa: PT017


def test_a_match_that_never_ends_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_module, "MATCH_S", 0.2)
    (tmp_path / "stdout.txt").write_bytes(b"a" * 60)
    with pytest.raises(MetricError, match=r"takes more than 0.2 s to match in stdout.txt"):
        extract(MetricSpec("m", "regex", "(a|aa)+c$"), str(tmp_path))
