"""The stats of a plane: as metrics of Prometheus, read by its own parser, and in ``tunegym plane top``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import Cli

from tunegym.cli import plane as module
from tunegym.cli.plane import Look, table
from tunegym.dataplane import DataPlaneClient, connect
from tunegym.dataplane.metrics import PREFIX, PlaneCollector, prometheus_text, serve_metrics


@pytest.fixture
def plane() -> Iterator[DataPlaneClient]:
    """A plane with four samples: one acked, one leased again after a release, one cleared."""
    with connect("memory://stats") as client:
        client.register_partition("p", ["x", "y"], ["train", "judge"], capacity=8)
        client.put_samples("p", list("abcd"), {"x": [1, 2, 3, 4]})
        client.release(client.claim_meta("p", "train", ["x"], 2))
        client.ack(client.claim_meta("p", "train", ["x"], 1))
        client.claim_meta("p", "train", ["x"], 1)
        client.clear_samples("p", ["d"], "\x1b[31mstale")
        yield client


# metrics ----------------------------------------------------------------------------------------------


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def test_metrics(plane: DataPlaneClient) -> None:
    plane.register_partition("q", ["x"], ["train"])
    found = parsed(prometheus_text(plane.stats()))
    registry = CollectorRegistry()
    registry.register(PlaneCollector(plane.stats))
    assert parsed(generate_latest(registry).decode()).keys() == found.keys()
    own, task = frozenset({("partition", "p")}), frozenset({("partition", "p"), ("task", "train")})
    expected = {
        ("samples_produced_total", own): 4,
        ("capacity_samples", own): 8,
        ("samples_gone", own | {("reason", "\x1b[31mstale")}): 1,
        ("waiters", own | {("call", "puts")}): 0,
        ("put_seconds_count", own): 1,
        ("put_seconds_bucket", own | {("le", "+Inf")}): 1,
        ("samples_redelivered_total", task): 2,
        ("samples_ready", task | {("fields", "x")}): 1,
        ("age_seconds_count", task): 1,
        ("claim_seconds_count", task): 3,
        ("claim_wait_seconds_sum", task): 0.0,
        ("lag_seconds_count", task): 4,
    }
    assert {key: found[key] for key in expected} == expected
    assert ("capacity_samples", frozenset({("partition", "q")})) not in found, "there is no limit"
    assert prometheus_text({}) == ""


def test_metrics_over_http(plane: DataPlaneClient) -> None:
    server = serve_metrics(plane.stats)
    try:
        assert server.server_address[0] == "127.0.0.1"
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            found = parsed(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
    assert found["samples_produced_total", frozenset({("partition", "p")})] == 4


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_buckets_are_cumulative_and_labels_are_escaped(reason: str) -> None:
    with connect("memory://buckets") as plane:
        plane.register_partition("p", ["x"], ["train"])
        stats = plane.stats()
    stats["p"] |= {"put_latency": {"bounds": [0.1, 1.0], "counts": [2, 0, 1], "sum": 7.5}, "gone": {reason: 8}}
    found, own = parsed(prometheus_text(stats)), frozenset({("partition", "p")})
    assert [found["put_seconds_bucket", own | {("le", end)}] for end in ("0.1", "1.0", "+Inf")] == [2, 2, 3]
    assert (found["put_seconds_sum", own], found["samples_gone", own | {("reason", reason)}]) == (7.5, 8)


# tunegym plane top ------------------------------------------------------------------------------------


def rows(now: Look, before: Look | None = None) -> dict[str, dict[str, str]]:
    """The table's cells by task and column."""
    found = table(now, before)
    cells = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return {one["task"]: one for one in cells}


def test_a_row_for_each_partition_and_task(plane: DataPlaneClient) -> None:
    found = rows(Look(plane.stats(), 0.0))
    train, judge = found["train"], found["judge"]
    assert (train["partition"], train["produced"], train["resident"]) == ("p", "4", "3/8")
    assert (train["ready"], train["leased"], train["acked"], train["waiting"]) == ("1", "1", "1", "0")
    assert train["dropped"] == "\\x1b[31mstale: 1"
    assert re.fullmatch(r"[0-9.]+ / [0-9.]+", train["put ms"])
    assert re.fullmatch(r"[0-9.]+ / [0-9.]+", train["claim ms"])
    assert (judge["claim ms"], judge["ready"]) == ("-", "-"), "no claim has named the fields that it needs"
    assert "put/s" not in train


def test_rates_are_since_the_look_before(plane: DataPlaneClient) -> None:
    before = Look(plane.stats(), 10.0)
    plane.put_samples("p", list("efgh"), {"x": [1, 2, 3, 4]})
    plane.claim_meta("p", "train", ["x"], 2)
    plane.register_partition("q", ["x"], ["later"])
    found = rows(Look(plane.stats(), 12.0), before)
    assert (found["train"]["put/s"], found["train"]["claim/s"]) == ("2", "1")
    assert (found["judge"]["claim/s"], found["later"]["put/s"]) == ("0", "-")


def test_quantiles_are_ends_of_buckets() -> None:
    for counts, told in (([0, 0, 0], "-"), ([1, 1, 0], "<= 0.1 s"), ([1, 2, 0], "<= 1 s"), ([2, 0, 9], "> 1 s")):
        assert module.quantile({"bounds": [0.1, 1.0], "counts": counts, "sum": 1.0}, 0.5) == told


def test_top_of_a_plane(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"mmap://{tmp_path / 'plane'}"
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    with connect(url, linger_s=0.1) as client:
        client.register_partition("p", ["x"], ["train"])
        client.put_samples("p", ["a"], {"x": [1]})
        assert "train" in cli("plane", "top", url, "--once").stdout
        assert json.loads(cli("plane", "top", url, "--once", "--json").stdout)["p"]["produced"] == 1
        assert 'samples_produced_total{partition="p"} 1.0\n' in cli("plane", "top", url, "--prometheus").stdout
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        done = cli("plane", "top", url, "--json", "--interval", 0.5, code=0)
    assert pauses == [0.5] * 3
    looks: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [look["p"]["produced"] for look in looks] == [1, 1, 1]


def test_wrong_arguments_of_top(cli: Cli, tmp_path: Path) -> None:
    for url, told in (
        (f"mmap://{tmp_path / 'none'}", "there is no plane at"),
        ("memory://x", "can't be seen from another process"),
        ("http://x", "unknown scheme"),
    ):
        done = cli("plane", "top", url, "--once", code=1)
        assert (done.stdout, told in done.stderr, "hint: " in done.stderr) == ("", True, True)
    assert not (tmp_path / "none").exists()
    for more in (["--json", "--prometheus"], ["--interval", "0"], ["--interval", "nan"]):
        cli("plane", "top", "mmap:///x", "--once", *more, code=2)
