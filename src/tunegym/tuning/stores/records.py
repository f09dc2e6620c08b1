"""The journal's records as plain data, and back.

One JSON object per line. ``record`` names its kind:

- ``head``: format version and what the experiment is; once, first;
- ``session``: a driver started or resumed; later records belong to it;
- ``open``: number, context and action, before anything runs;
- ``job``: a process of an open trial;
- ``close``: the outcome; a number that was held and never used has only this one, with its context;
- ``end``: the session came to its end by itself.

A live experiment has these instead of ``open`` and ``close``:

- ``spaces``: what the server's actions and observations are; once;
- ``reserve``: numbers up to this one may be used from now on, or, at an end, were used;
- ``steps``: up to 1,024 steps by column, and the episodes that are over;
- ``lost``: numbers that a session which was cut off had reserved, and of which nothing is on record.

``at`` is the time of day; ``since`` counts the seconds since the session began by a clock that nobody can set.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tunegym.tuning.model.outcome import Measured, from_record
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.model.values import printable

VERSION = 2

Record = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What the journal belongs to. Everything in it must be the same on resume.

    Attributes:
        run: a random token; marks the processes of this run.
        knobs, env_params: their specs by address.
        metrics: the names that have a column in the CSV view.
        objectives: what is better, as plain data; empty where the reward alone says so.
        live: which steps of a live experiment are recorded; empty for one that runs jobs.
    """

    experiment: str
    run: str
    seed: int
    agent: str | None
    knobs: dict[str, Any]
    env_params: dict[str, Any]
    metrics: list[str]
    repeats: int = 1
    objectives: list[dict[str, Any]] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """One driver's time with the journal.

    Attributes:
        fingerprint: what was measured; trials of another fingerprint are not served from the cache.
        parts: the fingerprint's parts by name, so that a change can be named.
    """

    fingerprint: str
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
        outcome=from_record(record["status"], record.get("reason", ""), record.get("samples", [])),
        reward=record["reward"],
        duration_s=record["duration_s"],
        cached_from=record.get("cached_from"),
        reports=tuple((step, value) for step, value in record.get("reports", ())),
    )
