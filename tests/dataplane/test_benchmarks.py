"""The benchmarks of the data plane run, and measure what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.dataplane import peers, recovery, wake_up
from benchmarks.dataplane.batches import KINDS
from benchmarks.dataplane.pipe import Child
from benchmarks.dataplane.places import hosts_of, place


@pytest.mark.slow
def test_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)  # as if there were no peers
    monkeypatch.setattr(peers, "KINDS", {kind: KINDS[kind] for kind in ("jagged", "dense", "single")})
    monkeypatch.setattr(peers, "ROUNDS", {True: 1})
    assert [(line.name, line.peer_name) for line in peers.measured(quick=True)] == [
        ("put, 512 jagged rows", "bare write"),
        ("padded, 512 jagged rows", "numpy's copy"),
        ("put, 512 x 4,096", "bare write"),
    ]
    assert "tunegym[peers]" in capsys.readouterr().err
    with place() as folder:
        url = f"mmap://{folder}"
        with Child("benchmarks.dataplane.ours", url) as producer, Child("benchmarks.dataplane.ours", url) as consumer:
            assert [line.unit for line in wake_up.wake_ups(producer, consumer, 2)] == ["ms", "ms"]
            for choosy in (False, True):
                assert len(wake_up.put_while_waiting(producer, consumer, "single", choosy, 1).ratios) == 1
    assert not hosts_of(folder)
    assert [line.unit for line in recovery.killed(tmp_path / "plane", "arbitrary", 20_000)] == ["s", "s"]
