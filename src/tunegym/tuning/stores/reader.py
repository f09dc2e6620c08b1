"""The one reader of a journal, of either kind: it scans, iterates and follows, in one pass and without writing.

A ``Reader`` remembers where it stopped. Each ``read`` continues there and yields the entries appended since
(``ClosedTrial``, ``Steps``, ...); its ``journal`` holds the bookkeeping as of the last one. So a resume scans, a report
iterates and a tracker follows the same file with the same code.

Records are checked as they are read: a torn last line is left out, any other damage is a ``StoreError`` that
names the line. A ``tolerant`` reader leaves damaged lines out and remembers them: the rest can still be shown.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import SEARCH, Episode, EpisodeEnd, JobHandle, OpenTrial, Trial
from tunegym.tuning.model.values import Context
from tunegym.tuning.stores.records import (
    VERSION,
    Record,
    check_counts,
    closed_trial,
    is_record,
    numeric,
    opened_trial,
)

if TYPE_CHECKING:
    from gymnasium import spaces

JOURNAL = "journal.jsonl"
RECENT = 100
"""The mean return is taken over this many episodes."""
OWN_ENDS = ("terminated", "truncated")
"""How an episode ends that the server itself ended."""


@dataclass
class Journal:
    """The bookkeeping of a journal: everything but its closed trials and its steps. It stays small."""

    head: Record | None = None
    sessions: list[Record] = field(default_factory=list)
    elapsed_s: float = 0.0  # from each session's start to its last record, by its own clock
    ended: Record | None = None  # the last session's ``end``; None if it was cut off or still runs
    valid_size: int = 0  # the bytes of whole records; a torn last line follows
    ends_with_newline: bool = True
    handles: dict[int, list[JobHandle]] = field(default_factory=dict)  # of open trials; 0: of live servers
    damage: list[str] = field(default_factory=list)  # file, line and fault of lines that were left out

    # of trials
    open: dict[int, tuple[OpenTrial, float]] = field(default_factory=dict)  # with the time of day of its opening
    used: set[int] = field(default_factory=set)
    searched: bool = False  # whether there is a trial of the search
    after_search: Record | None = None  # the session that began the first trial after the search; None before that
    closed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)  # of steps, too; lost ones count as ``cancelled``

    # of live steps
    spaces: Record | None = None
    spaces_line: int = 0
    upto: int = 0  # the highest number on record as used
    reserved: int = 0  # the highest number that may have been used
    episodes: int = 0  # begun, as far as recorded
    over: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # of episodes that the server ended
    worst: float | None = None
    largest: float = 1.0
    sides: dict[str, int] = field(default_factory=dict)  # rows in the files of actions and observations

    _before_s: float = 0.0
    _servers_of: int = 0
    _base: int = 1  # the first lane has this number, and every ``slots``-th after it
    _unfinished: dict[int, Episode] = field(default_factory=dict)  # by number; empty if not every step is recorded

    @property
    def kind(self) -> str:
        """``trials`` or ``live``."""
        return "live" if (self.head or {}).get("live") else "trials"

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the workload in the last session."""
        return self.sessions[-1]["fingerprint"] if self.sessions else None

    @property
    def taken(self) -> int:
        """The highest number that is or may be used: of a trial, or of a step."""
        return max(self.reserved, max(self.used, default=0))

    def note(self, record: Record, line: int) -> Entry | None:
        """Take the record of a line into account; return the entry that it makes, if any."""
        kind = record["record"]
        if kind == "session":
            self._before_s = self.elapsed_s
        self.elapsed_s = max(self.elapsed_s, self._before_s + record.get("since", 0.0))
        self.ended = record if kind == "end" else None
        match kind:
            case "head":
                self.head = record
            case "session":
                self.sessions.append(record)
                self._base = self.upto + 1
                return SessionMark(record)
            case "end":
                return SessionMark(record)
            case "open":
                trial = opened_trial(record)
                self._note_phase(trial.phase)
                self.used.add(trial.number)
                self.open[trial.number] = trial, record.get("at", 0.0)
            case "close":
                return self._note_close(record)
            case "job":
                return self._note_job(record)
            case "spaces":
                self.spaces, self.spaces_line = record, line
            case "reserve":
                self.reserved = record["upto"]
            case "lost":
                self.upto = max(self.upto, record["last"])
                self._base = self.upto + 1
                self.statuses["cancelled"] += record["last"] - record["first"] + 1
                return Lost(record["first"], record["last"])
            case "steps":
                return self._note_steps(record)
        return None

    def _note_phase(self, phase: str) -> None:
        if phase == SEARCH:
            self.searched, self.after_search = True, None
        elif self.searched and self.after_search is None:
            self.after_search = self.sessions[-1]

    def _note_close(self, record: Record) -> ClosedTrial:
        number, at = record["number"], record.get("at", 0.0)
        opened = self.open.pop(number, None)
        if opened is None:
            if "context" not in record:
                raise ValueError(f"trial {number} was not open")
            opened = OpenTrial(number, dict(record["context"]), {}), at
        self.used.add(number)
        self.handles.pop(number, None)
        self.closed += 1
        self.statuses[record["status"]] += 1
        return ClosedTrial(closed_trial(record, opened[0]), self.fingerprint or "", opened[1], at, self.elapsed_s)

    def _note_job(self, record: Record) -> JobStart:
        if self.kind == "live" and self._servers_of != len(self.sessions):
            self.handles.clear()  # a session that starts servers has ended those of the sessions before
            self._servers_of = len(self.sessions)
        self.handles.setdefault(record["number"], []).append(dict(record["handle"]))
        return JobStart()

    def _note_steps(self, record: Record) -> Steps:
        steps = _steps(record, self.elapsed_s)
        self.upto = max(self.upto, steps.upto)
        self.worst = None if record["worst"] is None else numeric(record["worst"])
        self.largest = numeric(record["largest"])
        self.episodes = max(self.episodes, record["begun"])
        for status, count in record["statuses"].items():
            self.statuses[status] += count
        if steps.actions is None:
            self.sides["action"] = steps.action_row + len(steps.numbers)
        if steps.observations is None:
            self.sides["observation"] = steps.observation_row + len(steps.numbers)
        if (self.head or {}).get("live", {}).get("record", "all") == "all":
            self._follow(steps)
        for episode in steps.over:
            self._unfinished.pop(episode.number, None)
        self._note_over(steps.over)
        return steps

    def _follow(self, steps: Steps) -> None:
        """Add up the episodes of some steps, for the case that no record of their end follows."""
        slots = self.sessions[-1].get("slots") or 1 if self.sessions else 1
        contexts = steps.context_of()
        places: dict[int, list[int]] = {}
        for at, number in enumerate(steps.episodes):
            places.setdefault(number, []).append(at)
        for number, found in places.items():
            first, last = steps.numbers[found[0]], found[-1]
            truncated: EpisodeEnd = "failed" if last in steps.unmeasured else "truncated"
            begun = Episode(number, (first - self._base) % slots, first, 0, 0, 0.0, "cut", contexts[found[0]])
            begun = self._unfinished.get(number, begun)
            self._unfinished[number] = replace(
                begun,
                last=steps.numbers[last],
                length=begun.length + len(found),
                total=begun.total + sum(steps.rewards[at] for at in found),
                end="terminated" if last in steps.terminated else truncated if last in steps.truncated else "cut",
            )

    def _note_over(self, over: list[Episode]) -> None:
        self.over += len(over)
        self.returns.extend(episode.total for episode in over if episode.end in OWN_ENDS)

    def finish_episodes(self) -> list[Episode]:
        """End the episodes whose end a killed session did not record; ``cut``, unless their last step says otherwise.

        Call it once nothing more is written.
        """
        left, self._unfinished = [*self._unfinished.values()], {}
        self._note_over(left)
        return left


