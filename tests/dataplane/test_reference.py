"""The reference page names everything that is public, with its arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunegym import dataplane
from tunegym.dataplane import BatchMeta, DataPlaneClient, Producer, errors
from tunegym.dataplane.metrics import PREFIX, prometheus_text

TEXT = (Path(__file__).resolve().parents[2] / "docs/reference/dataplane.md").read_text(encoding="utf-8")
FUNCTIONS = ["connect", "attach", "kv_first_write", "read_columns", "write_columns", "cut", "shard_meta_for_dp"]


def call(name: str, function: Callable[..., Any]) -> str:
    """A call as the page writes it, with the defaults."""
    shown: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = repr(parameter.default).replace("'", '"')
        shown.append(parameter.name if parameter.default is parameter.empty else f"{parameter.name}={default}")
    return f"`{name}({', '.join(shown)})`"


def test_names_and_calls() -> None:
    names = TEXT[TEXT.index("## Names") : TEXT.index("## Planes")]
    assert [name for name in dataplane.__all__ if f"`{name}`" not in names and not name.endswith("Error")] == []
    calls = {name: getattr(dataplane, name) for name in FUNCTIONS}
    for name, member in vars(DataPlaneClient).items():
        if not name.startswith("_") and inspect.isfunction(member):
            if name.endswith("_async"):
                assert f"`{name}(...)`" in TEXT
            elif name != member.__name__:
                assert f"`{name}`" in TEXT  # an alias
            else:
                calls[name] = member
    calls.update({"start": Producer.start})
    assert [shown for name, one in calls.items() if (shown := call(name, one)) not in TEXT] == []
    assert "`durable`" in TEXT


def test_batches() -> None:
    text = TEXT[TEXT.index("## BatchMeta") : TEXT.index("## Predicates")]
    public = [name for name in vars(BatchMeta) if not name.startswith("_")]
    for name in {*public, *(field.name for field in dataclasses.fields(BatchMeta))}:
        assert re.search(rf"`(BatchMeta\.)?{name}\b", text), name


def test_errors_and_metrics() -> None:
    own = {name for name, one in vars(errors).items() if getattr(one, "__module__", None) == errors.__name__}
    assert own <= set(dataplane.__all__)
    assert set(re.findall(r"^\| `(\w+Error)` \|", TEXT, re.MULTILINE)) == own
    with dataplane.connect("memory://reference") as plane:
        plane.register_partition("p", ["x"], ["train"], capacity=4, capacity_bytes=9999)
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        plane.ack(plane.claim_meta("p", "train", ["x"], 1), version=1)
        plane.commit("p", "train", 1)
        found = re.findall(rf"^# TYPE {PREFIX}(\w+) (\w+)$", prometheus_text(plane.stats()), re.MULTILINE)
    table = re.findall(r"^\| (`.*?`) \| (counter|gauge|histogram) \|", TEXT, re.MULTILINE)
    assert {(name, kind) for names, kind in table for name in re.findall(r"`(\w+)", names)} == set(found)
