from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunegym.core.files import write_atomic


@pytest.mark.parametrize("content", ["é\n", b"\x00\xff", memoryview(b"rows")])
def test_it_replaces_what_is_there(tmp_path: Path, content: str | bytes | memoryview) -> None:
    place = tmp_path / "file.txt"
    place.write_text("before")
    write_atomic(place, content)
    assert place.read_bytes() == (content.encode() if isinstance(content, str) else bytes(content))
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_it_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file.txt"
    seen: list[tuple[bool, bytes]] = []
    synced = os.fsync

    def fsync(file: int) -> None:
        seen.append((place.exists(), (tmp_path / "file.txt.new").read_bytes()))
        synced(file)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(place, "all of it")
    assert seen == [(False, b"all of it")]


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from tunegym.core.files import write_atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomic(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(error.strerror)
"""


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path: Path) -> None:
    place = tmp_path / "file.txt"
    place.write_text("before")
    told = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(place)], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.strip() == os.strerror(errno.EFBIG)
    assert place.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file.txt", "all of it")
    assert list(tmp_path.iterdir()) == []
