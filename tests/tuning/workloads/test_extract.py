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


def reason(tmp_path: Path, content: bytes | str, kind: Any, expression: str, **options: Any) -> str:
    with pytest.raises(MetricError) as caught:
        read(tmp_path, content, kind, expression, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "pattern", "options", "value"),
    [
        ("t=1\nt=2.5\n", r"t=([0-9.]+)", {}, 2.5),
        ("t=1\nt=2.5\n", r"t=([0-9.]+)", {"match": "first"}, 1.0),
        ("took 17", r"\d+", {}, 17.0),
        (b"\xff\x00\xfe t=3 \x80\xff\n", r"t=(\d)", {}, 3.0),
        ("a=1\nb=2", r"a=(\d)|b=(\d)", {}, 2.0),
        ("xt=1\nt=2\nxt=3", r"^t=(\d)$", {}, 2.0),
        ("t=-1.5e3", r"t=(\S+)", {}, -1500.0),
        ("t= 4 ms", r"t=(.*)ms", {}, 4.0),
        ("3 µs", r"(\d) µs", {"file": "log"}, 3.0),
    ],
)
def test_regex(tmp_path: Path, content: bytes | str, pattern: str, options: Any, value: float) -> None:
    assert read(tmp_path, content, "regex", pattern, **options) == value


@pytest.mark.parametrize(
    ("content", "pattern", "message"),
    [
        ("nothing", "throughput=([0-9.]+)", "metric x: no match for 'throughput=([0-9.]+)' in stdout.txt"),
        ("", "t=(.*)", "metric x: no match for 't=(.*)' in stdout.txt"),
        ("t=abc", "t=(.*)", "metric x: 'abc' is not a number"),
        ("t=1_0", "t=(.*)", "metric x: '1_0' is not a number"),
        ("t=", "t=(.*)", "metric x: '' is not a number"),
        ("t=NaN", "t=(.*)", "metric x: is NaN"),
        ("t=-inf", "t=(.*)", "metric x: is infinite"),
        ("t=1e999", "t=(.*)", "metric x: is infinite"),
        ("t", "t=?([0-9])?", "metric x: the group of 't=?([0-9])?' matched nothing in stdout.txt"),
    ],
)
def test_regex_reasons(tmp_path: Path, content: str, pattern: str, message: str) -> None:
    assert reason(tmp_path, content, "regex", pattern) == message


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


@pytest.mark.parametrize(
    ("content", "path", "value"),
    [
        ('{"a": {"b": [{"c": 4}]}}', "a.b[0].c", 4.0),
        ('{"a": {"x.y": 1}}', 'a["x.y"]', 1.0),
        ('{"a": {"x.y": 1}}', "a['x.y']", 1.0),
        ('{"a": [1, 2, 3]}', "a[-1]", 3.0),
        ('{"a": "2.5"}', "a", 2.5),
        ("[[7]]", "[0][0]", 7.0),
        ("42", "$", 42.0),
        ('{"a": 1}', "$.a", 1.0),
        ('{"max-rate": 1}', "max-rate", 1.0),
        ('log\n{"a": 1}\n{"a": 2}\ndone\n', "a", 2.0),
        ('log\n{\n  "a": 3\n}\n', "a", 3.0),
        ('log {x}\n{"a": 1}\n{broken}\n', "a", 1.0),
    ],
)
def test_json(tmp_path: Path, content: str, path: str, value: float) -> None:
    assert read(tmp_path, content, "json", path) == value


@pytest.mark.parametrize(
    ("content", "path", "message"),
    [
        ('{"a": {"c": 1, "d": 2}}', "a.b", "no 'b' in a (there is: c, d)"),
        ("{}", "a", "no 'a' in out.json (there is: nothing)"),
        ('{"a": [1]}', "a[1]", "no [1] in a (its length is 1)"),
        ('{"a": 1}', "a.b", "no 'b' in a, which is a number"),
        ('{"a": {"b": {}}}', "a.b[0]", "no [0] in a.b, which is a table"),
        ('{"a": true}', "a", "true is not a number"),
        ('{"a": null}', "a", "null is not a number"),
        ('{"a": [1]}', "a", "a list is not a number"),
        ('{"a": NaN}', "a", "is NaN"),
        ('{"a": Infinity}', "a", "is infinite"),
        ('{"a": ' + "9" * 400 + "}", "a", "is infinite"),
        ("", "a", "out.json is not JSON: it is empty"),
        ('x\n{"a": 1}', "a", "out.json is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "a", "out.json is not JSON: "),
        ('{"a": "' + "z" * 200 + '"}', "a", f"'{'z' * 76}... is not a number"),
    ],
)
def test_json_reasons(tmp_path: Path, content: str, path: str, message: str) -> None:
    found = reason(tmp_path, content, "json", path, file="out.json")
    assert found.startswith(f"metric x: {message}")


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


TABLE = "a, b\n1,2\n\n3,4\n5\n"


@pytest.mark.parametrize(("column", "row", "value"), [("a", -1, 5.0), ("b", 1, 4.0), ("b", 0, 2.0), ("a", -3, 1.0)])
def test_csv(tmp_path: Path, column: str, row: int, value: float) -> None:
    assert read(tmp_path, TABLE, "csv", column, row=row) == value
    assert read(tmp_path, "\ufeff" + TABLE, "csv", column, row=row, file="t.csv") == value


@pytest.mark.parametrize(
    ("content", "column", "row", "message"),
    [
        (TABLE, "c", -1, "metric x: no column 'c' in stdout.txt (there is: a, b)"),
        (TABLE, "a", 3, "metric x: no row 3 in stdout.txt (it has 3)"),
        (TABLE, "b", -1, "metric x: row -1 of stdout.txt has no 'b'"),
        ("a\n", "a", -1, "metric x: no row -1 in stdout.txt (it has 0)"),
        ("", "a", -1, "metric x: stdout.txt is empty"),
        ("a\nzz\n", "a", -1, "metric x: 'zz' is not a number"),
        (
            'a\n"' + "x" * 200_000,
            "a",
            -1,
            "metric x: stdout.txt is not CSV: field larger than field limit (131072)",
        ),
    ],
)
def test_csv_reasons(tmp_path: Path, content: str, column: str, row: int, message: str) -> None:
    assert reason(tmp_path, content, "csv", column, row=row) == message


def test_a_match_that_never_ends_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_module, "MATCH_S", 0.2)
    (tmp_path / "stdout.txt").write_bytes(b"a" * 60)
    with pytest.raises(MetricError, match=r"takes more than 0.2 s to match in stdout.txt"):
        extract(MetricSpec("m", "regex", "(a|aa)+c$"), str(tmp_path))
