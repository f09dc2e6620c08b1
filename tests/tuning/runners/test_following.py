"""A file that grows, is cut short, is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.testing.runners import Seen
from tunegym.tuning.model.trial import Stream
from tunegym.tuning.runners import command
from tunegym.tuning.runners.command import Follower

STREAM = Stream("a=([0-9.e_]+|nan)", "out")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_only(out: Path) -> None:
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    assert follower.look() is False
    append(out, "a=1")
    follower.look()
    assert seen.values == []
    append(out, "2\nb\na=3")
    follower.look()
    assert seen.values == [(1, 12.0)]
    append(out, "4")
    assert follower.finish() is False
    assert seen.values == [(1, 12.0), (2, 34.0)]


def test_cut_short(out: Path) -> None:
    """Read from its start again; half a line of before is forgotten."""
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    append(out, "a=1\na=2\nnoise a=9")
    follower.look()
    out.write_text("a=3\n")
    follower.look()
    follower.finish()
    assert seen.values == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_replaced(out: Path) -> None:
    """What the old one still had is not lost."""
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    append(out, "a=1\n")
    follower.look()
    append(out, "a=2\n")
    new = out.with_name("new")
    new.write_text("a=3\n")
    new.replace(out)
    follower.look()
    out.unlink()
    follower.look()
    append(out, "a=4\n")
    follower.finish()
    assert seen.values == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_not_a_file(out: Path) -> None:
    """Neither a folder nor a pipe is touched, and what is there later is read."""
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    os.mkfifo(out)
    follower.look()
    out.unlink()
    out.mkdir()
    follower.look()
    out.rmdir()
    append(out, "a=1\n")
    follower.look()
    follower.close()
    assert seen.values == [(1, 1.0)]


def test_long_lines_are_passed_over(out: Path) -> None:
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    long = "a=1 " + "x" * command.LONGEST_LINE
    append(out, f"{long}\na=2\n{long}")
    follower.look()
    append(out, f"{long * 8} a=3")
    follower.look()
    append(out, " a=4\na=5\n" + long)
    follower.finish()
    assert [value for _, value in seen.values] == [2.0, 5.0]


def test_what_is_no_number_counts_as_a_step(out: Path) -> None:
    """NaN is a number to whoever watches."""
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    append(out, "a=1\na=1_0\na=e\na=nan\na=5\n")
    follower.finish()
    assert [step for step, _ in seen.values] == [1, 4, 5]


def test_nothing_after_the_end(out: Path) -> None:
    seen = Seen(until=2)
    follower = Follower(str(out.parent), STREAM, seen)
    append(out, "a=1 a=2 a=3\na=4\n")
    assert follower.look() is True
    assert follower.look() is True
    assert follower.finish() is True
    assert seen.values == [(1, 1.0), (2, 2.0)]


def test_a_flood_is_read_in_pieces(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a time-out comes in between; at the end all of it counts."""
    monkeypatch.setattr(command, "_CHUNK", 64)
    monkeypatch.setattr(command, "_LONGEST_LOOK", 128)
    seen = Seen()
    follower = Follower(str(out.parent), STREAM, seen)
    append(out, "a=1\n" * 1000)
    follower.look()
    assert 0 < len(seen.values) < 100
    follower.finish()
    assert len(seen.values) == 1000


def test_a_pattern_that_never_ends_is_given_up(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MATCH_S", 0.05)
    seen = Seen()
    follower = Follower(str(out.parent), Stream("a=((?:1|11)+)$", "out"), seen)
    append(out, "a=1\na=" + "1" * 60 + "x\na=1\n")
    assert follower.finish() is False
    assert seen.values == [(1, 1.0)]


@given(st.binary(max_size=300).map(lambda noise: noise + b"a=7\nxa=8"), st.lists(st.integers(0, 40), max_size=20))
def test_however_it_is_written(tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]) -> None:
    """The same values whether it comes at once or in pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    whole, pieces = Seen(), Seen()
    (folder / "out").write_bytes(content)
    Follower(str(folder), STREAM, whole).finish()
    (folder / "out").unlink()
    follower = Follower(str(folder), STREAM, pieces)
    rest = content
    for cut in cuts:
        with (folder / "out").open("ab") as file:
            file.write(rest[:cut])
        rest = rest[cut:]
        follower.look()
    with (folder / "out").open("ab") as file:
        file.write(rest)
    follower.finish()
    assert repr(pieces.values) == repr(whole.values)
    assert whole.values[-1][1] == 8.0
