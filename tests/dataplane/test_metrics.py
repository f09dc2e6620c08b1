"""Metrics of a plane in Prometheus' text format, as Prometheus' own parser reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tunegym.dataplane import connect
from tunegym.dataplane.metrics import PREFIX, PlaneCollector, prometheus_text

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[PREFIX + name, frozenset(labels.items())]


def test_of_a_plane() -> None:
    with connect("memory://prometheus") as plane:
        plane.register_partition("p", ["x"], ["train", "judge"], capacity=8)
        plane.register_partition("q", ["x"], ["train"])
        plane.put_samples("p", ["a", "b", "c"], {"x": [1, 2, 3]})
        plane.release(plane.claim_meta("p", "train", ["x"], 2))
        plane.ack(plane.claim_meta("p", "train", ["x"], 1))
        plane.clear_samples("p", ["c"], "too long")
        samples = parsed(prometheus_text(plane.stats()))
        registry = CollectorRegistry()
        registry.register(PlaneCollector(plane.stats))
        assert parsed(generate_latest(registry).decode()).keys() == samples.keys()
    own = {"partition": "p", "task": "train"}
    assert value(samples, "samples_produced_total", partition="p") == 3
    assert value(samples, "capacity_samples", partition="p") == 8
    assert (f"{PREFIX}capacity_samples", frozenset({("partition", "q")})) not in samples, "there is no limit"
    assert value(samples, "samples_gone", partition="p", reason="too long") == 1
    assert value(samples, "waiters", partition="p", call="puts") == 0
    assert value(samples, "samples_redelivered_total", **own) == 2
    assert value(samples, "samples_ready", **own, fields="x") == 1
    assert value(samples, "age_seconds_count", **own) == 1
    assert value(samples, "put_seconds_count", partition="p") == 1
    assert value(samples, "put_seconds_bucket", partition="p", le="+Inf") == 1
    assert value(samples, "claim_seconds_count", **own) == 2
    assert value(samples, "claim_wait_seconds_sum", **own) == 0.0
    assert value(samples, "lag_seconds_count", **own) == 3


def test_buckets_are_cumulative() -> None:
    with connect("memory://buckets") as plane:
        plane.register_partition("p", ["x"], ["train"])
        stats = plane.stats()
    stats["p"]["put_latency"] = {"bounds": [0.1, 1.0], "counts": [2, 0, 1], "sum": 7.5}
    samples = parsed(prometheus_text(stats))
    counts = [value(samples, "put_seconds_bucket", partition="p", le=end) for end in ("0.1", "1.0", "+Inf")]
    assert counts == [2, 2, 3]
    assert value(samples, "put_seconds_sum", partition="p") == 7.5


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_names_come_through(reason: str) -> None:
    with connect("memory://names") as plane:
        plane.register_partition("p", ["x"], ["train"])
        stats = plane.stats()
    stats["p"]["gone"] = {reason: 8}
    assert value(parsed(prometheus_text(stats)), "samples_gone", partition="p", reason=reason) == 8


def test_without_partitions() -> None:
    assert prometheus_text({}) == ""
