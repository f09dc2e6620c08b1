from __future__ import annotations

import os
from pathlib import Path

from tunegym.tuning.model.outcome import Failed, Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.charts import TAIL, by_interest, commands, tails


def trial(number: int, reward: float = 1.0, *, failed: bool = False, cached: int | None = None) -> Trial:
    outcome = Failed("f") if failed else Measured(({"m": reward},))
    return Trial(number, {}, {}, outcome, -1e15 if failed else reward, 0.1, cached_from=cached)


def leave(folder: Path, number: int, **files: bytes) -> None:
    place = folder / f"{number:06d}"
    place.mkdir(parents=True)
    for name, content in files.items():
        path = place / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def test_failed_ones_first_then_the_best_cached_ones_last() -> None:
    trials = [trial(1, 5.0), trial(2, failed=True), trial(3, 9.0), trial(4, 9.0, cached=3), trial(5, failed=True)]
    assert [trials[position].number for position in by_interest(trials)] == [2, 5, 3, 1, 4]


def test_the_end_of_what_was_printed(tmp_path: Path) -> None:
    leave(tmp_path, 1, stdout=b"x" * 99_999 + b"the end\n", stderr=b"\xff odd\n")
    leave(tmp_path, 2, stdout=b"", stderr=b"")
    found = tails(tmp_path, [1, 2, 3], 10**6)
    assert list(found) == [1]
    (out, error) = found[1]
    assert out[0] == "stdout.txt"
    assert out[1].endswith("xthe end\n")
    assert (len(out[1]), out[2]) == (TAIL, True)
    assert error == ["stderr.txt", "\ufffd odd\n", False]


def test_of_repeats_the_last(tmp_path: Path) -> None:
    leave(tmp_path, 1, **{f"repeat-{n}__stdout": b"number %d" % n for n in (2, 9, 10)})
    assert tails(tmp_path, [1], 10**6) == {1: [["repeat-10/stdout.txt", "number 10", False]]}


def test_the_whole_is_bounded(tmp_path: Path) -> None:
    for number in range(1, 30):
        leave(tmp_path, number, stdout=b"y" * 1000)
    found = tails(tmp_path, [7, *range(1, 30)], 5000)
    assert 7 in found
    assert len(found) == 5


def test_what_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    leave(tmp_path, 1, stderr=b"told")
    os.mkfifo(tmp_path / "000001" / "stdout.txt")
    assert tails(tmp_path, [1], 10**6) == {1: [["stderr.txt", "told", False]]}
    assert tails(tmp_path / "missing", [1], 10**6) == {}


def test_lines_that_commands_share_are_stored_once() -> None:
    trials = [trial(1), trial(2)]
    told = commands(trials, lambda one: f"\n  set -e\n  run {one.number}\n", 10**6)
    texts = ["\n".join(told["lines"][line] for line in lines) for lines in told["of"]]
    assert texts == ["set -e\nrun 1", "set -e\nrun 2"]
    assert len(told["lines"]) == 3


def test_commands_are_bounded() -> None:
    trials = [trial(number) for number in range(1, 101)] + [trial(101, failed=True)]
    told = commands(trials, lambda one: f"{one.number} " + "z" * 96, 1000)
    assert told["of"][-1] is not None, "the failed one comes first"
    assert told["left_out"] == sum(one is None for one in told["of"]) > 80


def test_a_trial_without_a_command() -> None:
    assert commands([trial(1)], lambda one: None, 1000)["of"] == [None]


def test_a_path_that_is_no_unicode() -> None:
    told = commands([trial(1)], lambda one: "cat /odd\udcff", 1000)
    assert told["lines"] == ["cat /odd\\udcff"]
