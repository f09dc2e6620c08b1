"""The trials, commands and outputs that a page holds."""

from __future__ import annotations

import os
from pathlib import Path

from tunegym.tuning.model.trial import Failed, Measured, Pruned, Trial
from tunegym.tuning.reports.charts import TAIL, by_interest, columns, commands, kept, tails


def trial(number: int, reward: float = 1.0, *, failed: bool = False, cached: int | None = None) -> Trial:
    outcome = Failed("f") if failed else Measured(({"m": reward},))
    return Trial(number, {}, {}, outcome, -1e15 if failed else reward, 0.1, cached_from=cached)


def test_improvements_are_kept_in_a_sample() -> None:
    assert [one.number for one in kept([trial(3), trial(1), trial(2)], 10)] == [1, 2, 3]
    chosen = {one.number for one in kept([trial(n, 100.0 if n == 777 else n == 5) for n in range(1, 1001)], 100)}
    assert {5, 777} <= chosen
    assert 100 <= len(chosen) <= 103


def test_columns_are_aligned_whatever_the_outcome() -> None:
    """Values of a list count by exact type; integers that a browser would round come as text."""
    big = 2**60 + 1
    trials = [
        Trial(1, {"c": "a"}, {"x": 1, "y": big}, Measured(({"m": 1.0, "extra": 5.0}, {"m": 3.0, "extra": 5.0})), 2, 1),
        Trial(2, {"c": "b"}, {}, Failed("broken"), -1e15, 0.25),
        Trial(3, {"c": "b"}, {"x": True, "y": 3}, Pruned("hopeless"), -1e15, 0.25, reports=((1, 0.5), (2, 0.25))),
    ]
    knobs = {"x": {"values": [1, 1.0, True, "1"]}, "y": {"low": 0, "high": 2**61, "dtype": "int"}}
    head = {"knobs": knobs, "env_params": {"c": {"values": ["a", "b"]}}, "metrics": ["m"]}
    table = columns(trials, head, {1: 1.5})
    assert [table["statuses"][index] for index in table["status"]] == ["measured", "failed", "pruned"]
    assert [table["reasons"][index] for index in table["reason"]] == ["", "broken", "hopeless"]
    x, y = table["knobs"]
    assert (x["labels"], x["index"]) == (["1", "1.0", "true", '"1"'], [0, -1, 2])
    assert y["text"] == [str(big), None, "3"]
    assert [(one["name"], one["values"]) for one in table["metrics"]] == [
        ("m", [2.0, None, None]),
        ("extra", [5.0, None, None]),
    ]
    assert table["metrics"][0]["spread"][1:] == [None, None]
    assert table["samples"] == [2, 0, 0]
    assert table["closed_s"] == [1.5, None, None]
    assert table["curves"] == [[2, [(1, 0.5), (2, 0.25)]]]


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    reports = tuple((step, float(step)) for step in range(5000))
    one = Trial(1, {}, {}, Measured(({"m": 1.0},)), 1.0, 0.1, reports=reports)
    ((_, points),) = columns([one], {"knobs": {}, "env_params": {}, "metrics": []}, {})["curves"]
    assert len(points) <= 301
    assert points[-1] == (4999, 4999.0)


def leave(folder: Path, number: int, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / f"{number:06d}" / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_failed_ones_first_then_the_best_cached_ones_last() -> None:
    trials = [trial(1, 5.0), trial(2, failed=True), trial(3, 9.0), trial(4, 9.0, cached=3), trial(5, failed=True)]
    assert [trials[position].number for position in by_interest(trials)] == [2, 5, 3, 1, 4]


def test_the_end_of_what_was_printed(tmp_path: Path) -> None:
    """Of repeats the last; what can't be read is left out."""
    leave(tmp_path, 1, stdout=b"x" * 99_999 + b"the end\n", stderr=b"\xff odd\n")
    leave(tmp_path, 2, stdout=b"", stderr=b"")
    leave(tmp_path, 3, **{f"repeat-{n}__stdout": b"number %d" % n for n in (2, 9, 10)})
    leave(tmp_path, 4, stderr=b"told")
    os.mkfifo(tmp_path / "000004" / "stdout.txt")
    found = tails(tmp_path, [trial(number) for number in range(1, 9)], 10**6)
    out, error = found.pop("1")
    assert (out[0], len(out[1]), out[2]) == ("stdout.txt", TAIL, True)
    assert out[1].endswith("xthe end\n")
    assert error == ["stderr.txt", "\ufffd odd\n", False]
    assert found == {"3": [["repeat-10/stdout.txt", "number 10", False]], "4": [["stderr.txt", "told", False]]}
    assert tails(tmp_path / "missing", [trial(1)], 10**6) == {}


def test_the_whole_is_bounded(tmp_path: Path) -> None:
    for number in range(1, 30):
        leave(tmp_path, number, stdout=b"y" * 1000)
    found = tails(tmp_path, [trial(number, failed=number == 7) for number in range(1, 30)], 5000)
    assert "7" in found, "the failed one comes first"
    assert len(found) == 5
    trials = [trial(number) for number in range(1, 101)] + [trial(101, failed=True)]
    told = commands(trials, lambda one: f"{one.number} " + "z" * 96, 1000)
    assert told["of"][-1] is not None, "the failed one comes first"
    assert told["left_out"] == sum(one is None for one in told["of"]) > 80


def test_lines_that_commands_share_are_stored_once() -> None:
    texts = {1: "\n  set -e\n  run 1\n", 2: "\n  set -e\n  cat /odd\udcff\n", 3: None}
    told = commands([trial(number) for number in texts], lambda one: texts[one.number], 10**6)
    found = [lines and "\n".join(told["lines"][line] for line in lines) for lines in told["of"]]
    assert found == ["set -e\nrun 1", "set -e\ncat /odd\\udcff", None]
    assert len(told["lines"]) == 3
