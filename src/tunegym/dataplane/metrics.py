"""Metrics of a plane for Prometheus, made from ``DataPlaneClient.stats()``. Needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tunegym.core.ray_cluster import import_extra
from tunegym.dataplane.errors import DataPlaneError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import Metric

PREFIX = "tunegym_dataplane_"


class _Family(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    key: str  # the entry in the stats of a partition or task; None there means unknown
    label: str | None = None  # the label of the entry's keys, if the entry is a mapping


_PARTITION = (
    _Family("samples_produced_total", "counter", "Samples that were put.", "produced"),
    _Family("samples_resident", "gauge", "Samples that count against the capacity.", "resident"),
    _Family("samples_retained", "gauge", "Consumed samples that can be read until a put needs their room.", "retained"),
    _Family("samples_alive", "gauge", "Samples that are not cleared.", "alive"),
    _Family("capacity_samples", "gauge", "The most resident samples; absent without a limit.", "capacity"),
    _Family("samples_gone", "gauge", "Samples that left, by reason; a rewind revives some.", "gone", "reason"),
    _Family("bytes", "gauge", "Bytes of the stored samples.", "bytes"),
    _Family("stored_bytes", "gauge", "Bytes that the storage has for them, and of samples that left.", "stored_bytes"),
    _Family("capacity_bytes", "gauge", "The most stored bytes; absent without a limit.", "capacity_bytes"),
    _Family("blocks", "gauge", "Writes whose bytes are stored.", "blocks"),
    _Family("epoch", "gauge", "Rewinds so far.", "epoch"),
    _Family("sealed", "gauge", "1 if the partition takes no more samples.", "sealed"),
    _Family("waiters", "gauge", "Waiting calls: puts for room, claims for samples.", "waiting", "call"),
    _Family("put_seconds", "histogram", "Time from the call of a put to its answer.", "put_latency"),
    _Family("put_wait_seconds", "histogram", "Part of that without room.", "put_wait"),
)
_TASK = (
    _Family("samples_ready", "gauge", "Samples that can be claimed, by required fields.", "ready", "fields"),
    _Family("samples_free", "gauge", "Samples that are not claimed yet, ready or not.", "free"),
    _Family("samples_leased", "gauge", "Samples that are claimed and not acked.", "leased"),
    _Family("samples_acked", "gauge", "Samples that are acked and still stored.", "acked"),
    _Family("samples_claimed_total", "counter", "Claimed samples; each claim counts.", "claimed"),
    _Family("samples_redelivered_total", "counter", "Samples whose claim was given back.", "redelivered"),
    _Family("committed_version", "gauge", "The latest version that a checkpoint covers.", "committed"),
    _Family("age_seconds", "histogram", "Age of the samples that are ready now.", "age"),
    _Family("lag_seconds", "histogram", "Time from the put of a sample to its claim.", "lag"),
    _Family("claim_seconds", "histogram", "Time from the call of a claim to its answer.", "claim_latency"),
    _Family("claim_wait_seconds", "histogram", "Part of that with too few ready samples.", "claim_wait"),
)


class PlaneCollector:
    """A collector for ``prometheus_client``: ``REGISTRY.register(PlaneCollector(plane.stats))``.

    Args:
        stats: returns the stats of the plane.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The metrics of all partitions and tasks."""
        stats = self._stats()
        partitions = [((name,), one) for name, one in stats.items()]
        tasks = [((name, task), own) for name, one in stats.items() for task, own in one["tasks"].items()]
        for families, labels, rows in ((_PARTITION, ["partition"], partitions), (_TASK, ["partition", "task"], tasks)):
            metrics = [_metric(family, labels, rows) for family in families]
            yield from (metric for metric in metrics if metric.samples)


def prometheus_text(stats: Mapping[str, Any]) -> str:
    """``DataPlaneClient.stats()`` in Prometheus' text format; empty without partitions."""
    return _client().generate_latest(_registry(lambda: stats)).decode()


def serve_metrics(stats: Callable[[], Mapping[str, Any]], port: int = 0, host: str = "127.0.0.1") -> WSGIServer:
    """Serve the metrics over HTTP in a thread, ``serve_metrics(plane.stats, 9100)``, until ``shutdown()``.

    Port 0 is a free one: ``server_port`` of the result.
    """
    server, _ = _client().start_http_server(port, host, _registry(stats))
    return server


def _registry(stats: Callable[[], Mapping[str, Any]]) -> Any:
    registry = _client().CollectorRegistry(auto_describe=False)
    registry.register(PlaneCollector(stats))
    return registry


def _metric(family: _Family, labels: list[str], rows: list[tuple[tuple[str, ...], Mapping[str, Any]]]) -> Any:
    names = labels if family.label is None else [*labels, family.label]
    kind = getattr(_client().metrics_core, f"{family.kind.capitalize()}MetricFamily")
    metric = kind(PREFIX + family.name, family.help, labels=names)
    for values, stats in rows:
        found = stats[family.key]
        if found is None:
            continue
        if family.kind == "histogram":
            bounds = [*map(str, map(float, found["bounds"])), "+Inf"]
            metric.add_metric(values, list(zip(bounds, accumulate(found["counts"]), strict=True)), found["sum"])
        elif family.label is not None:
            for key, value in found.items():
                metric.add_metric([*values, key], value)
        else:
            metric.add_metric(values, found)
    return metric


def _client() -> Any:
    return import_extra("prometheus_client", "metrics", DataPlaneError)
