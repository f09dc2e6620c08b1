from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tunegym.core import toml
from tunegym.tuning.model.outcome import Failed
from tunegym.tuning.model.summary import masked
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.page import Known, render, run_document
from tunegym.tuning.reports.results import RunResults, load


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("http://user:se:cret@host:5000/x", "http://user:***@host:5000/x"),
        ("redis://:secret@host", "redis://:***@host"),
        ("http://me@corp:secret@host", "http://me@corp:***@host"),
        ("http://user:sec@ret@host", "http://user:***@host"),
        ("postgresql://user:se/cr?e#t@host/db", "postgresql://user:***@host/db"),
        ("a = \"x://u:secret@h\"\nb = 'y://v:secret@h'", "a = \"x://u:***@h\"\nb = 'y://v:***@h'"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["http://127.0.0.1:5000", "sqlite:///mlflow.db", "http://host:80/x and me@home", "a // b: c@d", "git@host:x"],
)
def test_anything_else_stays(text: str) -> None:
    assert masked(text) == text


def test_a_page_holds_no_password(written: Callable[..., RunResults]) -> None:
    """Not from any key of the scenario, nor from a failure, a reason, a command, an output or a parameter."""
    address = "postgresql://user:secret@host/db"
    folder = written([Trial(1, {}, {"x": 1}, Failed(f"no answer from {address}"), -1e9, 0.1)]).folder
    path = folder / "scenario.toml"
    scenario = {**load(folder).scenario, "tracking": {"mlflow": address}, "other": {"key": [address]}}
    path.write_text(toml.dumps(scenario), encoding="utf-8")
    outputs = folder / "e" / "trials" / "000001"
    outputs.mkdir(parents=True)
    (outputs / "stderr.txt").write_text(f"lost {address}\n", encoding="utf-8")
    known = Known(1, {"db": address}, lambda trial: f"psql {address}", f"left out: {address}")
    document = run_document(load(folder), {"e": known}, f"RuntimeError: {address}\n\nTraceback: {address}")
    text = orjson.dumps(document).decode()
    assert "secret" not in text
    assert "secret" not in render("t", document)
    for place in (document["source"], document["failure"], document["experiments"][0]["page"]["fixed"]["db"]):
        assert "postgresql://user:***@host/db" in place
    assert "secret" in Path(path).read_text(encoding="utf-8"), "the run's own file is as it was: a resume needs it"
