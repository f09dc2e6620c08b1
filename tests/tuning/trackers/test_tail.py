from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tunegym.tuning.model.outcome import Cancelled, Failed
from tunegym.tuning.stores.journal import JournalStore
from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.trackers.tail import Tail


def test_follows_what_is_written(tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    tail = Tail(tmp_path / "e" / JOURNAL)
    assert tail.read(10) == []
    assert tail.head is None
    journal = store()
    first = add(journal, 1.0)
    (entry,) = tail.read(10)
    assert entry.trial == first
    assert entry.opened_at <= entry.closed_at
    assert tail.head is not None
    assert tail.head["run"] == "a-token"
    assert tail.read(10) == []
    rest = [add(journal, 2.0), add(journal, Failed("why"))]
    assert [entry.trial for entry in tail.read(1)] == rest[:1]
    assert [entry.trial for entry in tail.read(10)] == rest[1:]
    tail.rewind()
    assert [entry.trial for entry in tail.read(10)] == [first, *rest]
    journal.close()


def test_numbers_that_were_never_opened(tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    journal = store()
    journal.hold(1)  # trial 1 is held by a lane that never uses it
    add(journal, 1.0)
    journal.cancel_held(lambda _: {"load": 0.2}, lambda: -1.0)
    journal.close()
    second, first = Tail(tmp_path / "e" / JOURNAL).read(10)
    assert (second.trial.number, first.trial.number) == (2, 1)
    assert isinstance(first.trial.outcome, Cancelled)
    assert first.trial.action == {}
    assert first.opened_at == first.closed_at


def test_waits_for_whole_lines(tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    journal = store()
    add(journal, 1.0)
    add(journal, 2.0)
    journal.close()
    whole = (tmp_path / "e" / JOURNAL).read_bytes()
    path = tmp_path / "growing"
    tail = Tail(path)
    seen = []
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        seen += tail.read(10)
    assert [entry.trial.number for entry in seen] == [1, 2]


def test_a_torn_line_that_a_resume_cuts_off(tmp_path: Path, store: Callable[[], JournalStore], add: Callable) -> None:
    path = tmp_path / "e" / JOURNAL
    journal = store()
    add(journal, 1.0)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"record": "close", "num\0\0\n')
    tail = Tail(path)
    assert len(tail.read(10)) == 1
    journal = store()
    add(journal, 2.0)
    journal.close()
    assert [entry.trial.number for entry in tail.read(10)] == [2]
