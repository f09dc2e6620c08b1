"""A tracker's process can fail, hang or die: its driver continues."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tunegym.tuning.model.head import Head
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.trackers import process
from tunegym.tuning.trackers.feed import Item
from tunegym.tuning.trackers.process import TrackerProcess, TrackerSpec

pytestmark = pytest.mark.slow  # every tracker is a child process


class TroubledSink:
    """Takes no trial; ``trouble`` says what it does instead."""

    def __init__(self, trouble: str) -> None:
        self.trouble = trouble
        if trouble == "build":
            raise ModuleNotFoundError("No module named 'tracker'")

    def open(self, head: Head) -> set[int]:
        print("a library that prints", flush=True)  # noqa: T201
        return set()

    def send(self, items: Sequence[Item]) -> Iterator[int]:
        if self.trouble == "hang":
            threading.Event().wait()
        elif self.trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.trouble == "interrupt":
            raise KeyboardInterrupt
        raise OSError(self.trouble)

    def close(self) -> None: ...


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrackerProcess]:
    """A tracker's process with the sink above, for the journal in ``tmp_path / "e"``."""
    (tmp_path / "sinks_of_test.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(trouble: str = "") -> TrackerProcess:
        return TrackerProcess(TrackerSpec("test", "sinks_of_test:TroubledSink", {"trouble": trouble}), tmp_path / "e")

    return start


@pytest.fixture
def journal(store: Callable[[], JournalStore], add: Callable) -> None:
    opened = store()
    for number in range(3):
        add(opened, float(number))
    opened.close()


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("no space left", ["tracker test is away: OSError: no space left; trials go on, and it is tried again"]),
        ("build", ["tracker test ended: ModuleNotFoundError: No module named 'tracker'; trials go on without it"]),
        ("interrupt", ["tracker test ended: KeyboardInterrupt: ; trials go on without it"]),
        ("die", []),  # it can say nothing; that it lacks trials is noticed all the same
    ],
)
def test_trouble_is_a_warning(
    journal: None, started: Callable, trouble: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    started(trouble).finish()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:-1] == words
    assert messages[-1].startswith("tracker test: 3 of 3 trials were not sent; the journal has them")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_one_that_hangs_is_left_behind(
    journal: None, started: Callable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LONGEST_S", 0.5)
    tracker = started("hang")
    pid = tracker._child.pid
    tracker.finish()
    assert "3 of 3 trials were not sent" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_can_not_be_started(
    journal: None, started: Callable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    started().finish()
    assert "tracker test can't be started" in caplog.text
