"""The benchmark of the data plane: it can be run, and what it measures is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.dataplane import peers, recovery, wake_up
from benchmarks.dataplane.batches import KINDS
from benchmarks.dataplane.pipe import Child
from benchmarks.dataplane.places import hosts_of, place

ROOT = Path(__file__).resolve().parents[2]


def test_help() -> None:
    command = [sys.executable, "-m", "benchmarks.dataplane", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part in ("ledger", "columns", "peers", "wake-up", "recovery"):
        assert part in done.stdout


@pytest.mark.slow
def test_a_batch_of_each_kind_goes_through(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)  # as if there were no peers
    monkeypatch.setattr(peers, "KINDS", {kind: KINDS[kind] for kind in ("jagged", "dense", "single")})
    monkeypatch.setattr(peers, "ROUNDS", {True: 1})
    lines = list(peers.measured(quick=True))
    assert [(line.name, line.peer_name) for line in lines] == [
        ("put, 512 jagged rows", "bare write"),
        ("padded, 512 jagged rows", "numpy's copy"),
        ("put, 512 x 4,096", "bare write"),
    ]
    assert "tunegym[peers]" in capsys.readouterr().err


@pytest.mark.slow
def test_claims_that_wait() -> None:
    with place() as folder:
        url = f"mmap://{folder}"
        with Child("benchmarks.dataplane.ours", url) as producer, Child("benchmarks.dataplane.ours", url) as consumer:
            assert [line.unit for line in wake_up.wake_ups(producer, consumer, 2)] == ["ms", "ms"]
            for choosy in (False, True):
                line = wake_up.put_while_waiting(producer, consumer, "single", choosy, 1)
                assert len(line.ratios) == 1
    assert not hosts_of(folder)


@pytest.mark.slow
def test_recovery(tmp_path: Path) -> None:
    assert [line.unit for line in recovery.killed(tmp_path / "plane", "arbitrary", 20_000)] == ["s", "s"]
