"""A live journal that somebody damaged, though every line is valid JSON: said, with the line, by every command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import tunegym as library
from tunegym.tuning.stores import reader


def _spaces(record: dict[str, Any]) -> None:
    record["action"]["kind"] = "Torus"


def _episode(record: dict[str, Any]) -> None:
    record["episodes"][0] = record["episodes"][0][:4]


def _count(record: dict[str, Any]) -> None:
    record["count"] += 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage", "commands"),
    [
        ("spaces", _spaces, ["resume"]),
        ("steps", _episode, ["status", "report", "recommend", "resume"]),
        ("steps", _count, ["status", "report", "resume"]),
    ],
)
def test_damaged(
    live: Any, tunegym: Any, kind: str, damage: Callable[[dict[str, Any]], None], commands: list[str]
) -> None:
    assert library.run(live.document(agent_steps=200)) == 0
    run: Path = live.run
    path = run / "e" / reader.JOURNAL
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    line = next(
        at
        for at, one in enumerate(records, start=1)
        if one["record"] == kind and ("count" not in one or one.get("episodes"))
    )
    damage(records[line - 1])
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    kept = path.read_bytes()
    for command in commands:
        more = ["--agent-steps", 300] if command == "resume" else []
        done = tunegym(command, run, *more)
        said = done.stdout + done.stderr
        assert f"journal.jsonl: line {line} ({kind}) is damaged: " in said, (command, said)
        assert "Traceback" not in said
        assert path.read_bytes() == kept
    shutil.rmtree(run)
