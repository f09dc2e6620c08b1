"""The reference has everything that is public, as it is."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunegym import dataplane
from tunegym.dataplane import BatchMeta, DataPlaneClient, errors
from tunegym.dataplane.metrics import PREFIX, prometheus_text

TEXT = (Path(__file__).resolve().parents[2] / "docs/reference/dataplane.md").read_text(encoding="utf-8")


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


METHODS = [
    name
    for name, member in vars(DataPlaneClient).items()
    if not name.startswith("_") and inspect.isfunction(member) and not name.endswith("_async")
]
FUNCTIONS = ["connect", "attach", "kv_first_write", "read_columns", "write_columns", "cut", "shard_meta_for_dp"]


@pytest.mark.parametrize("name", dataplane.__all__)
def test_name_is_there(name: str) -> None:
    names = TEXT[TEXT.index("## Names") : TEXT.index("## Planes")]
    assert f"`{name}`" in names


@pytest.mark.parametrize("name", METHODS)
def test_method_is_there_with_its_arguments(name: str) -> None:
    assert call(name, getattr(DataPlaneClient, name)) in TEXT


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_there_with_its_arguments(name: str) -> None:
    assert call(name, getattr(dataplane, name)) in TEXT


@pytest.mark.parametrize("name", ["put_samples_async", "claim_meta_async", "durable"])
def test_the_rest_of_the_client_is_there(name: str) -> None:
    assert hasattr(DataPlaneClient, name)
    assert re.search(rf"`{name}\b", TEXT)


def test_batches_are_there() -> None:
    text = TEXT[TEXT.index("## BatchMeta") : TEXT.index("## Predicates")]
    public = [name for name in vars(BatchMeta) if not name.startswith("_")]
    for name in {*public, *(field.name for field in dataclasses.fields(BatchMeta))}:
        assert re.search(rf"`(BatchMeta\.)?{name}\b", text), name


def test_errors_are_those_that_there_are() -> None:
    shown = set(re.findall(r"^\| `(\w+Error)` \|", TEXT, re.MULTILINE))
    defined = {
        name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__
    }
    assert shown == defined


def test_metrics_are_those_that_there_are() -> None:
    with dataplane.connect("memory://reference") as plane:
        plane.register_partition("p", ["x"], ["train"], capacity=4)
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        plane.ack(plane.claim_meta("p", "train", ["x"], 1), version=1)
        plane.commit("p", "train", 1)
        found = re.findall(rf"^# TYPE {PREFIX}(\w+) (\w+)$", prometheus_text(plane.stats()), re.MULTILINE)
    shown = {
        (name, kind)
        for names, kind in re.findall(r"^\| (`.*?`) \| (counter|gauge|histogram) \|", TEXT, re.MULTILINE)
        for name in re.findall(r"`(\w+)", names)
    }
    assert shown == set(found)
