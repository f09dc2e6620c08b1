from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tests.conftest import no_space, raising
from tests.tuning.stores.test_contract import closed

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Failed, Measured, OpenTrial, TimedOut, Trial
from tunegym.tuning.stores import journal as journal_module
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.trials import JournalStore

Journals = Callable[..., JournalStore]


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def written(journal: Journals, tmp_path: Path) -> bytes:
    """A journal with every kind of record in it, and two trials still open."""
    store = journal(tmp_path / "written", env_params=("load",))

    def opened(lane: int) -> OpenTrial:
        number = store.hold(lane)
        return store.open(lane, {"load": f'é "{number}"\n'}, {"x": number})

    store.hold(3)
    store.hold(4)
    first, second = opened(4), opened(0)
    store.job_started(first.number, {"job": "77"})
    store.close_trial(closed(second, Measured(({"score": 1.0}, {"score": 2.0}))))
    store.close_trial(closed(first, Failed('a "reason" \\ of two\nlines')))
    store.close_trial(closed(opened(0), Measured(({"score": 1.0}, {"score": 2.0})), cached_from=second.number))
    store.cancel_held(lambda _: {"load": "none"}, lambda: -9.0)
    opened(0)
    opened(1)
    store.close_trial(closed(opened(2), TimedOut()))
    store.end(0, "the agent ended")
    store.close()
    return (tmp_path / "written" / reader.JOURNAL).read_bytes()


class Cut:
    """What a journal must say after it was cut: a record counts if at most the end of its line is missing."""

    def __init__(self, data: bytes, size: int) -> None:
        whole = [orjson.loads(line) for line in data[: size + 1].splitlines(keepends=True) if line.endswith(b"\n")]
        opened = {record["number"] for record in whole if record["record"] == "open"}
        self.closed = [record["number"] for record in whole if record["record"] == "close"]
        self.open = sorted(opened.difference(self.closed))
        self.used = opened.union(self.closed)
        self.lowest_free = next(number for number in range(1, 100) if number not in self.used)
        self.ended = bool(whole) and whole[-1]["record"] == "end"


def check_taken_over(store: JournalStore, folder: Path, said: Cut) -> None:
    assert [trial.number for _, trial in store.recorded()] == said.closed
    assert [trial.number for trial in store.open_trials()] == said.open
    assert store.highest == max(said.used, default=0)
    assert (store.past.ended is not None) == said.ended
    trial = store.open(0, {"load": "more"}, {"x": 3})
    assert trial.number == said.lowest_free
    for opened in store.open_trials():
        store.close_trial(closed(opened))
    store.close()
    records = lines(folder / reader.JOURNAL)  # every line parses
    assert records[0]["record"] == "head"
    assert sorted({*said.used, trial.number}) == sorted(r["number"] for r in records if r["record"] == "close")
    assert len((folder / "trajectory.csv").read_text().splitlines()) > 1


@pytest.mark.slow
@pytest.mark.invariant
def test_cut_at_every_byte(journal: Journals, written: bytes, tmp_path: Path) -> None:
    """Whatever is whole before the cut is there, the torn record is gone, and it goes on from there."""
    for size in range(len(written) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / reader.JOURNAL).write_bytes(written[:size])
        check_taken_over(journal(folder, env_params=("load",)), folder, Cut(written, size))


@pytest.mark.parametrize("size", [0, 1, 40, 400, 700, -60, -2])
def test_cut_and_padded_with_zeros(journal: Journals, written: bytes, tmp_path: Path, size: int) -> None:
    """A file system that lost power may leave zeros where the last records would have been."""
    size %= len(written)
    (tmp_path / reader.JOURNAL).write_bytes(written[:size] + b"\0" * 5000)
    whole = written.rfind(b"\n", 0, size) + 1
    check_taken_over(journal(tmp_path, env_params=("load",)), tmp_path, Cut(written, whole))


@pytest.mark.parametrize("broken", [b'{"record": "op', b"\0\0\0\n", b"\n", b"[1]\n", b'{"number": 3}\n', b"\xff\xfe\n"])
def test_broken_line_in_the_middle(journal: Journals, written: bytes, tmp_path: Path, broken: bytes) -> None:
    """Nothing is guessed, cut off or overwritten: the line is named."""
    parts = written.splitlines(keepends=True)
    parts[4] = broken if broken.endswith(b"\n") else broken + b"\n"
    data = b"".join(parts)
    (tmp_path / reader.JOURNAL).write_bytes(data)
    with pytest.raises(StoreError, match="line 5 is damaged") as error:
        journal(tmp_path, env_params=("load",))
    assert error.value.hint is not None
    assert (tmp_path / reader.JOURNAL).read_bytes() == data
    assert not (tmp_path / "writer.lock").exists()


