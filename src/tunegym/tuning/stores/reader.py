"""Reading a journal: what a resume, a report or a status looks at. Never writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.errors import StoreError
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.stores.records import VERSION, Record, closed_trial

JOURNAL = "journal.jsonl"


@dataclass
class Journal:
    """What a journal says, without the closed trials themselves (those are streamed by ``trials``).

    Attributes:
        valid_size: the bytes that hold whole records; what follows is a torn last line.
        ends_with_newline: False if the last whole record lost just its line's end.
        open: trials without an outcome by number, with the handles of their jobs.
        used: every number that has a record.
        elapsed_s: time that earlier sessions spent, from their start to their last record, by their own clocks.
        ended: how the last session ended (its ``end`` record), None if it was cut off or still runs.
    """

    head: Record | None = None
    sessions: list[Record] = field(default_factory=list)
    open: dict[int, OpenTrial] = field(default_factory=dict)
    handles: dict[int, list[JobHandle]] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    closed: int = 0
    elapsed_s: float = 0.0
    ended: Record | None = None
    valid_size: int = 0
    ends_with_newline: bool = True

    @property
    def fingerprint(self) -> str | None:
        """What the last session measured."""
        return self.sessions[-1]["fingerprint"] if self.sessions else None


_NOTHING: frozenset[str] = frozenset({"record"})
_NEEDS = {
    "head": frozenset({"version", "experiment", "run"}),
    "session": frozenset({"at", "fingerprint", "parts"}),
    "open": frozenset({"number", "context", "action"}),
    "job": frozenset({"number"}),
    "close": frozenset({"number", "status", "reward", "duration_s"}),
    "end": frozenset({"code", "reason"}),
    "spaces": frozenset({"action", "observation"}),
    "reserve": frozenset({"upto"}),
    "steps": frozenset({"upto", "count", "begun", "statuses", "worst", "largest"}),
    "lost": frozenset({"first", "last"}),
}
"""What a record must have to be one."""


def records(path: Path, journal: Journal | None = None) -> Iterator[Record]:
    """The journal's whole records in order. A torn last line is left out; ``journal`` learns where it begins.

    Raises:
        StoreError: a line before the last is broken, or the format is a newer one.
    """
    with path.open("rb") as file:
        size = 0
        for line_number, line in enumerate(file, start=1):
            record = _parsed(line)
            if record is None:
                # A line without an end is the last one, or was when it was read: a writer may go on meanwhile.
                if line.endswith(b"\n") and file.read(1):
                    raise _broken(path, line_number)
                return
            size += len(line)
            if journal is not None:
                journal.valid_size = size
                journal.ends_with_newline = line.endswith(b"\n")
            if record["record"] == "head" and record["version"] > VERSION:
                raise StoreError(
                    f"{path}: has journal format {record['version']}, this tunegym reads up to {VERSION}",
                    hint="install a newer tunegym",
                )
            yield record
            if not line.endswith(b"\n"):
                return


def _parsed(line: bytes) -> Record | None:
    """A line as a record; None if it is torn (cut, or never reached the disk and is zeros)."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not _NEEDS.get(str(record.get("record")), _NOTHING) <= record.keys():
        return None
    return record if record["record"] != "job" or _names_job(record) else None


def _names_job(record: Record) -> bool:
    return isinstance(record.get("handle", {}), dict) and ("handle" in record or {"pid", "start_time"} <= record.keys())


_CUT = "keep a copy, then cut the file before that record and resume"


def _broken(path: Path, line_number: int) -> StoreError:
    return StoreError(
        f"{path}: line {line_number} is broken, and it is not the last one",
        hint=f"keep a copy, then cut the file before that line (head -n {line_number - 1}) and resume",
    )


def scan(path: Path) -> Journal:
    """Read a journal once for everything but its closed trials."""
    journal = Journal()
    spent = 0.0
    for record in records(path, journal):
        kind = record["record"]
        if kind == "session":
            journal.elapsed_s += spent
            spent = 0.0
            journal.sessions.append(record)
        elif kind == "head":
            journal.head = record
        else:
            _note(journal, kind, record)
        spent = max(spent, record.get("since", 0.0))
        journal.ended = record if kind == "end" else None
    journal.elapsed_s += spent
    return journal


def _note(journal: Journal, kind: str, record: Record) -> None:
    number = record.get("number", 0)
    if kind == "open":
        journal.used.add(number)
        journal.open[number] = OpenTrial(number, record["context"], record["action"])
    elif kind == "job":
        journal.handles.setdefault(number, []).append(job_handle(record, journal.sessions))
    elif kind == "close":
        journal.used.add(number)
        journal.open.pop(number, None)
        journal.handles.pop(number, None)
        journal.closed += 1


def job_handle(record: Record, sessions: Sequence[Record]) -> JobHandle:
    """The handle in a ``job`` record. Version 1 has a pid and a start time instead, of its session's boot."""
    if "handle" in record:
        return record["handle"]
    boot = sessions[-1].get("boot") if sessions else None
    return {"pid": record["pid"], "start": record["start_time"], "boot": boot}


def trials(path: Path) -> Iterator[tuple[str, Trial]]:
    """Every closed trial in the order of closing, with the fingerprint it was measured under."""
    opened: dict[int, OpenTrial] = {}
    fingerprint = ""
    for record in records(path):
        kind = record["record"]
        if kind == "session":
            fingerprint = record["fingerprint"]
        elif kind == "open":
            opened[record["number"]] = OpenTrial(record["number"], record["context"], record["action"])
        elif kind == "close":
            number = record["number"]
            if number not in opened and "context" not in record:
                raise StoreError(f"{path}: trial {number} is closed, and was not open", hint=_CUT)
            decision = opened.pop(number, None) or OpenTrial(number, record["context"], {})
            yield fingerprint, closed_trial(record, decision)


def head_of(path: Path) -> dict[str, Any] | None:
    """The journal's first record, without reading the rest."""
    return next(records(path), None)
