"""The records of a journal: their form, how they are made, and what makes one damaged.

One JSON object per line. ``record`` names its kind:

- ``head``: format version and the experiment's description; once, first;
- ``session``: a driver started or resumed; later records belong to it;
- ``open``: number, context and action, before anything runs;
- ``job``: the handle of a job of an open trial, or of a live server;
- ``close``: the outcome; a number that was held and never used has only this one, with its context;
- ``end``: the session came to its end by itself.

A live experiment has these instead of ``open`` and ``close``:

- ``spaces``: the server's action and observation space; once;
- ``reserve``: numbers up to this one may be used from now on, or, at an end, were used;
- ``steps``: up to 1,024 steps by column, and the episodes that are over;
- ``lost``: numbers reserved by a session that was cut off, of which nothing is on record.

``at`` is the time of day; ``since`` counts the seconds since the session began, by a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tunegym.tuning.model.trial import JobHandle, Measured, OpenTrial, Trial, outcome_of
from tunegym.tuning.model.values import printable

VERSION = 2

Record = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """The experiment that a journal belongs to. Everything in it must be the same on resume."""

    experiment: str
    run: str  # a random token; marks the processes of this run
    seed: int
    agent: str | None
    knobs: dict[str, Any]  # knobs, env_params: their specs by address
    env_params: dict[str, Any]
    metrics: list[str]  # the names that have a column in the CSV view
    repeats: int = 1
    # the directions of metrics, as plain data; empty where only the reward counts
    objectives: list[dict[str, Any]] = field(default_factory=list)
    # which steps of a live experiment are recorded; empty for one that runs jobs
    live: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """One driver's time with the journal."""

    fingerprint: str  # of the workload; trials of another fingerprint are not served from the cache
    # the fingerprint's parts by name, so that a change can be named
    parts: dict[str, str] = field(default_factory=dict)
    slots: int = 1
    agent_steps: int | None = None


def head_record(head: Head, at: float) -> Record:
    """The first line."""
    described = asdict(head)
    if not head.live:
        del described["live"]
    return {"record": "head", "version": VERSION, "at": at, **described}


def session_record(session: Session, at: float, host: str, boot: str, pid: int) -> Record:
    """The line that starts a session; ``boot`` names the machine and its start, in which pids mean something."""
    return {"record": "session", "at": at, "host": host, "boot": boot, "pid": pid, **asdict(session)}


def open_record(trial: OpenTrial, at: float, since: float) -> Record:
    """The line that makes a number used."""
    return {
        "record": "open",
        "number": trial.number,
        "at": at,
        "since": since,
        "context": trial.context,
        "action": trial.action,
    }


def close_record(trial: Trial, at: float, since: float, opened: bool) -> Record:
    """The line that ends a trial. Each stands for itself: a cached one repeats the measurement it was given."""
    outcome = trial.outcome
    record: Record = {
        "record": "close",
        "number": trial.number,
        "at": at,
        "since": since,
        "status": outcome.status,
        "reward": trial.reward,
        "duration_s": trial.duration_s,
    }
    if trial.cached_from is not None:
        record["cached_from"] = trial.cached_from
    if isinstance(outcome, Measured):
        record["samples"] = outcome.samples
    else:
        record["reason"] = printable(outcome.reason)
    if trial.reports:
        record["reports"] = trial.reports
    if not opened:
        record["context"] = trial.context
    return record


def end_record(code: int, reason: str, at: float, since: float) -> Record:
    """The line that says that a session came to its end by itself."""
    return {"record": "end", "at": at, "since": since, "code": code, "reason": reason}


def closed_trial(record: Record, opened: OpenTrial) -> Trial:
    """The trial that a ``close`` record ends."""
    return Trial(
        number=record["number"],
        context=opened.context,
        action=opened.action,
        outcome=outcome_of(record["status"], record.get("reason", ""), record.get("samples", [])),
        reward=record["reward"],
        duration_s=record["duration_s"],
        cached_from=record.get("cached_from"),
        reports=tuple((step, value) for step, value in record.get("reports", ())),
    )


def job_handle(record: Record, session: Mapping[str, Any]) -> JobHandle:
    """The handle in a ``job`` record. Version 1 has a pid and a start time instead, of its session's boot."""
    if "handle" in record:
        return record["handle"]
    return {"pid": record["pid"], "start": record["start_time"], "boot": session.get("boot")}


