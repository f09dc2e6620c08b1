"""Records that are valid JSON, and say what can't be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.spaces import describe
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import damage

GROUP: dict[str, Any] = {
    "record": "steps",
    "count": 3,
    "first": 1,
    "episode": [1, 1, 2],
    "reward": [0.5, 1, -1.0],
    "duration_s": [0.1, 0.2, 0.3],
    "terminated": [1],
    "truncated": [],
    "action": [[0, 1, 2]],
    "observation": {"row": 0},
    "context": [[0, {"load": 1}], [2, {"load": 5}]],
    "metrics": {"m": [1.0, None, 2]},
    "unmeasured": [[2, "failed", "it raised"]],
    "episodes": [[1, 0, 1, 2, 2, 1.5, "terminated", {"load": 1}]],
    "upto": 3,
    "begun": 2,
    "statuses": {"measured": 2, "failed": 1},
    "worst": 0.5,
    "largest": 1.0,
    "since": 1.5,
}
HEAD = {"record": "head", "version": 1, "experiment": "e", "run": "r", "live": {"record": "all"}}
SPACES = {
    "record": "spaces",
    "action": describe(spaces.Discrete(3)),
    "observation": describe(spaces.Box(0, 255, (64,))),
}


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., Path]:
    def write(*records: Any) -> Path:
        path = tmp_path / "journal.jsonl"
        path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        return path

    return write


def test_what_is_whole_is_read(journal: Callable[..., Path]) -> None:
    path = journal(HEAD, SPACES, GROUP, {**GROUP, "first": 4, "worst": None}, {**GROUP, "count": 0})
    past = reader.scan(path)
    assert past.spaces_line == 2
    assert reader.space_of(path, past, "action") == spaces.Discrete(3)
    assert len(list(reader.steps(path))) == 2
    assert len(list(reader.episodes(path))) == 3


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.pop(name)


def _with(**parts: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.update(parts)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_with(count=4), "episode doesn't have 4 numbers"),
        (_with(count="3"), "count is not a number"),
        (_with(count=-1), "count is not a number"),
        (_without("first"), "it doesn't have the numbers of 3 steps"),
        (lambda record: record.update(first=None, numbers=[1, 2]), "it doesn't have the numbers of 3 steps"),
        (_with(episode=None), "episode doesn't have 3 numbers"),
        (_with(reward=[1.0, "x", 2.0]), "reward doesn't have 3 numbers"),
        (_without("duration_s"), "duration_s doesn't have 3 numbers"),
        (_with(terminated=[3]), "terminated names other steps"),
        (_with(truncated=None), "truncated names other steps"),
        (_with(metrics={"m": [1.0]}), "the metric m doesn't have 3 values"),
        (_with(metrics=[]), "metrics are not a table"),
        (_with(context=[[0]]), "context is not that of its steps"),
        (_with(context=[[1, {}]]), "context is not that of its steps"),
        (_with(context=[[0, {}], [2, {}], [1, {}]]), "context is not that of its steps"),
        (_with(unmeasured=[[2, "failed"]]), "unmeasured names other steps"),
        (_with(unmeasured=[[7, "failed", "why"]]), "unmeasured names other steps"),
        (_with(action=[[0, 1]]), "action doesn't have 3 elements"),
        (_with(observation={}), "observation doesn't have 3 elements"),
        (_with(episodes=[[1, 0, 1]]), "an episode is incomplete"),
        (_with(episodes=[[1, 0, 1, 2, 2, "much", "terminated", {}]]), "an episode is incomplete"),
        (_with(statuses={"measured": "two"}), "statuses are not counts"),
        (_with(worst="bad"), "worst or largest is not a number"),
        (_with(upto=None), "upto is not a number"),
        (_with(since="now"), "since is not a number"),
    ],
)
def test_a_group_that_does_not_fit_together(
    journal: Callable[..., Path], damage: Callable[[dict[str, Any]], Any], message: str
) -> None:
    record = copy.deepcopy(GROUP)
    damage(record)
    path = journal(HEAD, GROUP, record, GROUP)
    for read in (reader.scan, lambda path: list(reader.steps(path)), lambda p: list(reader.episodes(p))):
        with pytest.raises(StoreError) as caught:
            read(path)
        assert caught.value.message == f"{path}: line 3 (steps) is damaged: {message}"
        assert "head -n 2" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "record",
    [
        {"record": "reserve", "upto": "ten"},
        {"record": "lost", "first": 1, "last": None},
    ],
)
def test_other_records(record: dict[str, Any]) -> None:
    assert damage(record)


@pytest.mark.parametrize("action", [{"kind": "Torus"}, {}, None, {"kind": "Box", "shape": [2]}])
def test_spaces_that_are_none(journal: Callable[..., Path], action: Any) -> None:
    path = journal(HEAD, {**SPACES, "action": action})
    with pytest.raises(StoreError, match=r"journal\.jsonl: line 2 \(spaces\) is damaged: action: "):
        reader.space_of(path, reader.scan(path), "action")