# entries ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionMark:
    """A driver started or resumed (``record`` is a ``session``), or came to its end by itself (an ``end``)."""

    record: Record


class JobStart:
    """A process of a trial, or of a live server, was started."""


@dataclass(frozen=True, slots=True)
class ClosedTrial:
    """A closed trial, and the fingerprint of the session that closed it. Time between sessions is not elapsed."""

    trial: Trial
    fingerprint: str
    opened_at: float
    closed_at: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Numbers of a session that was cut off: their steps were taken or not, and nothing of them is on record."""

    first: int
    last: int


@dataclass(frozen=True)
class Steps:
    """Recorded steps that were written together, and the episodes that were over by then; either may be empty.

    Places count from 0. ``actions`` and ``observations`` have an array for each leaf of the space; None if they are in
    a side file, from ``action_row`` or ``observation_row`` on.
    """

    numbers: list[int]
    episodes: list[int]
    rewards: list[float]
    durations: list[float]
    terminated: list[int]  # places
    truncated: list[int]
    actions: list[Any] | None
    observations: list[Any] | None
    action_row: int
    observation_row: int
    contexts: list[tuple[int, Context]]  # with the place from which each holds
    metrics: dict[str, list[float | None]]
    unmeasured: dict[int, tuple[str, str]]  # status and reason by place
    over: list[Episode]
    upto: int  # the highest number used by then, recorded or not
    at: float
    elapsed_s: float
    weight_versions: list[int]  # of the policy that chose each action; empty if its agent doesn't count them

    def context_of(self) -> list[Context]:
        """The context of each step."""
        found: list[Context] = []
        for at, (start, context) in enumerate(self.contexts):
            end = self.contexts[at + 1][0] if at + 1 < len(self.contexts) else len(self.numbers)
            found += [context] * (end - start)
        return found or [{}] * len(self.numbers)


Entry: TypeAlias = SessionMark | JobStart | ClosedTrial | Steps | Lost


class DamageError(StoreError):
    """A line of a journal that is no record, or has parts that can't be read."""

    def __init__(self, path: Path, line: int, kind: str, fault: str) -> None:
        super().__init__(
            f"{path}: line {line}{f' ({kind})' if kind else ''} is damaged: {fault}",
            hint=f"restore the file; or keep a copy, cut it before that line (head -n {line - 1}), and resume",
        )


