"""The records of a journal: their form, how they are made, and how they are checked.

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

from dataclasses import asdict, dataclass, field
from typing import Any

from tunegym.core.text import printable
from tunegym.tuning.model.trial import SEARCH, Measured, OpenTrial, Trial, outcome_of

VERSION = 2

Record = dict[str, Any]


UNSET: dict[str, Any] = {"live": {}, "warmup": 0, "baseline": None, "confirm": {}, "over_contexts": None}
"""Keys of a head that are there only when they are set."""


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
    repeats: int | str = 1
    # the directions of metrics, as plain data; empty where only the reward counts
    objectives: list[dict[str, Any]] = field(default_factory=list)
    goals: dict[str, str] = field(default_factory=dict)  # ``min`` or ``max`` by metric, where a direction is known
    # which steps of a live experiment are recorded; empty for one that runs jobs
    live: dict[str, Any] = field(default_factory=dict)
    warmup: int = 0
    baseline: dict[str, Any] | None = None  # the settings in use today
    confirm: dict[str, Any] = field(default_factory=dict)  # as plain data; empty where nothing is confirmed
    over_contexts: Any = None  # None for the mean


@dataclass(frozen=True)
class SessionRecord:
    """One driver's time with the journal."""

    fingerprint: str  # of the workload; trials of another fingerprint are not served from the cache
    # the fingerprint's parts by name, so that a change can be named
    parts: dict[str, str] = field(default_factory=dict)
    slots: int = 1
    runner: str = "local"
    agent_steps: int | None = None


def head_record(head: Head, at: float) -> Record:
    """The first line."""
    described = {key: value for key, value in asdict(head).items() if key not in UNSET or value != UNSET[key]}
    return {"record": "head", "version": VERSION, "at": at, **described}


def open_record(trial: OpenTrial, at: float, since: float) -> Record:
    """The line that writes a decision down."""
    record: Record = {"record": "open", "number": trial.number, "at": at, "since": since}
    record |= {"context": trial.context, "action": trial.action}
    if trial.weight_version is not None:
        record["weight_version"] = trial.weight_version
    if trial.phase != SEARCH:
        record["phase"] = trial.phase
    return record


def opened_trial(record: Record) -> OpenTrial:
    """The trial that an ``open`` record begins."""
    chosen = dict(record["context"]), dict(record["action"]), record.get("weight_version")
    return OpenTrial(record["number"], *chosen, record.get("phase", SEARCH))


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
    if trial.nodes:
        record["nodes"] = trial.nodes
    if trial.warmup:
        record["warmup"] = trial.warmup
    if not opened:
        record["context"] = trial.context
    return record


def closed_trial(record: Record, opened: OpenTrial) -> Trial:
    """The trial that a ``close`` record ends."""
    samples, warmup = (
        [{name: numeric(value) for name, value in sample.items()} for sample in record.get(key, ())]
        for key in ("samples", "warmup")
    )
    return Trial(
        number=record["number"],
        context=opened.context,
        action=opened.action,
        outcome=outcome_of(record["status"], record.get("reason", ""), samples),
        reward=numeric(record["reward"]),
        duration_s=numeric(record["duration_s"]),
        cached_from=record.get("cached_from"),
        reports=tuple((step, numeric(value)) for step, value in record.get("reports", ())),
        nodes=tuple(record.get("nodes", ())),
        weight_version=opened.weight_version,
        phase=opened.phase,
        warmup=tuple(warmup),
    )


# damage -----------------------------------------------------------------------------------------------

_NEEDS = {
    "head": {"version", "experiment", "run"},
    "session": {"at", "fingerprint", "parts"},
    "open": {"number", "context", "action"},
    "job": {"number", "handle"},
    "close": {"number", "status", "reward", "duration_s"},
    "end": {"code", "reason"},
    "spaces": {"action", "observation"},
    "reserve": {"upto"},
    "steps": {"upto", "count", "begun", "statuses", "worst", "largest"},
    "lost": {"first", "last"},
}
_COUNTS = ("version", "number", "upto", "count", "begun", "first", "last")


def is_record(found: Any) -> bool:
    """Whether a line's JSON is a whole record. A torn line may still be JSON."""
    return isinstance(found, dict) and _NEEDS.get(str(found.get("record")), {"record"}) <= found.keys()


def check_counts(record: Record) -> None:
    """Raise ``ValueError`` if a number of trials or steps is not a count."""
    for name in _COUNTS:
        count = record.get(name, 0)
        if type(count) is not int or count < 0:
            raise ValueError(f"{name} is not a count")


def numeric(value: float) -> float:
    """Return ``value``; raise ``ValueError`` if it is not a number."""
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {value!r:.60}")
    return value
