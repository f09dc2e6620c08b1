"""A plane's numbers in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What an HTTP server says of it."""

PREFIX = "tunegym_dataplane_"

Labels: TypeAlias = Mapping[str, str]
Stats: TypeAlias = Mapping[str, Any]
Sample: TypeAlias = tuple[Labels, Any]


@dataclass(frozen=True)
class _Family:
    """One metric.

    Attributes:
        take: its values in the stats of a partition, or of a task; none where it isn't known.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    take: Callable[[Stats], Iterable[Sample]]


def _one(key: str) -> Callable[[Stats], Iterable[Sample]]:
    return lambda stats: [] if stats[key] is None else [({}, stats[key])]


def _each(key: str, label: str) -> Callable[[Stats], Iterable[Sample]]:
    return lambda stats: [({label: name}, value) for name, value in stats[key].items()]


_PARTITION = (
    _Family("samples_produced_total", "counter", "Samples that were put.", _one("produced")),
    _Family(
        "samples_resident",
        "gauge",
        "Samples that take room, with those that a rewind may bring back.",
        _one("resident"),
    ),
    _Family("samples_alive", "gauge", "Samples that are there.", _one("alive")),
    _Family("capacity_samples", "gauge", "Samples that may be resident; absent without a limit.", _one("capacity")),
    _Family(
        "samples_gone",
        "gauge",
        "Samples that left, by reason; a rewind takes back what it revives.",
        _each("gone", "reason"),
    ),
    _Family("bytes", "gauge", "Bytes of the samples that are kept.", _one("bytes")),
    _Family("blocks", "gauge", "Writes whose bytes are kept.", _one("blocks")),
    _Family("epoch", "gauge", "Rewinds so far.", _one("epoch")),
    _Family("sealed", "gauge", "1 if no more samples are taken.", _one("sealed")),
    _Family("waiters", "gauge", "Calls that wait: puts for room, claims for samples.", _each("waiting", "call")),
    _Family("put_seconds", "histogram", "Time from the call of a put to its answer.", _one("put_latency")),
    _Family("put_wait_seconds", "histogram", "Part of that for which there was no room.", _one("put_wait")),
)
_TASK = (
    _Family(
        "samples_ready",
        "gauge",
        "Samples that can be claimed, by the fields that claims have required so far.",
        _each("ready", "fields"),
    ),
    _Family("samples_free", "gauge", "Samples still to be claimed, ready or not.", _one("free")),
    _Family("samples_leased", "gauge", "Samples that are claimed and not yet acked.", _one("leased")),
    _Family("samples_acked", "gauge", "Samples that are acked and still there.", _one("acked")),
    _Family("samples_claimed_total", "counter", "Samples that were claimed, each time counted.", _one("claimed")),
    _Family("samples_redelivered_total", "counter", "Samples whose claim was given back.", _one("redelivered")),
    _Family("committed_version", "gauge", "The latest version that a checkpoint covers.", _one("committed")),
    _Family("age_seconds", "histogram", "Age of the samples that are ready now; of the moment, no rate.", _one("age")),
    _Family("lag_seconds", "histogram", "Time from the put of a sample to its claim.", _one("lag")),
    _Family("claim_seconds", "histogram", "Time from the call of a claim to its answer.", _one("claim_latency")),
    _Family("claim_wait_seconds", "histogram", "Part of that with too few samples ready.", _one("claim_wait")),
)


def prometheus_text(stats: Mapping[str, Stats]) -> str:
    """``DataPlaneClient.stats()`` as a page that Prometheus can scrape; empty if there is no partition."""
    lines: list[str] = []
    for family in _PARTITION:
        found = (
            ({"partition": name, **more}, value) for name, one in stats.items() for more, value in family.take(one)
        )
        lines += _lines(family, found)
    for family in _TASK:
        found = (
            ({"partition": name, "task": task, **more}, value)
            for name, one in stats.items()
            for task, its in one["tasks"].items()
            for more, value in family.take(its)
        )
        lines += _lines(family, found)
    return "".join(f"{line}\n" for line in lines)


def _lines(family: _Family, samples: Iterable[Sample]) -> Iterator[str]:
    name = PREFIX + family.name
    for number, (labels, value) in enumerate(samples):
        if not number:
            yield f"# HELP {name} {_escaped(family.help)}"
            yield f"# TYPE {name} {family.kind}"
        if family.kind == "histogram":
            yield from _buckets(name, labels, value)
        else:
            yield _line(name, labels, value)


def _buckets(name: str, labels: Labels, histogram: Mapping[str, Any]) -> Iterator[str]:
    count = 0
    for bound, here in zip([*histogram["bounds"], math.inf], histogram["counts"], strict=True):
        count += here
        yield _line(f"{name}_bucket", {**labels, "le": _number(float(bound))}, count)
    yield _line(f"{name}_sum", labels, histogram["sum"])
    yield _line(f"{name}_count", labels, count)


def _line(name: str, labels: Labels, value: Any) -> str:
    told = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {_number(value)}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    return "+Inf" if value == math.inf else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
