"""The page as a file: its trials, commands and outputs; hostile text stays text, nothing is fetched, no password."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests import heads
from tests.tuning.model.test_values import NUMBERS, SECONDS

from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Failed, Infeasible, Measured, Pruned, Trial
from tunegym.tuning.model.values import masked
from tunegym.tuning.reports.charts import TAIL, columns, command_of, commands, kept, tails
from tunegym.tuning.reports.page import Known, embedded, render, run_document
from tunegym.tuning.reports.results import RunResults, load


def trial(number: int, reward: float = 1.0, *, failed: bool = False, cached: int | None = None) -> Trial:
    outcome = Failed("f") if failed else Measured(({"m": reward},))
    return Trial(number, {}, {"x": number}, outcome, -1e15 if failed else reward, 0.1, cached_from=cached)


# trials, commands and outputs -----------------------------------------------------------------------------


def test_improvements_are_kept_in_a_sample() -> None:
    assert [one.number for one in kept([trial(3), trial(1), trial(2)], 10)] == [1, 2, 3]
    chosen = {one.number for one in kept([trial(n, 100.0 if n == 777 else n == 5) for n in range(1, 1001)], 100)}
    assert {5, 777} <= chosen
    assert 100 <= len(chosen) <= 103


def test_columns_are_aligned_whatever_the_outcome() -> None:
    """Values of a list count by exact type; integers that a browser would round come as text; curves are thinned."""
    big = 2**60 + 1
    reports = tuple((step, float(step)) for step in range(5000))
    trials = [
        Trial(1, {"c": "a"}, {"x": 1, "y": big}, Measured(({"m": 1.0, "extra": 5.0}, {"m": 3.0, "extra": 5.0})), 2, 1),
        Trial(2, {"c": "b"}, {}, Failed("broken"), -1e15, 0.25),
        Trial(3, {"c": "b"}, {"x": True, "y": 3}, Pruned("hopeless"), -1e15, 0.25, reports=reports),
    ]
    knobs = {"x": {"values": [1, 1.0, True, "1"]}, "y": {"low": 0, "high": 2**61, "dtype": "int"}}
    head = heads.head(knobs=knobs, env_params={"c": {"values": ["a", "b"]}}, metrics=["m"])
    table = columns(trials, head, {1: 1.5})
    assert [table["statuses"][index] for index in table["status"]] == ["measured", "failed", "pruned"]
    assert [table["reasons"][index] for index in table["reason"]] == ["", "broken", "hopeless"]
    x, y = table["knobs"]
    assert (x["labels"], x["index"]) == (["1", "1.0", "true", '"1"'], [0, -1, 2])
    assert y["text"] == [str(big), None, "3"]
    metrics = {one["name"]: one["values"] for one in table["metrics"]}
    assert metrics == {"m": [2.0, None, None], "extra": [5.0, None, None]}
    assert table["metrics"][0]["spread"][1:] == [None, None]
    assert (table["samples"], table["closed_s"]) == ([2, 0, 0], [1.5, None, None])
    ((position, points),) = table["curves"]
    assert (position, points[-1], len(points) <= 301) == (2, (4999, 4999.0), True)


CALL = "m:f(fixed='two words', a={'b': 4}, c='x')"


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ({"command": "run {a.b} '{c}' {fixed} {gone}"}, "run 4 'x' 'two words' '{gone}'"),
        ({"command": "{trial_dir} {scenario_dir} {step}"}, "{folder}/e/trials/000001 {folder} 1"),
        ({"callable": "m:f"}, CALL),
        ({"command": "run {"}, None),
        ({"own": 1}, None),
    ],
)
def test_a_command_is_the_recorded_template_with_the_trials_values(
    written: Callable[..., RunResults], arguments: dict[str, Any], ran: str | None
) -> None:
    one = Trial(1, {"c": "x"}, {"a.b": 4}, Measured(({"m": 1.0},)), 1.0, 0.1)
    results = written([one], knobs={"a.b": {"values": [4, 5]}}, declared={"cmd_args": arguments})
    command = command_of(results.experiments["e"], {"fixed": "two words"})  # type: ignore[arg-type]
    folder = str(results.folder)
    assert (command and command(one)) == (ran and ran.replace("{folder}", folder))
    if command is not None:
        assert command(Trial(2, {}, {}, Failed("never opened"), 0.0, 0.0)) is None
        assert command(Trial(2, {}, {"a.b": 4}, Infeasible("refused"), 0.0, 0.0)) is None
        assert command(Trial(2, {}, {"a.b": 4}, one.outcome, 0.0, 0.0, cached_from=1)) is None


def leave(folder: Path, number: int, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / f"{number:06d}" / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_the_end_of_the_output(tmp_path: Path) -> None:
    """Of repeats the last; files that can't be read are left out."""
    leave(tmp_path, 1, stdout=b"x" * 99_999 + b"the end\n", stderr=b"\xff odd\n")
    leave(tmp_path, 2, stdout=b"", stderr=b"")
    leave(tmp_path, 3, **{f"repeat-{n}__stdout": b"number %d" % n for n in (2, 9, 10)})
    leave(tmp_path, 4, stderr=b"told")
    os.mkfifo(tmp_path / "000004" / "stdout.txt")
    found = tails(tmp_path, [trial(number) for number in range(1, 9)], 10**6)
    out, error = found.pop("1")
    assert (out[0], len(out[1]), out[2]) == ("stdout.txt", TAIL, True)
    assert out[1].endswith("xthe end\n")
    assert error == ["stderr.txt", "\ufffd odd\n", False]
    assert found == {"3": [["repeat-10/stdout.txt", "number 10", False]], "4": [["stderr.txt", "told", False]]}
    assert tails(tmp_path / "missing", [trial(1)], 10**6) == {}