# damage -----------------------------------------------------------------------------------------------

_NEEDS = {
    "head": {"version", "experiment", "run"},
    "session": {"at", "fingerprint", "parts"},
    "open": {"number", "context", "action"},
    "job": {"number"},
    "close": {"number", "status", "reward", "duration_s"},
    "end": {"code", "reason"},
    "spaces": {"action", "observation"},
    "reserve": {"upto"},
    "steps": {"upto", "count", "begun", "statuses", "worst", "largest"},
    "lost": {"first", "last"},
}
_COUNTS = {"reserve": ("upto",), "lost": ("first", "last"), "steps": ("upto", "count", "begun")}
_NUMBERS = {int, float}
_EPISODE = (int, int, int, int, int, (int, float), str, dict)


def is_record(found: Any) -> bool:
    """Whether a line's JSON is a whole record. A torn line may still be JSON."""
    if not isinstance(found, dict) or not _NEEDS.get(str(found.get("record")), {"record"}) <= found.keys():
        return False
    if found["record"] != "job":
        return True
    return isinstance(found["handle"], dict) if "handle" in found else {"pid", "start_time"} <= found.keys()


def damage(record: Record) -> str | None:
    """What is wrong with a whole record, apart from the elements of spaces in it; None if nothing is."""
    if type(record.get("since", 0.0)) not in _NUMBERS:
        return "since is not a number"
    kind = record["record"]
    for name in _COUNTS.get(kind, ()):
        if type(record[name]) is not int or record[name] < 0:
            return f"{name} is not a count"
    if kind != "steps":
        return None
    count = record["count"]
    for name, fits in (_FACTS | _COLUMNS if count else _FACTS).items():
        if not fits(record.get(name), count):
            return f"{name} doesn't fit the record's {count} steps"
    if count and type(record.get("first")) is not int and not _column(record.get("numbers"), count, {int}):
        return f"it doesn't have the numbers of its {count} steps"
    return None


def _column(found: Any, count: int, kinds: set[type]) -> bool:
    return isinstance(found, list) and len(found) == count and set(map(type, found)) <= kinds


def _places(found: Any, count: int) -> bool:
    return isinstance(found, list) and set(map(type, found)) <= {int} and all(0 <= at < count for at in found)


def _elements(found: Any, count: int) -> bool:
    """Whether there is a row for each step; only the spaces tell what a row holds."""
    if isinstance(found, dict):
        return type(found.get("row")) is int and found["row"] >= 0
    return _lists(found, lambda leaf: len(leaf) == count)


def _lists(found: Any, fits: Callable[[list[Any]], bool]) -> bool:
    return isinstance(found, list) and all(isinstance(one, list) and fits(one) for one in found)


def _placed(found: Any, count: int, *kinds: type) -> bool:
    """Whether each of ``found`` is a place with values of these kinds; absent is fine."""
    pairs = found or []
    return _lists(pairs, lambda one: [*map(type, one)] == [int, *kinds]) and _places([one[0] for one in pairs], count)


def _contexts(found: Any, count: int) -> bool:
    """Whether contexts hold from the first step on, one after another."""
    if not _placed(found, count, dict):
        return False
    places = [one[0] for one in found or []]
    return not places or (places[0] == 0 and places == sorted(set(places)))


_FACTS: dict[str, Callable[[Any, int], bool]] = {
    "worst": lambda found, _: found is None or type(found) in _NUMBERS,
    "largest": lambda found, _: type(found) in _NUMBERS,
    "statuses": lambda found, _: isinstance(found, dict) and set(map(type, found.values())) <= {int},
    "episodes": lambda found, _: _lists(
        found or [], lambda one: len(one) == len(_EPISODE) and all(map(isinstance, one, _EPISODE))
    ),
}
_COLUMNS: dict[str, Callable[[Any, int], bool]] = {
    "episode": lambda found, count: _column(found, count, {int}),
    "reward": lambda found, count: _column(found, count, _NUMBERS),
    "duration_s": lambda found, count: _column(found, count, _NUMBERS),
    "terminated": _places,
    "truncated": _places,
    "action": _elements,
    "observation": _elements,
    "metrics": lambda found, count: (
        isinstance(found or {}, dict)
        and all(_column(one, count, {*_NUMBERS, type(None)}) for one in (found or {}).values())
    ),
    "context": _contexts,
    "unmeasured": lambda found, count: _placed(found, count, str, str),
}
