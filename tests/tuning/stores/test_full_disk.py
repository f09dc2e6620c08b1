"""A full disk is a clear error without a corrupt record, and the run goes on when there is space again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Measured, OpenTrial, Trial
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.trials import JournalStore

Journals = Callable[..., JournalStore]


@pytest.fixture
def small_disk(tmp_path: Path, mount: Callable[[Path, str], Path]) -> Path:
    """A file system with room for a few hundred records."""
    return mount(tmp_path / "disk", "size=256k")


def closed(trial: OpenTrial) -> Trial:
    return Trial(trial.number, trial.context, trial.action, Measured(({"score": 1.0},)), 1.0, 0.1)


def fill(store: JournalStore) -> int:
    """Trials until the disk is full; how many closed."""
    done: list[int] = []

    def go_on() -> None:
        while len(done) < 100_000:
            trial = store.open(0, {}, {"x": 1})
            store.close_trial(closed(trial))
            done.append(trial.number)

    with pytest.raises(StoreError, match="No space left") as error:
        go_on()
    assert "resume" in (error.value.hint or "")
    return len(done)


def check_sound(folder: Path, done: int) -> None:
    """Every line is a record, and no closed trial is missing."""
    data = (folder / reader.JOURNAL).read_bytes()
    assert data.endswith(b"\n")
    records = [orjson.loads(line) for line in data.splitlines()]
    assert [record["number"] for record in records if record["record"] == "close"] == list(range(1, done + 1))


def test_full_disk(journal: Journals, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    store = journal(small_disk / "e")
    with ballast.open("wb") as file:
        file.write(b"x" * 150_000)
    done = fill(store)
    assert done > 0
    check_sound(small_disk / "e", done)
    used = store.highest
    with pytest.raises(StoreError):  # it doesn't come back to life half-way
        store.open(1, {}, {"x": 1})
    with pytest.raises(StoreError):
        store.close()

    with pytest.raises(StoreError):  # still full: it says so, and spoils nothing
        journal(small_disk / "e")
    check_sound(small_disk / "e", done)

    ballast.unlink()
    again = journal(small_disk / "e")
    assert [trial.number for _, trial in again.recorded()] == list(range(1, done + 1))
    assert again.highest == used
    for trial in again.open_trials():
        again.close_trial(closed(trial))
    again.close_trial(closed(again.open(0, {}, {"x": 1})))
    again.close()
    check_sound(small_disk / "e", used + 1)
    rows = (small_disk / "e" / "trajectory.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, used + 2))


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.stores.records import Head, Session

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
head = Head("e", "token", 1, "random_search", {"x": {"values": [1, 2, 3]}}, {}, ["score"])
store = JournalStore(Path(sys.argv[1]), head, Session("f"))
done = 0
try:
    while True:
        trial = store.open(0, {}, {"x": 1})
        outcome = Measured(({"score": 1.0},))
        store.close_trial(Trial(trial.number, {}, trial.action, outcome, 1.0, 0.1))
        done += 1
except StoreError as error:
    print(done, store.highest, str(error).replace(chr(10), " "))
try:
    store.close()
except StoreError:
    pass
"""


@pytest.mark.parametrize("limit", [2000, 2001, 2040, 2085])
def test_file_at_its_limit(journal: Journals, tmp_path: Path, limit: int) -> None:
    """The system writes part of a record and refuses the rest: that part is taken back."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)]
    done, used, message = subprocess.check_output(command, text=True).split(" ", 2)
    assert "File too large" in message
    assert "then resume" in message
    assert int(done) > 0
    check_sound(tmp_path, int(done))
    assert os.stat(tmp_path / reader.JOURNAL).st_size <= limit
    again = journal(tmp_path)
    assert again.highest == int(used)
    for trial in again.open_trials():
        again.close_trial(closed(trial))
    again.close()
    check_sound(tmp_path, int(used))


def test_folder_that_is_a_file(journal: Journals, tmp_path: Path) -> None:
    (tmp_path / "e").write_text("in the way")
    with pytest.raises(StoreError, match="can't be written"):
        journal(tmp_path / "e")
