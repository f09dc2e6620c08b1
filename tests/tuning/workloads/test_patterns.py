from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import patterns
from tunegym.tuning.workloads.patterns import find, may_never_end
from tunegym.tuning.workloads.patterns_main import search


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+$", r"(?:\d*x)*y", "((ab)*c){2,}", "(a{1,9})*"])
def test_suspects(pattern: str) -> None:
    assert may_never_end(pattern)


@pytest.mark.parametrize("pattern", ["value=([0-9.]+)", r"^a*b+c{2,}$", "(ab)+", "(a|b)", r"seconds: (\S+)"])
def test_what_is_above_suspicion(pattern: str) -> None:
    assert not may_never_end(pattern)


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("text", [b"", b"nothing", b"x=1 x=22\nx=333 \xff"])
def test_a_suspect_gives_the_same_in_its_own_process(tmp_path: Path, which: str, text: bytes) -> None:
    file = tmp_path / "out.txt"
    file.write_bytes(text)
    suspect = "x=((?:[0-9]+)+)"
    assert may_never_end(suspect)
    assert find(suspect, which, file) == search(suspect, which, str(file))  # type: ignore[arg-type]


def test_a_match_that_never_ends_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 0.5)
    file = tmp_path / "out.txt"
    file.write_bytes(b"a" * 60)
    with pytest.raises(MetricError, match=r"takes more than 0.5 s to match in out.txt"):
        find("(a+)+b", "last", file)
