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


def closed(trial: OpenTrial) -> Trial:
    return Trial(trial.number, trial.context, trial.action, Measured(({"score": 1.0},)), 1.0, 0.1)


def check_sound(folder: Path, done: int) -> None:
    """Every line is a record, and no closed trial is missing."""
    data = (folder / reader.JOURNAL).read_bytes()
    assert data.endswith(b"\n")
    records = [orjson.loads(line) for line in data.splitlines()]
    assert [record["number"] for record in records if record["record"] == "close"] == list(range(1, done + 1))


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
