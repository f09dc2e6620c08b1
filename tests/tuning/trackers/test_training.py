"""Following what an agent tells of its training, whatever state the file is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.tuning.agents.policies import FOLDER, TRAINING, add_training
from tunegym.tuning.trackers.training import TrainingTail, Update


def test_follows_what_is_written(tmp_path: Path) -> None:
    tail = TrainingTail(tmp_path / FOLDER / TRAINING)
    assert tail.read() == []
    add_training(tmp_path, 10, {"loss": 1.0})
    assert tail.read() == [Update(10, {"loss": 1.0})]
    assert tail.read() == []
    add_training(tmp_path, 10, {"loss": 2.0, "bad": float("inf")})
    add_training(tmp_path, 20, {})
    assert tail.read() == [Update(10, {"loss": 2.0}), Update(20, {})]
    tail.rewind()
    assert [update.trials for update in tail.read()] == [10, 10, 20]


def test_a_torn_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    path.write_bytes(b'{"trials": 1, "values": {"a": 1}}\n{"trials": 2, "val')
    tail = TrainingTail(path)
    assert tail.read() == [Update(1, {"a": 1.0})]
    assert tail.read() == []
    path.write_bytes(b'{"trials": 1, "values": {"a": 1}}\n{"trials": 3, "values": {"a": 3}}\n')  # cut, and gone on
    assert tail.read() == [Update(3, {"a": 3.0})]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\x00\xff",
        b"[]",
        b"3",
        b'{"trials": "2", "values": {}}',
        b'{"trials": -1, "values": {}}',
        b'{"trials": true, "values": {}}',
        b'{"trials": 2, "values": [1]}',
        b'{"trials": 2}',
        b'{"trials": 0, "values": {"a": 9}}',
    ],
)
def test_what_is_no_update_is_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "training.jsonl"
    path.write_bytes(b'{"trials": 1, "values": {"a": 1}}\n' + line + b'\n{"trials": 3, "values": {"a": 3}}\n')
    assert TrainingTail(path).read() == [Update(1, {"a": 1.0}), Update(3, {"a": 3.0})]


def test_only_numbers_are_values(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    path.write_text('{"trials": 1, "values": {"a": 1, "b": null, "c": "x", "d": true, "e": [1], "f": 1.5}}\n')
    assert TrainingTail(path).read() == [Update(1, {"a": 1.0, "f": 1.5})]
