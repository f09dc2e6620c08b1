"""``tunegym plane top``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tunegym.cli import plane as module
from tunegym.cli.main import app
from tunegym.cli.plane import Look, table
from tunegym.dataplane import DataPlaneClient, connect
from tunegym.tuning.model.summary import Table


@pytest.fixture
def plane() -> Iterator[DataPlaneClient]:
    with connect("memory://top") as client:
        client.register_partition("p", ["x", "y"], ["train", "judge"], capacity=8)
        client.put_samples("p", list("abcd"), {"x": [1, 2, 3, 4]})
        yield client


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A plane that is a folder, with one sample."""
    url = f"mmap://{tmp_path / 'plane'}"
    with connect(url, linger_s=0.1) as client:
        client.register_partition("p", ["x"], ["train"])
        client.put_samples("p", ["a"], {"x": [1]})
        yield url


def row(found: Table, task: str) -> dict[str, str]:
    rows = [dict(zip(found.columns, cells, strict=True)) for cells in found.rows]
    return next(one for one in rows if one["task"] == task)


def test_a_row_for_each_partition_and_task(plane: DataPlaneClient) -> None:
    plane.ack(plane.claim_meta("p", "train", ["x"], 2))
    plane.claim_meta("p", "train", ["x"], 1)
    plane.clear_samples("p", ["d"], "stale")
    lines = table(Look(plane.stats(), 0.0))
    train = row(lines, "train")
    assert (train["partition"], train["produced"], train["resident"]) == ("p", "4", "3/8")
    assert (train["ready"], train["leased"], train["acked"], train["dropped"]) == ("0", "1", "2", "stale: 1")
    assert (train["age p50"], train["waiting"]) == ("-", "0")
    assert re.fullmatch(r"[0-9.]+ / [0-9.]+", train["put ms"])
    assert re.fullmatch(r"[0-9.]+ / [0-9.]+", train["claim ms"])
    assert row(lines, "judge")["claim ms"] == "-"
    assert row(lines, "judge")["ready"] == "-", "nobody has said which fields it needs"
    assert "put/s" not in lines.columns


def test_rates_are_since_the_look_before(plane: DataPlaneClient) -> None:
    before = Look(plane.stats(), 10.0)
    plane.put_samples("p", list("efgh"), {"x": [1, 2, 3, 4]})
    plane.claim_meta("p", "train", ["x"], 6)
    lines = table(Look(plane.stats(), 12.0), before)
    assert (row(lines, "train")["put/s"], row(lines, "train")["claim/s"]) == ("2", "3")
    assert row(lines, "judge")["claim/s"] == "0"
    plane.register_partition("q", ["x"], ["later"])
    assert row(table(Look(plane.stats(), 12.0), before), "later")["put/s"] == "-"


@pytest.mark.parametrize(
    ("counts", "share", "told"),
    [
        ([0, 0, 0], 0.5, "-"),
        ([1, 1, 0], 0.5, "<= 0.1 s"),
        ([1, 2, 0], 0.5, "<= 1 s"),
        ([9, 0, 1], 0.95, "> 1 s"),
    ],
)
def test_quantiles_are_ends_of_buckets(counts: list[int], share: float, told: str) -> None:
    assert module.quantile({"bounds": [0.1, 1.0], "counts": counts, "sum": 1.0}, share) == told


def test_a_names_escape_sequences_do_not_reach_the_terminal(plane: DataPlaneClient) -> None:
    plane.clear_samples("p", ["a"], "\x1b[31mred")
    assert row(table(Look(plane.stats(), 0.0)), "train")["dropped"] == "\\x1b[31mred: 1"


# the command ----------------------------------------------------------------------------------------------


def top(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plane", "top", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_once(url: str) -> None:
    assert "train" in top(url, "--once")[1]
    assert json.loads(top(url, "--once", "--json")[1])["p"]["produced"] == 1
    code, text, _ = top(url, "--prometheus")
    assert code == 0
    assert 'samples_produced_total{partition="p"} 1.0\n' in text


def test_until_it_is_interrupted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    code, text, _ = top(url, "--json", "--interval", "0.5")
    assert (code, pauses) == (0, [0.5] * 3)
    looks: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert [look["p"]["produced"] for look in looks] == [1, 1, 1]


def test_where_there_is_no_plane_none_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    code, out, err = top(f"mmap://{folder}", "--once")
    assert (code, out) == (1, "")
    assert "there is no plane at" in err
    assert "hint: " in err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("url", "told"), [("memory://x", "can't be seen from another process"), ("http://x", "unknown scheme")]
)
def test_another_url(url: str, told: str) -> None:
    code, _, err = top(url)
    assert code == 1
    assert told in err


@pytest.mark.parametrize("more", [["--json", "--prometheus"], ["--interval", "0"], ["--interval", "nan"]])
def test_arguments_that_make_no_sense(more: list[str]) -> None:
    assert top("mmap:///x", "--once", *more)[0] == 2
