"""What is read back with TensorBoard's own reader is what the journal says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.tuning.model.trial import Failed, Measured, Trial
from tunegym.tuning.trackers import tensorboard
from tunegym.tuning.trackers.feed import Item, values_of
from tunegym.tuning.trackers.tensorboard import TensorboardSink

pytestmark = pytest.mark.filterwarnings("ignore")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def hparams(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def entry(number: int, outcome: Any, reward: float = 0.0) -> Item:
    trial = Trial(number, {"load": 0.25}, {"x": number, "mode": "fast", "pin": True}, outcome, reward, 1.0)
    return Item(number, 1002.0 + number, values_of(trial), trial, 1000.0 + number)


def measured(*values: float) -> Measured:
    return Measured(tuple({"v": value} for value in values))


ENTRIES = [
    entry(1, measured(1.0, 2.0), 1.5),
    entry(3, measured(0.1, 0.1), 0.1),  # overtook the second
    entry(2, Failed("why"), -99.0),
    entry(4, measured(7.0, 9.0), 8.0),
]


def send(folder: Path, items: Sequence[Item] = ENTRIES) -> list[int]:
    """One session."""
    sink = TensorboardSink(str(folder))
    assert sink.open({}) == set()
    sent = list(sink.send(items))
    sink.close()
    return sent


def test_scalars(tmp_path: Path) -> None:
    assert send(tmp_path) == [1, 3, 2, 4]
    found = read(tmp_path)
    assert found["measured"] == [(1, 1.0), (3, 1.0), (2, 0.0), (4, 1.0)], "TensorBoard draws them by step"
    assert found["reward"] == [(1, 1.5), (3, np.float32(0.1)), (4, 8.0)]
    assert found["best_reward"] == [(1, 1.5), (3, 1.5), (4, 8.0)]
    assert found["metrics/v"] == [(1, 1.5), (3, np.float32(0.1)), (4, 8.0)]
    assert found["spread/v"] == [(1, np.float32(0.5**0.5)), (3, 0.0), (4, np.float32(2**0.5))]


def test_parameters_and_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first trials have a folder."""
    monkeypatch.setattr(tensorboard, "MOST_HPARAMS", 2)
    send(tmp_path)
    assert sorted(folder.name for folder in (tmp_path / "trials").iterdir()) == ["000001", "000002"]
    first = hparams(tmp_path / "trials" / "000001")
    assert first == {"x": 1.0, "mode": "fast", "pin": True, "context.load": 0.25, "tunegym.status": "measured"}
    assert read(tmp_path / "trials" / "000001")["reward"] == [(1, 1.5)]
    second = hparams(tmp_path / "trials" / "000002")
    assert second["tunegym.status"] == "failed"
    assert "reward" not in read(tmp_path / "trials" / "000002"), "a penalty is no measurement"


def test_another_session_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a user's own")
    for _ in range(3):
        send(tmp_path)
    sink = TensorboardSink(str(tmp_path))  # and one that is opened again after an error
    sink.open({})
    list(sink.send(ENTRIES[:1]))
    sink.open({})
    list(sink.send(ENTRIES))
    sink.close()
    assert [step for step, _ in read(tmp_path)["measured"]] == [1, 3, 2, 4]
    assert len(list(tmp_path.glob("events*"))) == 1
    assert all(len(list(folder.iterdir())) == 1 for folder in (tmp_path / "trials").iterdir())
    assert (tmp_path / "notes.txt").read_text() == "a user's own"


def told(folder: Path, *lines: str) -> None:
    (folder / "policy").mkdir(exist_ok=True)
    with (folder / "policy" / "training.jsonl").open("a") as file:
        file.write("".join(lines))


def update(trials: int, loss: float) -> str:
    return f'{{"trials": {trials}, "values": {{"train/loss": {loss}, "train/none": null}}}}\n'


def training(folder: Path) -> dict[str, list[tuple[int, float]]]:
    return {tag: points for tag, points in read(folder / "tensorboard").items() if tag.startswith("training/")}


def test_training_curves_are_written_along(tmp_path: Path) -> None:
    sink = TensorboardSink(str(tmp_path / "tensorboard"))
    sink.open({})
    list(sink.send([entry(1, measured(1.0))]))
    assert training(tmp_path) == {}
    told(tmp_path, update(1, 0.5), update(3, 0.25), update(3, 0.125), '{"trials": 4, "val')
    list(sink.send([entry(number, measured(1.0)) for number in (2, 3, 4)]))
    told(tmp_path, 'ues": {"train/loss": 2.0}}\n', update(9, 4.0))
    sink.close()
    found = read(tmp_path / "tensorboard")
    assert found["training/train/loss"] == [(1, 0.5), (3, 0.25), (3, 0.125), (4, 2.0), (9, 4.0)]
    assert [step for step, _ in found["reward"]] == [1, 2, 3, 4]
    assert [value for _, value in found["best_reward"]] == [0.0] * 4


def test_means_over_episodes(tmp_path: Path) -> None:
    items = [Item(at, 1000.0 + at, {"episode/return": float(at), "episodes": 1.0}) for at in (3, 8, 12)]
    told(tmp_path, update(8, 0.5))
    assert send(tmp_path / "tensorboard", items) == [3, 8, 12]
    found = read(tmp_path / "tensorboard")
    assert found["episode/return"] == [(3, 3.0), (8, 8.0), (12, 12.0)]
    assert found["training/train/loss"] == [(8, 0.5)]
    assert "measured" not in found


def test_a_line_that_is_no_update_is_passed_over(tmp_path: Path) -> None:
    odd = ["", "{", "\x00", "[]", '{"trials": "2", "values": {}}', '{"trials": 2}', '{"trials": 2, "values": [1]}']
    told(tmp_path, update(1, 0.5), *(f"{line}\n" for line in odd), update(3, 0.25), update(2, 9.0))
    for _ in range(2):  # another session doubles nothing
        send(tmp_path / "tensorboard", [])
    assert training(tmp_path) == {"training/train/loss": [(1, 0.5), (3, 0.25)]}