def test_commands_and_outputs_are_bounded(tmp_path: Path) -> None:
    for number in range(1, 30):
        leave(tmp_path, number, stdout=b"y" * 1000)
    found = tails(tmp_path, [trial(number, failed=number == 7) for number in range(1, 30)], 5000)
    assert "7" in found, "the failed one comes first"
    assert len(found) == 5
    trials = [trial(number) for number in range(1, 101)] + [trial(101, failed=True)]
    told = commands(trials, lambda one: f"{one.number} " + "z" * 96, 1000)
    assert told["of"][-1] is not None
    assert told["left_out"] == sum(one is None for one in told["of"]) > 80


# hostile text ---------------------------------------------------------------------------------------------

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>&amp;",
    "\u2028\u2029",
    "{{style}}",
    "\x00\x1b[31m",
]
SCRIPTS = re.compile("<script[^>]*>(.*?)</script>", re.DOTALL)


@pytest.mark.parametrize("text", HOSTILE)
def test_data_comes_back_exactly_and_is_never_markup(text: str) -> None:
    data: dict[str, Any] = {"kind": "run", text: [text]}
    page = render(text, data)
    assert page.count("</script>") == page.count("<script") == 2
    assert orjson.loads(SCRIPTS.findall(page)[0]) == data
    assert not re.search("[<>&\u2028\u2029]", embedded(data))


# passwords ------------------------------------------------------------------------------------------------


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
        *[(text, text) for text in ("http://127.0.0.1:5000", "sqlite:///mlflow.db", "http://host:80/x and me@home")],
        *[(text, text) for text in ("a // b: c@d", "git@host:x")],
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_a_page_holds_no_password(written: Callable[..., RunResults]) -> None:
    """Not from any key of the scenario, nor from a failure, a reason, a command, an output or a parameter."""
    address = "postgresql://user:secret@host/db"
    trials = [Trial(1, {}, {"x": 1}, Failed(f"no answer from {address}"), -1e9, 0.1)]
    folder = written(trials, declared={"cmd_args": {"command": "psql {db} {x}"}}).folder
    path = folder / "scenario.toml"
    scenario = {**load(folder).scenario, "tracking": {"mlflow": address}, "other": {"key": [address]}}
    path.write_text(dump_toml(scenario), encoding="utf-8")
    leave(folder / "e" / "trials", 1, stderr=f"lost {address}\n".encode())
    known = Known(1, {"db": address}, f"left out: {address}")
    document = run_document(load(folder), {"e": known}, f"RuntimeError: {address}\n\nTraceback: {address}")
    assert "secret" not in orjson.dumps(document).decode()
    assert "secret" not in render("t", document)
    page = document["experiments"][0]["page"]
    for place in (document["source"], document["failure"], page["fixed"]["db"], page["commands"]["lines"][0]):
        assert "postgresql://user:***@host/db" in place
    assert "secret" in path.read_text(encoding="utf-8"), "the run's own file is as it was: a resume needs it"


def test_numbers_are_those_of_the_terminal() -> None:
    playwright = pytest.importorskip("playwright", reason="missing component: playwright")
    node = Path(playwright.__file__).parent / "driver" / "node"
    base = (resources.files("tunegym.tuning.reports") / "html" / "base.js").read_text(encoding="utf-8")
    call = f"console.log(JSON.stringify([{list(NUMBERS)}.map((one) => number(one)), {list(SECONDS)}.map(seconds)]))"
    done = subprocess.run([node, "-e", base + call], capture_output=True, text=True, check=True)
    numbers, durations = json.loads(done.stdout.replace("\u2212", "-"))
    assert numbers == list(NUMBERS.values())
    assert durations == list(SECONDS.values())
