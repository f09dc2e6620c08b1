from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tunegym.dataplane import connect
from tunegym.dataplane.prometheus import PREFIX, prometheus_text

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
LINE = re.compile(rf"^({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)$")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def parsed(text: str) -> tuple[Samples, dict[str, str]]:
    """The samples and the types of a page, which must follow the rules of the format."""
    samples: Samples = {}
    kinds: dict[str, str] = {}
    helped = family = ""
    assert not text or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            helped = line.split(" ")[2]
            assert line.split(" ", 3)[3]
            continue
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == helped, "HELP comes right before TYPE"
            assert family not in kinds, "all samples of a family are together"
            assert kind in ("counter", "gauge", "histogram")
            kinds[family] = kind
            continue
        found = LINE.match(line)
        assert found, line
        own = re.fullmatch(rf"{family}(_bucket|_sum|_count)" if kinds[family] == "histogram" else family, found[1])
        assert own, line
        labels = frozenset((name, unescaped(value)) for name, value in re.findall(LABEL, found[2]))
        assert (found[1], labels) not in samples, "each is there once"
        samples[found[1], labels] = float(found[len(found.groups())])
    return samples, kinds


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[PREFIX + name, frozenset(labels.items())]


def stats(partition: str = "p", reason: str = "stale", **changes: Any) -> dict[str, Any]:
    """Of a partition of which something is known in every respect."""
    lag = {"bounds": [0.1, 1.0], "counts": [2, 0, 1], "sum": 7.5}
    task = {
        "ready": {"x": 1, "x,y": 2},
        "free": 3,
        "leased": 4,
        "acked": 5,
        "claimed": 6,
        "redelivered": 7,
        "committed": -1,
        "age": {"bounds": [0.1, 1.0], "counts": [0, 0, 0], "sum": 0.0},
        "lag": lag,
        "claim_latency": lag,
        "claim_wait": lag,
    }
    whole = {
        "produced": 20,
        "resident": 13,
        "alive": 12,
        "capacity": 64,
        "bytes": 1 << 40,
        "blocks": 2,
        "epoch": 1,
        "sealed": True,
        "gone": {reason: 8, "consumed": 9},
        "waiting": {"puts": 1, "claims": 0},
        "put_latency": {"bounds": [0.001, 0.1], "counts": [1, 1, 0], "sum": 0.02},
        "put_wait": {"bounds": [0.001, 0.1], "counts": [2, 0, 0], "sum": 0.0},
        "tasks": {"train": task},
    }
    return {partition: {**whole, **changes}}


def test_every_number_is_there() -> None:
    samples, kinds = parsed(prometheus_text(stats()))
    assert value(samples, "samples_produced_total", partition="p") == 20
    assert value(samples, "bytes", partition="p") == 1 << 40
    assert value(samples, "sealed", partition="p") == 1
    assert value(samples, "samples_gone", partition="p", reason="stale") == 8
    assert value(samples, "waiters", partition="p", call="puts") == 1
    own = {"partition": "p", "task": "train"}
    assert value(samples, "samples_ready", **own, fields="x,y") == 2
    assert value(samples, "samples_leased", **own) == 4
    assert value(samples, "samples_acked", **own) == 5
    assert value(samples, "samples_redelivered_total", **own) == 7
    assert value(samples, "committed_version", **own) == -1
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    assert counters == {name for name in kinds if name.endswith("_total")}


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    samples, kinds = parsed(prometheus_text(stats()))
    own = {"partition": "p", "task": "train"}
    assert kinds[f"{PREFIX}lag_seconds"] == "histogram"
    counts = [value(samples, "lag_seconds_bucket", **own, le=end) for end in ("0.1", "1.0", "+Inf")]
    assert counts == [2, 2, 3]
    assert value(samples, "lag_seconds_count", **own) == 3
    assert value(samples, "lag_seconds_sum", **own) == 7.5
    assert value(samples, "claim_seconds_count", **own) == 3
    assert value(samples, "claim_wait_seconds_count", **own) == 3
    assert value(samples, "put_seconds_bucket", partition="p", le="0.001") == 1
    assert value(samples, "put_wait_seconds_count", partition="p") == 2


def test_what_is_not_known_is_left_out() -> None:
    text = prometheus_text(stats(capacity=None, gone={}, tasks={}))
    assert "capacity" not in text
    assert "samples_gone" not in text
    assert "task" not in text
    assert prometheus_text({}) == ""


def test_families_of_several_partitions_are_together() -> None:
    samples, _ = parsed(prometheus_text({**stats("p"), **stats("q", produced=3)}))
    assert value(samples, "samples_produced_total", partition="p") == 20
    assert value(samples, "samples_produced_total", partition="q") == 3


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_names_come_through(partition: str, reason: str) -> None:
    samples, _ = parsed(prometheus_text(stats(partition, reason)))
    assert value(samples, "samples_gone", partition=partition, reason=reason) == (9 if reason == "consumed" else 8)


def test_of_a_real_plane() -> None:
    with connect("memory://prometheus") as plane:
        plane.register_partition("p", ["x"], ["train", "judge"])
        plane.put_samples("p", ["a", "b", "c"], {"x": [1, 2, 3]})
        plane.release(plane.claim_meta("p", "train", ["x"], 2))
        plane.ack(plane.claim_meta("p", "train", ["x"], 1))
        plane.clear_samples("p", ["c"], "too long")
        samples, _ = parsed(prometheus_text(plane.stats()))
    own = {"partition": "p", "task": "train"}
    assert value(samples, "samples_gone", partition="p", reason="too long") == 1
    assert value(samples, "samples_redelivered_total", **own) == 2
    assert value(samples, "samples_ready", **own, fields="x") == 1
    assert value(samples, "age_seconds_count", **own) == 1
    assert value(samples, "put_seconds_count", partition="p") == 1
    assert value(samples, "claim_seconds_count", **own) == 2
    assert value(samples, "claim_wait_seconds_sum", **own) == 0.0
    assert value(samples, "lag_seconds_count", **own) == 3
