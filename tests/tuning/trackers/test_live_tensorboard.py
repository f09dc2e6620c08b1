from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.tuning.agents import policies
from tunegym.tuning.trackers.points import Point

HEAD = {"run": "token", "live": {"record": "all"}, "agent": "ppo", "seed": 1}
POINTS = [Point(at, 1000.0 + at, {"episode/return": float(at), "failed": 0.0, "episodes": 1.0}) for at in (3, 8, 12)]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="missing component: tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tunegym.tuning.trackers.tensorboard import TensorboardSink

    policies.add_training(tmp_path, 8, {"train/loss": 0.5})
    for _ in range(2):  # another session writes everything again
        sink = TensorboardSink(str(tmp_path / "tensorboard"))
        assert sink.open(HEAD) == set()
        assert list(sink.send_points(POINTS)) == [3, 8, 12]
        sink.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("episode/return")] == [(3, 3.0), (8, 8.0), (12, 12.0)]
    assert [one.step for one in found.Scalars("training/train/loss")] == [8]
