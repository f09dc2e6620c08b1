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
from tunegym.tuning.runners.command import OutputFollower

STREAM = Stream("a=([0-9.e_]+|nan)", "out")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def follower(out: Path, seen: Seen) -> OutputFollower:
    return OutputFollower(str(out.parent), STREAM, seen)


def test_a_file_that_is_cut_short_or_replaced(out: Path, seen: Seen, follower: OutputFollower) -> None:
    """Cut short, it is read from its start again; replaced, the rest of the old one is read first."""
    append(out, "a=1\na=2\nnoise a=9")
    follower.look()
    out.write_text("a=3\n")
    follower.look()
    append(out, "a=4\n")
    new = out.with_name("new")
    new.write_text("a=5\n")
    new.replace(out)
    follower.look()
    out.unlink()
    follower.look()
    append(out, "a=6\n")
    follower.finish()
    assert seen.values == [(n, float(n)) for n in range(1, 7)]


def test_a_folder_or_pipe_is_not_touched(out: Path, seen: Seen, follower: OutputFollower) -> None:
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


def test_the_end_of_a_long_line_counts(out: Path, seen: Seen, follower: OutputFollower) -> None:
    append(out, "a=1 " + "x" * command.LONGEST_LINE)
    follower.look()
    append(out, "x" * 10 + " a=2\na=3\n")
    follower.finish()
    assert [value for _, value in seen.values] == [2.0, 3.0]


def test_a_match_that_is_no_number_counts_as_a_step(out: Path, seen: Seen, follower: OutputFollower) -> None:
    append(out, "a=1\na=1_0\na=e\na=nan\na=5\n")
    follower.finish()
    assert [step for step, _ in seen.values] == [1, 4, 5]


def test_a_flood_is_read_in_pieces(
    out: Path, seen: Seen, follower: OutputFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a time-out comes in between; at the end all of it counts."""
    monkeypatch.setattr(command, "_CHUNK", 64)
    monkeypatch.setattr(command, "_LONGEST_LOOK", 128)
    append(out, "a=1\n" * 1000)
    follower.look()
    assert 0 < len(seen.values) < 100
    follower.finish()
    assert len(seen.values) == 1000


def test_a_pattern_that_never_ends_is_given_up(out: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MATCH_S", 0.05)
    follower = OutputFollower(str(out.parent), Stream("a=((?:1|11)+)$", "out"), seen)
    append(out, "a=1\na=" + "1" * 60 + "x\na=1\n")
    assert follower.finish() is False
    assert seen.values == [(1, 1.0)]


@given(st.binary(max_size=300).map(lambda noise: noise + b"a=7\nxa=8"), st.lists(st.integers(0, 40), max_size=20))
def test_values_in_pieces(tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    whole, pieces = Seen(), Seen()
    (folder / "out").write_bytes(content)
    OutputFollower(str(folder), STREAM, whole).finish()
    (folder / "out").unlink()
    follower = OutputFollower(str(folder), STREAM, pieces)
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