def test_newer_version_is_refused(journal: Journals, tmp_path: Path) -> None:
    journal(tmp_path).close()
    path = tmp_path / reader.JOURNAL
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4'))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="format 4"):
        journal(tmp_path)
    with pytest.raises(StoreError, match="format 4"):
        list(reader.entries(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("experiment", "other"),
        ("seed", 2),
        ("agent", "grid_search"),
        ("knobs", {"x": {"values": [1, 2]}}),
        ("knobs", {"x": {"values": [1, 2, 3.0]}}),
        ("knobs", {"x": {"values": [True, 2, 3]}}),
        ("env_params", {"load": {"values": [1, 2]}}),
        ("judged", {"metric": "score", "goal": "min"}),
        ("metrics", ["score", "more"]),
        ("repeats", 2),
    ],
)
def test_another_experiment_is_refused(journal: Journals, tmp_path: Path, key: str, value: Any) -> None:
    """Also one whose candidates only look the same. The journal and its views stay as they were."""
    store = journal(tmp_path)
    store.close_trial(closed(store.open(0, {}, {"x": 1})))
    store.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(StoreError, match=f"another `{key}`"):
        journal(tmp_path, **{key: value})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_synced_while_it_runs_and_at_close(
    journal: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """Every second in which something was written, and once more at the end."""
    assert journal_module.FSYNC_S <= 1.0
    synced: list[int] = []
    monkeypatch.setattr(journal_module.os, "fsync", synced.append)
    store = journal(tmp_path)
    wait_until(lambda: synced, "a first sync")
    before = len(synced)
    store.open(0, {}, {"x": 1})
    wait_until(lambda: len(synced) > before, "another sync")
    before = len(synced)
    store.close()
    assert len(synced) > before


def test_disk_that_refuses_to_sync_is_told(journal: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At close at the latest: what may not be on the disk is never said to be."""
    store = journal(tmp_path)
    store.open(0, {}, {"x": 1})
    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "fsync", raising(OSError, 5, "Input/output error"))
        with pytest.raises(StoreError, match="Input/output error"):
            store.close()
    assert journal(tmp_path).highest == 1  # the lock is free again


def test_full_disk_leaves_no_part_of_a_record(
    journal: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of it the system took is taken back, and a resume goes on from there."""
    store = journal(tmp_path)
    trial, path, write = store.open(0, {}, {"x": 1}), tmp_path / reader.JOURNAL, os.write
    store.close()
    for size in range(200):
        store = journal(tmp_path)
        before, sizes = path.read_bytes(), iter([size] if size else [])

        def nearly_full(file: int, data: bytes, sizes: Iterator[int] = sizes) -> int:
            if (fits := next(sizes, None)) is None:
                no_space()
            return write(file, data[: min(fits, len(data) - 1)])

        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "write", nearly_full)
            with pytest.raises(StoreError, match=r"No space left(.|\n)*then resume"):
                store.close_trial(closed(trial))
        with pytest.raises(StoreError, match="No space left"):
            store.close()
        assert path.read_bytes() == before
    store = journal(tmp_path)
    assert store.open_trials() == [trial]
    store.close_trial(closed(trial))
    assert lines(path)[-1]["number"] == 1


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_journal_of_another_format_is_refused(version: int, journal: Journals, tmp_path: Path) -> None:
    journal(tmp_path).close()
    path = tmp_path / reader.JOURNAL
    path.write_bytes(path.read_bytes().replace(b'"version":3', f'"version":{version}'.encode()))
    with pytest.raises(StoreError, match=f"has journal format {version}, this tunegym reads format 3"):
        journal(tmp_path)


def test_reading_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was only half there when it was read is the last one, even if more of it comes meanwhile."""
    path = tmp_path / reader.JOURNAL
    whole = b'{"record":"end","code":0,"reason":"' + b"x" * 3000 + b'"}\n'
    decode = reader.DECODER.decode

    def while_it_is_written(line: bytes) -> Any:
        if not line.endswith(b"\n"):
            with path.open("ab") as file:
                file.write((whole + whole)[len(line) :])
        return decode(line)

    monkeypatch.setattr(reader, "DECODER", SimpleNamespace(decode=while_it_is_written))
    for there in (1, 1000, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole * 100 + whole[:there])
        complete = there == len(whole) - 1  # only its end is missing
        assert sum(1 for _ in reader.entries(path)) == (101 if complete else 100)


def test_phase_and_warmup_are_recorded(journal: Journals, tmp_path: Path) -> None:
    """A journal of the search alone looks as it always did."""
    store = journal(tmp_path, baseline={"x": 2}, confirm={"mode": "auto"})
    store.open(0, {}, {"x": 1})
    store.open(1, {}, {"x": 2}, phase="confirm")
    outcome = Measured(({"score": 1.0},))
    store.close_trial(Trial(1, {}, {"x": 1}, outcome, 1.0, 0.1))
    store.close_trial(Trial(2, {}, {"x": 2}, outcome, 1.0, 0.1, phase="confirm", warmup=({"score": 3.0},)))
    store.close()
    head, _, first, *_ = lines(store.path)
    assert (head["baseline"], head["confirm"]["mode"]) == ({"x": 2}, "auto")
    assert "phase" not in first
    again = [trial for _, trial in journal(tmp_path, baseline={"x": 2}, confirm={"mode": "auto"}).recorded()]
    assert [(trial.phase, trial.warmup) for trial in again] == [("search", ()), ("confirm", ({"score": 3.0},))]
    past = reader.scan(store.path)
    assert past.searched
    assert past.after_search is not None
