"""A policy as a table: in which contexts it is asked, and what comes back from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tunegym.core.errors import StoreError
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import (
    PolicyChoice,
    add_training,
    contexts_to_ask,
    load,
    save,
    table_of,
)
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Range
from tunegym.tuning.model.values import exact_key


def params(**domains: Any) -> EnvParams:
    return EnvParams(
        {name: one if isinstance(one, EnvParam) else EnvParam(one) for name, one in domains.items()}, seed=1
    )


def test_every_context_is_asked_once_by_exact_type() -> None:
    found = contexts_to_ask(params(a=Choice((1, 1.0, True, "1")), b=Choice(("x", "y"))))
    assert len(found) == 8
    assert len({exact_key(context) for context in found}) == 8
    assert contexts_to_ask(EnvParams({})) == [{}]


@pytest.mark.parametrize(
    "domains",
    [
        {f"p{index}": Choice((0, 1)) for index in range(12)},
        {f"p{index}": Range(0.0, 1.0) for index in range(8)},
        {"list": Choice(tuple(range(500))), "range": Range(0.0, 1.0)},
        {"huge": Choice(tuple(range(5000)))},
    ],
)
def test_too_many_contexts_are_drawn_as_in_trials(domains: dict[str, Any]) -> None:
    env_params = params(**domains)
    found = contexts_to_ask(env_params)
    assert len(found) == policies.MOST_CONTEXTS
    assert len({exact_key(context) for context in found}) == len(found)
    assert found[0] == env_params.context(1)
    assert found == contexts_to_ask(env_params)


def test_a_table_has_plain_values_and_comes_back(tmp_path: Path) -> None:
    """Libraries give numpy's scalars."""

    def choose(context: Any) -> PolicyChoice | None:
        action = {"x": np.int64(3), "rate": np.float64(0.5), "flag": np.bool_(True), "mode": "fast"}
        chance = {"a": np.float32(0.25), "b": float("nan")}.get(context["load"])
        return None if context["load"] == "c" else PolicyChoice(action, chance)

    table = table_of("agent", 7, params(load=Choice(("a", "b", "c"))), choose)
    assert [one.context for one in table.choices] == [{"load": "a"}, {"load": "b"}]
    assert [one.chance for one in table.choices] == [0.25, None]
    assert load(tmp_path) is None
    save(tmp_path, table)
    save(tmp_path, table)
    found = load(tmp_path)
    assert found == table
    assert found is not None
    assert [type(value) for value in found.choices[0].action.values()] == [int, float, bool, str]
    assert [file.name for file in (tmp_path / "policy").iterdir()] == ["policy.json"]


GOOD: dict[str, Any] = {"format": 1, "agent": "a", "trials": 3, "choices": [{"context": {}, "action": {}, "chance": 1}]}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b'{"format": 1, "agent": "a"',
        b"\xff",
        [],
        {key: value for key, value in GOOD.items() if key != "agent"},
        GOOD | {"trials": "3"},
        GOOD | {"choices": {}},
        GOOD | {"choices": [1]},
        GOOD | {"choices": [{"context": {}, "action": {}, "chance": "much"}]},
        GOOD | {"choices": [{"context": [], "action": {}, "chance": None}]},
        GOOD | {"choices": [{"context": {}, "chance": None}]},
        GOOD | {"choices": [{"context": {}, "action": {"x": [1]}, "chance": None}]},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, document: Any) -> None:
    (tmp_path / "policy").mkdir()
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    (tmp_path / "policy" / "policy.json").write_bytes(text)
    with pytest.raises(StoreError, match="is damaged") as caught:
        load(tmp_path)
    assert caught.value.hint


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy" / "policy.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="can't be read"):
        load(tmp_path)


@pytest.mark.parametrize("torn", [b"", b"{", b'{"trials": 100, "values": {"train/loss": 0.' + b"1" * 10_000])
@pytest.mark.parametrize("before", [0, 2])
def test_training_curves_have_whole_lines(tmp_path: Path, torn: bytes, before: int) -> None:
    """A line that a killed writer left torn is cut off."""
    for number in range(before):
        add_training(tmp_path, number, {"a": 1.0})
    (tmp_path / "policy").mkdir(exist_ok=True)
    with (tmp_path / "policy" / "training.jsonl").open("ab") as file:
        file.write(torn)
    add_training(tmp_path, 9, {"train/loss": np.float32(0.5), "train/bad": float("nan")})
    lines = [orjson.loads(line) for line in (tmp_path / "policy" / "training.jsonl").read_bytes().splitlines()]
    assert [line["trials"] for line in lines] == [*range(before), 9]
    assert lines[-1]["values"] == {"train/loss": 0.5, "train/bad": None}
