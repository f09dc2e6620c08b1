"""The one reader of a journal, of either kind: it scans, iterates and follows, in one pass and without writing.

A ``Reader`` remembers where it stopped. Each ``read`` continues there and yields the entries appended since: the
records themselves, and a ``ClosedTrial`` for the end of a trial. Its ``journal`` holds the bookkeeping as of the last
one. So a resume scans, a report iterates and a tracker follows the same file with the same code.

Records are checked as they are read: a torn last line is left out, any other damage is a ``StoreError`` that
names the line. A ``tolerant`` reader leaves damaged lines out and remembers them: the rest can still be shown.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from tunegym.core.errors import StoreError
from tunegym.tuning.model.head import VERSION, Head
from tunegym.tuning.model.trial import REPEAT, SEARCH, Episode, EpisodeEnd, JobHandle, OpenTrial, Trial
from tunegym.tuning.stores.records import (
    DECODER,
    CloseRecord,
    EndRecord,
    JobRecord,
    Lost,
    OpenRecord,
    Record,
    ReserveRecord,
    SessionRecord,
    SpacesRecord,
    Steps,
    Stub,
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

    head: Head | None = None
    sessions: list[SessionRecord] = field(default_factory=list)
    elapsed_s: float = 0.0  # from each session's start to its last record, by its own clock
    ended: EndRecord | None = None  # the last session's ``end``; None if it was cut off or still runs
    valid_size: int = 0  # the bytes of whole records; a torn last line follows
    ends_with_newline: bool = True
    handles: dict[int, list[JobHandle]] = field(default_factory=dict)  # of open trials; 0: of live servers
    damage: list[str] = field(default_factory=list)  # file, line and fault of lines that were left out

    # of trials
    open: dict[int, tuple[OpenTrial, float]] = field(default_factory=dict)  # with the time of day of its opening
    used: set[int] = field(default_factory=set)
    searched: bool = False  # whether there is a trial of the search
    after_search: SessionRecord | None = None  # in which the first trial after the search began
    closed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)  # of steps, too; lost ones count as ``cancelled``

    # of live steps
    spaces: SpacesRecord | None = None
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
        return "trials" if self.head is None else self.head.kind

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the workload in the last session."""
        return self.sessions[-1].fingerprint if self.sessions else None

    @property
    def taken(self) -> int:
        """The highest number that is or may be used: of a trial, or of a step."""
        return max(self.reserved, max(self.used, default=0))

    def note(self, record: Record, line: int) -> Entry:
        """Take the record of a line into account; return the entry that it makes."""
        if isinstance(record, Head):
            self.head = record
            return record
        if isinstance(record, SessionRecord):
            self._before_s = self.elapsed_s
        self.elapsed_s = max(self.elapsed_s, self._before_s + record.since)
        self.ended = record if isinstance(record, EndRecord) else None
        match record:
            case SessionRecord():
                self.sessions.append(record)
                self._base = self.upto + 1
            case OpenRecord():
                self._note_phase(record.phase)
                self.used.add(record.number)
                self.open[record.number] = record.trial, record.at
            case CloseRecord():
                return self._note_close(record)
            case JobRecord():
                self._note_job(record)
            case SpacesRecord():
                self.spaces, self.spaces_line = record, line
            case ReserveRecord():
                self.reserved = record.upto
            case Lost():
                self.upto = max(self.upto, record.last)
                self._base = self.upto + 1
                self.statuses["cancelled"] += record.last - record.first + 1
            case Steps():
                self._note_steps(record)
        return record

    def _note_phase(self, phase: str) -> None:
        if phase in (SEARCH, REPEAT):
            self.searched, self.after_search = True, None
        elif self.searched and self.after_search is None:
            self.after_search = self.sessions[-1]

    def _note_close(self, record: CloseRecord) -> ClosedTrial:
        number = record.number
        opened, opened_at = self.open.pop(number, (None, record.at))
        if opened is None:
            if record.context is None:
                raise ValueError(f"trial {number} was not open")
            opened = OpenTrial(number, record.context, {})
        self.used.add(number)
        self.handles.pop(number, None)
        self.closed += 1
        self.statuses[record.status] += 1
        return ClosedTrial(record.trial(opened), self.fingerprint or "", opened_at, record.at, self.elapsed_s)

    def _note_job(self, record: JobRecord) -> None:
        if self.kind == "live" and self._servers_of != len(self.sessions):
            self.handles.clear()  # a session that starts servers has ended those of the sessions before
            self._servers_of = len(self.sessions)
        self.handles.setdefault(record.number, []).append(record.handle)

    def _note_steps(self, steps: Steps) -> None:
        self.upto = max(self.upto, steps.upto)
        self.worst, self.largest = steps.worst, steps.largest
        self.episodes = max(self.episodes, steps.begun)
        self.statuses.update(steps.statuses)
        if steps.actions is None:
            self.sides["action"] = steps.action_row + len(steps.numbers)
        if steps.observations is None:
            self.sides["observation"] = steps.observation_row + len(steps.numbers)
        if self.head is None or self.head.live is None or self.head.live.kind == "all":
            self._follow(steps)
        for episode in steps.over:
            self._unfinished.pop(episode.number, None)
        self._note_over(steps.over)

    def _follow(self, steps: Steps) -> None:
        """Add up the episodes of some steps, for the case that no record of their end follows."""
        slots = self.sessions[-1].slots if self.sessions else 1
        contexts = steps.context_of()
        places: dict[int, list[int]] = {}
        for index, number in enumerate(steps.episodes):
            places.setdefault(number, []).append(index)
        for number, own in places.items():
            first = steps.numbers[own[0]]
            lane, context = (first - self._base) % slots, contexts[own[0]]
            begun = self._unfinished.get(number) or Episode(number, lane, first, 0, 0, 0.0, "cut", context)
            self._unfinished[number] = replace(
                begun,
                last=steps.numbers[own[-1]],
                length=begun.length + len(own),
                total=begun.total + sum(steps.rewards[index] for index in own),
                end=_end_at(steps, own[-1]),
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
class ClosedTrial:
    """A closed trial, and the fingerprint of the session that closed it. Time between sessions is not elapsed."""

    trial: Trial
    fingerprint: str
    opened_at: float
    closed_at: float
    elapsed_s: float


Entry: TypeAlias = Record | ClosedTrial


class DamageError(StoreError):
    """A line of a journal that is no record, or has parts that can't be read."""

    def __init__(self, path: Path, line: int, kind: str, fault: str, *, torn: bool = False) -> None:
        self.torn = torn  # a line that was cut looks like this
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
                record = None
                try:
                    record = self._parsed(line)
                except DamageError as damage:
                    if damage.torn and not (whole and file.peek(1)):
                        return  # cut, or zeros that never reached the disk
                    if not self._tolerant:
                        raise
                    journal.damage.append(f"{damage.message}; it is left out")
                self._line += 1
                journal.valid_size += len(line)
                journal.ends_with_newline = whole
                if record is not None:
                    yield record
                if not whole:
                    return

    def _parsed(self, line: bytes) -> Entry:
        """The entry of the next line. Raises ``DamageError``, and ``StoreError`` for another format."""
        number, kind = self._line + 1, ""
        try:
            record = DECODER.decode(line)
            kind = str(record.__struct_config__.tag)
            if isinstance(record, Head):
                self._check_format(record.version)
            return self.journal.note(record, number)
        except msgspec.ValidationError as error:
            stub = _stub(line)
            kind = stub.record if isinstance(stub.record, str) else ""
            if kind == "head" and type(stub.version) is int:
                self._check_format(stub.version)
            raise DamageError(self.path, number, kind, str(error)) from error
        except (LookupError, RecursionError, ValueError) as error:
            torn = isinstance(error, msgspec.DecodeError | UnicodeDecodeError)
            fault = "it is not a record, and not the last line" if torn else str(error)
            raise DamageError(self.path, number, kind, fault, torn=torn) from error

    def _check_format(self, version: int) -> None:
        if version != VERSION:
            raise StoreError(
                f"{self.path}: has journal format {version}, this tunegym reads format {VERSION}",
                hint="use the version of tunegym that wrote it",
            )


def scan(path: Path) -> Journal:
    """Read a journal once for its bookkeeping; an empty one if there is no file."""
    reader = Reader(path)
    deque(reader.read(last=True), maxlen=0)
    return reader.journal


def entries(path: Path) -> Iterator[Entry]:
    """Every entry of a journal, read once."""
    return Reader(path).read(last=True)


def steps(path: Path) -> Iterator[Steps | Lost]:
    """Every recorded step in groups, in the order of writing, damaged ones left out; in between the lost numbers."""
    for record in Reader(path, tolerant=True).read(last=True):
        if isinstance(record, Lost) or (isinstance(record, Steps) and record.numbers):
            yield record


def episodes(path: Path) -> Iterator[Episode]:
    """Every episode that is over, in the order of ending, as far as its record is not damaged."""
    for record in Reader(path, tolerant=True).read(last=True):
        if isinstance(record, Steps):
            yield from record.over


def head_of(path: Path) -> Head | None:
    """The journal's first record, without reading the rest; None if there is none."""
    first = next(entries(path), None)
    return first if isinstance(first, Head) else None


def spaces_of(path: Path, journal: Journal) -> tuple[spaces.Space[Any], spaces.Space[Any]] | None:
    """The live server's action and observation space; None before its first answer. Raises ``StoreError``."""
    if journal.spaces is None:
        return None
    from tunegym.tuning.spaces import SpaceError, build  # only here: a status needs no gymnasium

    try:
        return build(journal.spaces.action), build(journal.spaces.observation)
    except SpaceError as error:
        raise DamageError(path, journal.spaces_line, "spaces", str(error)) from None


def mean_return(returns: Collection[float]) -> float | None:
    """The mean of some returns; None of none."""
    if not returns:
        return None
    total = sum(returns)
    return total / len(returns) if math.isfinite(total) else sum(value / len(returns) for value in returns)


def _end_at(steps: Steps, index: int) -> EpisodeEnd:
    """How an episode ended whose last recorded step is at ``place``."""
    if index in steps.terminated:
        return "terminated"
    if index in steps.truncated:
        return "failed" if index in steps.unmeasured else "truncated"
    return "cut"


def _stub(line: bytes) -> Stub:
    try:
        return msgspec.json.decode(line, type=Stub)
    except msgspec.ValidationError:
        return Stub()
