"""Following a journal while somebody writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.stores.records import Record, closed_trial
from tunegym.tuning.trackers.points import Point, Points


@dataclass(frozen=True, slots=True)
class Entry:
    """A closed trial as a tracker is told of it; times are seconds since 1970."""

    trial: Trial
    opened_at: float
    closed_at: float

    @property
    def number(self) -> int:
        """The trial's."""
        return self.trial.number


class Tail:
    """The closed trials of a journal, in the order of closing, as they come; of a live one points of its episodes.

    Only whole lines are read, so a line that is being written, or was torn and will be cut off by a resume, is
    waited for. What is held in memory are the open trials.

    Points are the same every time that a journal is read: one that is not complete when a session ends is told then.

    Attributes:
        head: the journal's first record; None before it was read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.head: Record | None = None
        self.rewind()

    def rewind(self) -> None:
        """Start over with the first trial."""
        self._offset = 0
        self._open: dict[int, tuple[OpenTrial, float]] = {}
        self._points = Points()

    def read(self, most: int) -> list[Entry | Point]:
        """About ``most`` trials that were closed since the last call, or as many points."""
        found: list[Entry | Point] = []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while len(found) < most:
                    record = _whole(file.readline())
                    if record is None:
                        break
                    self._offset = file.tell()
                    found += self._taken(record)
        except FileNotFoundError:
            return []
        return found

    def rest(self) -> list[Entry | Point]:
        """What is left when nothing more is written: the last point, which is not complete."""
        return [*self._points.flush()]

    def _taken(self, record: Record) -> list[Entry | Point]:
        kind = record["record"]
        if kind == "head":
            self.head = record
        elif kind == "open":
            number = record["number"]
            self._open[number] = OpenTrial(number, record["context"], record["action"]), record["at"]
        elif kind == "close":
            number, at = record["number"], record["at"]
            decision, opened_at = self._open.pop(number, None) or (OpenTrial(number, record["context"], {}), at)
            return [Entry(closed_trial(record, decision), opened_at, at)]
        elif kind == "steps":
            return [*self._points.add(record)]
        elif kind in ("session", "end"):
            return self.rest()
        return []


def _whole(line: bytes) -> Record | None:
    """A line as a record; None if it is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "record" in record else None