class Reader:
    """Reads one journal from its start; a later ``read`` continues where the last one stopped.

    Attributes:
        journal: the bookkeeping as of the last record read.
    """

    def __init__(self, path: Path, *, tolerant: bool = False) -> None:
        self.path = path
        self.journal = Journal()
        self._tolerant = tolerant
        self._line = 0

    def read(self, *, last: bool = False) -> Iterator[Entry]:
        """The entries appended since the last call. A line that is still being written is left for the next call.

        You may stop early; the next call continues with the following entry. A missing file is an empty one.

        Args:
            last: take also a last record that lost only its newline; nothing is being written.

        Raises:
            StoreError: the journal is damaged (unless ``tolerant``), or its format is newer.
        """
        return (entry for _, entry in self._read(last) if entry is not None)

    def _read(self, last: bool) -> Iterator[tuple[Record | None, Entry | None]]:
        journal = self.journal
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(journal.valid_size)
            for line in file:
                whole = line.endswith(b"\n")
                if not whole and not last:
                    return
                record, entry = _parsed(line), None
                if record is None and not (whole and file.peek(1)):
                    return  # torn: cut, or zeros that never reached the disk
                try:
                    entry = self._take(record)
                except DamageError as error:
                    if not self._tolerant:
                        raise
                    journal.damage.append(f"{error.message}; it is left out")
                self._line += 1
                journal.valid_size += len(line)
                journal.ends_with_newline = whole
                yield record, entry
                if not whole:
                    return

    def _take(self, record: Record | None) -> Entry | None:
        """Take one record into account; ``DamageError`` if a part of it is missing or has the wrong type or length."""
        line = self._line + 1
        if record is None:
            raise DamageError(self.path, line, "", "it is not a record, and not the last line")
        kind = record["record"]
        try:
            check_counts(record)
            if kind == "head" and record["version"] != VERSION:
                raise StoreError(
                    f"{self.path}: has journal format {record['version']}, this tunegym reads format {VERSION}",
                    hint="use the version of tunegym that wrote it",
                )
            return self.journal.note(record, line)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DamageError(self.path, line, kind, f"{error} ({type(error).__name__})") from error


