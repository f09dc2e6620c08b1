"""Reading a live experiment's journal: where it stands, its steps in groups, its episodes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunegym.core.errors import StoreError
from tunegym.tuning.model.episode import Episode
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.values import Context
from tunegym.tuning.stores import live_checking, reader
from tunegym.tuning.stores.records import Record

if TYPE_CHECKING:
    from gymnasium import spaces

RECENT = 100
"""Over how many episodes the mean return is taken."""


@dataclass
class LivePast:
    """What a live journal says, without its steps.

    Attributes:
        spaces: the server's, described; None before it has answered for the first time.
        spaces_line: where that stands in the journal, from 1.
        upto: the highest number that is on record as used.
        reserved: the highest number that may have been used.
        statuses: steps by status, as far as they are recorded.
        episodes: how many have begun, as far as that is recorded.
        over: how many are over.
        returns: of the newest episodes that the server itself ended.
        worst, largest: the scale of the rewards measured, None before the first.
        sides: by ``action`` and ``observation``, how many rows are in the files of their own.
        handles: of the server processes of the last session that started any.
        started_in: which session that was, from 1.
    """

    head: Record | None = None
    sessions: list[Record] = field(default_factory=list)
    spaces: Record | None = None
    spaces_line: int = 0
    upto: int = 0
    reserved: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    episodes: int = 0
    over: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    worst: float | None = None
    largest: float = 1.0
    sides: dict[str, int] = field(default_factory=dict)
    handles: list[JobHandle] = field(default_factory=list)
    started_in: int = 0
    elapsed_s: float = 0.0
    ended: Record | None = None
    valid_size: int = 0
    ends_with_newline: bool = True

    @property
    def fingerprint(self) -> str | None:
        """What the last session ran."""
        return self.sessions[-1]["fingerprint"] if self.sessions else None


def mean_return(returns: Collection[float]) -> float | None:
    """The mean of some returns; None of none. Finite, as each of them is."""
    if not returns:
        return None
    total = sum(returns)
    if math.isfinite(total):
        return total / len(returns)
    mean = sum(one / len(returns) for one in returns)  # which rounding may put beyond all of them
    return max(min(returns), min(mean, max(returns)))


def is_live(path: Path) -> bool:
    """Whether a journal is that of a live experiment."""
    head = reader.head_of(path) if path.exists() else None
    return bool(head and head.get("live"))


def records(path: Path, journal: reader.Journal | None = None) -> Iterator[Record]:
    """As ``reader.records``, of records that are whole: nobody need check again what they say.

    Raises:
        StoreError: also for a record whose parts don't fit together.
    """
    for line, record in enumerate(reader.records(path, journal), start=1):
        fault = live_checking.fault(record)
        if fault is not None:
            raise _damaged(path, line, str(record["record"]), fault)
        yield record


def space_of(path: Path, past: LivePast, kind: str) -> spaces.Space[Any] | None:
    """The server's ``action`` or ``observation`` space; None before it has answered for the first time.

    Raises:
        StoreError: what is on record describes none.
    """
    from tunegym.tuning.spaces import SpaceError, build  # only here: a status needs no spaces

    if past.spaces is None:
        return None
    try:
        return build(past.spaces[kind])
    except SpaceError as error:
        raise _damaged(path, past.spaces_line, "spaces", f"{kind}: {error}") from None


def _damaged(path: Path, line: int, kind: str, fault: str) -> StoreError:
    return StoreError(
        f"{path}: line {line} ({kind}) is damaged: {fault}",
        hint=f"put the file back as it was; or keep a copy, cut it before that line (head -n {line - 1}), and resume",
    )


def scan(path: Path) -> LivePast:
    """Read a journal once for everything but its steps. Memory does not grow with them."""
    past = LivePast()
    if not path.exists():
        return past
    tail = reader.Journal()  # is told where whole records end
    spent = 0.0
    for line, record in enumerate(records(path, tail), start=1):
        kind = record["record"]
        if kind == "session":
            past.elapsed_s += spent
            spent = 0.0
            past.sessions.append(record)
        else:
            _note(past, kind, record)
            past.spaces_line = line if kind == "spaces" else past.spaces_line
        spent = max(spent, record.get("since", 0.0))
        past.ended = record if kind == "end" else None
    past.elapsed_s += spent
    past.valid_size, past.ends_with_newline = tail.valid_size, tail.ends_with_newline
    return past


def _note(past: LivePast, kind: str, record: Record) -> None:
    if kind == "head":
        past.head = record
    elif kind == "spaces":
        past.spaces = record
    elif kind == "reserve":
        past.reserved = record["upto"]
    elif kind == "job":
        if past.started_in != len(past.sessions):
            past.handles.clear()  # whoever starts servers has ended what others left
        past.handles.append(reader.job_handle(record, past.sessions))
        past.started_in = len(past.sessions)
    elif kind == "lost":
        past.upto = max(past.upto, record["last"])
        past.statuses["cancelled"] += record["last"] - record["first"] + 1
    elif kind == "steps":
        past.upto = max(past.upto, record["upto"])
        past.worst, past.largest = record["worst"], record["largest"]
        past.episodes = max(past.episodes, record["begun"])
        past.statuses.update(record["statuses"])
        for name in ("action", "observation"):
            place = record.get(name)
            if isinstance(place, dict):
                past.sides[name] = place["row"] + record["count"]
        for episode in ended(record):
            past.over += 1
            if episode.end in ("terminated", "truncated"):
                past.returns.append(episode.total)


def ended(record: Record) -> list[Episode]:
    """The episodes that a ``steps`` record says are over."""
    return [Episode(*one) for one in record.get("episodes", ())]


def episodes(path: Path) -> Iterator[Episode]:
    """Every episode that is over, in the order of ending."""
    for record in records(path):
        if record["record"] == "steps":
            yield from ended(record)


@dataclass(frozen=True)
class Steps:
    """Recorded steps that were written together.

    Attributes:
        numbers, episodes, rewards, durations: a value for each step.
        terminated, truncated: the places (from 0) of those that ended their episodes so.
        actions, observations: an array-like for each leaf of the space, or None where they have a file of their own.
        action_row, observation_row: there, the row of the first step.
        contexts: by the place from which each holds.
        metrics: by name a value for each step, None where there is none.
        unmeasured: by place, status and reason.
    """

    numbers: list[int]
    episodes: list[int]
    rewards: list[float]
    durations: list[float]
    terminated: list[int]
    truncated: list[int]
    actions: list[Any] | None
    observations: list[Any] | None
    action_row: int
    observation_row: int
    contexts: list[tuple[int, Context]]
    metrics: dict[str, list[float | None]]
    unmeasured: dict[int, tuple[str, str]]

    def context_of(self) -> list[Context]:
        """The context of each step."""
        found: list[Context] = []
        for at, (start, context) in enumerate(self.contexts):
            end = self.contexts[at + 1][0] if at + 1 < len(self.contexts) else len(self.numbers)
            found += [context] * (end - start)
        return found or [{}] * len(self.numbers)


@dataclass(frozen=True)
class Lost:
    """Numbers of a session that was cut off: their steps were taken or not, and nothing of them is on record."""

    first: int
    last: int


def steps(path: Path) -> Iterator[Steps | Lost]:
    """Every recorded step, in groups, in the order of writing; in between what was lost."""
    for record in records(path):
        if record["record"] == "lost":
            yield Lost(record["first"], record["last"])
        elif record["record"] == "steps" and record["count"]:
            yield _steps(record)


def _steps(record: Record) -> Steps:
    first = record.get("first")
    numbers = record["numbers"] if first is None else list(range(first, first + record["count"]))
    inline = {name: None if isinstance(record[name], dict) else record[name] for name in ("action", "observation")}
    rows = {name: record[name]["row"] if isinstance(record[name], dict) else 0 for name in ("action", "observation")}
    return Steps(
        numbers,
        record["episode"],
        record["reward"],
        record["duration_s"],
        record["terminated"],
        record["truncated"],
        inline["action"],
        inline["observation"],
        rows["action"],
        rows["observation"],
        [(at, context) for at, context in record.get("context", ())],
        record.get("metrics", {}),
        {at: (status, why) for at, status, why in record.get("unmeasured", ())},
    )