def scan(path: Path) -> Journal:
    """Read a journal once for its bookkeeping; an empty one if there is no file."""
    reader = Reader(path)
    for _ in reader._read(last=True):
        pass
    return reader.journal


def entries(path: Path) -> Iterator[Entry]:
    """Every entry of a journal, read once."""
    return Reader(path).read(last=True)


def records(path: Path) -> Iterator[Record]:
    """Every record of a journal as plain data."""
    return (record for record, _ in Reader(path)._read(last=True) if record is not None)


def steps(path: Path) -> Iterator[Steps | Lost]:
    """Every recorded step in groups, in the order of writing, damaged ones left out; in between the lost numbers."""
    for one in Reader(path, tolerant=True).read(last=True):
        if isinstance(one, Lost) or (isinstance(one, Steps) and one.numbers):
            yield one


def episodes(path: Path) -> Iterator[Episode]:
    """Every episode that is over, in the order of ending, as far as its record is not damaged."""
    for one in Reader(path, tolerant=True).read(last=True):
        if isinstance(one, Steps):
            yield from one.over


def head_of(path: Path) -> Record | None:
    """The journal's first record, without reading the rest; None if there is none."""
    return next(records(path), None)


def spaces_of(path: Path, journal: Journal) -> tuple[spaces.Space[Any], spaces.Space[Any]] | None:
    """The live server's action and observation space; None before its first answer. Raises ``StoreError``."""
    if journal.spaces is None:
        return None
    from tunegym.tuning.spaces import SpaceError, build  # only here: a status needs no gymnasium

    try:
        return build(journal.spaces["action"]), build(journal.spaces["observation"])
    except SpaceError as error:
        raise DamageError(path, journal.spaces_line, "spaces", str(error)) from None


def mean_return(returns: Collection[float]) -> float | None:
    """The mean of some returns; None of none."""
    if not returns:
        return None
    total = sum(returns)
    return total / len(returns) if math.isfinite(total) else sum(one / len(returns) for one in returns)


def _parsed(line: bytes) -> Record | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if is_record(record) else None


def _steps(record: Record, elapsed_s: float) -> Steps:
    count, first = record["count"], record.get("first")
    actions, action_row = _elements(record, "action", count)
    observations, observation_row = _elements(record, "observation", count)
    metrics = record.get("metrics", {})
    steps = Steps(
        _column(record, "numbers", count, int) if first is None else list(range(first, first + count)),
        _column(record, "episode", count, int),
        _column(record, "reward", count, int, float),
        _column(record, "duration_s", count, int, float),
        record.get("terminated", []),
        record.get("truncated", []),
        actions,
        observations,
        action_row,
        observation_row,
        [(at, dict(context)) for at, context in record.get("context", ())],
        {name: _column(metrics, name, count, int, float, type(None)) for name in metrics},
        {at: (status, why) for at, status, why in record.get("unmeasured", ())},
        [
            Episode(number, lane, first, last, length, numeric(total), end, dict(context))
            for number, lane, first, last, length, total, end, context in record.get("episodes", ())
        ],
        record["upto"],
        record.get("at", 0.0),
        elapsed_s,
        _column(record, "weight_version", count, int) if "weight_version" in record else [],
    )
    places = [*steps.terminated, *steps.truncated, *steps.unmeasured, *(at for at, _ in steps.contexts)]
    if not set(range(count)).issuperset(places) or len(steps.context_of()) != count:
        raise ValueError(f"terminated, truncated, unmeasured or context doesn't fit its {count} steps")
    return steps


def _column(columns: Mapping[str, Any], name: str, count: int, *types: type) -> list[Any]:
    column = columns.get(name, [])
    if len(column) != count or not set(types).issuperset(map(type, column)):
        raise ValueError(f"{name} doesn't fit its {count} steps")
    return column


def _elements(record: Record, name: str, count: int) -> tuple[list[Any] | None, int]:
    """The inline elements, or None and the row of the side file; only their space tells what a row holds."""
    found = record.get(name, [])
    if isinstance(found, dict):
        return None, found["row"]
    if any(len(leaf) != count for leaf in found):
        raise ValueError(f"{name} doesn't fit its {count} steps")
    return found, 0
