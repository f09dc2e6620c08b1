"""Documents before they are checked: the file, ``--set``, values built in Python, and the lines of problems."""

from __future__ import annotations

import datetime
import functools
import os
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from tests.config.conftest import GOOD, document, problems
from tests.conftest import raising

from tunegym.config.load import load, parse, value_of
from tunegym.core.errors import ConfigError
from tunegym.tuning.model.space import Choice

# the file -------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(catalog, tmp_path, monkeypatch):
    (tmp_path / "scenario.toml").touch()
    os.mkfifo(tmp_path / "pipe.toml")  # reading it would wait for ever
    for name, told in {
        "scenari.toml": r"there is no such file\n  hint: did you mean .scenario\.toml.\?",
        "no/scenario.toml": "there is no folder",
        ".": r"this is a folder, not a file\n  hint: .*scenario\.toml",
        "pipe.toml": "not a regular file",
    }.items():
        with pytest.raises(ConfigError, match=told):
            load(tmp_path / name, catalog)
    refused = raising(PermissionError, 13, "Permission denied")
    monkeypatch.setattr(Path, "read_bytes", refused)  # root may read everything, so no mode would do
    with pytest.raises(ConfigError, match="the file can't be read: Permission denied"):
        load(tmp_path / "scenario.toml", catalog)


def test_a_byte_order_mark_is_no_problem(catalog, tmp_path):
    (tmp_path / "scenario.toml").write_bytes(b"\xef\xbb\xbf" + (GOOD / "minimal.toml").read_bytes())
    assert load(tmp_path / "scenario.toml", catalog).name == "minimal"


# --set ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("true", True),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("{ low = 1, high = 2 }", {"low": 1, "high": 2}),
        ("random_search", "random_search"),
        ("10m", "10m"),
        ("", ""),
        ("1\nb = 2", "1\nb = 2"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_an_override_is_toml_or_the_text_itself(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_overrides_reach_every_level(catalog):
    original = document()
    overrides = [
        *("seed=1", "seed=3", "system.slots=2", "experiments.e.agent=grid_search"),
        *("experiments.e.cmd_args.threads=[1,2,4]", "experiments.e.agent_config.random_seed = 9"),
        'experiments.e.cmd_args.command="run {threads} a=b"',
    ]
    scenario = parse(original, catalog, scenario_dir=".", overrides=overrides)
    (found,) = scenario.experiments
    assert (scenario.seed, scenario.slots, found.agent) == (3, 2, "grid_search")
    assert found.space.knobs["threads"].size == 3
    assert found.agent_config.random_seed == 9
    assert found.workload_args == {"command": "run {threads} a=b"}
    assert scenario.document["experiments"][0]["cmd_args"]["threads"] == [1, 2, 4]
    assert original == document(), "the caller's document is unchanged"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed", "this is no key=value"),
        ("=3", "this is no key=value"),
        ("experiments..x=3", "this is no key=value"),
        ("experiments.e=3", "an experiment's key is missing"),
        ("experiments.ee.agent=3", 'there is no experiment "ee"'),
        ("name.first=3", "name is not a table"),
        ("experiments.e.cmd_args.threads.low=3", "experiments.e.cmd_args.threads is not a table"),
        ("experiments.e.cmd_args.threads=[1,2", "the value is no TOML"),
        ('experiments.e.agent="x', "the value is no TOML"),
    ],
)
def test_a_wrong_override_is_an_error_of_set(text, expected, catalog):
    with pytest.raises(ConfigError) as caught:
        parse(document(), catalog, scenario_dir=".", overrides=[text])
    assert caught.value.file == "--set"
    assert expected in str(caught.value)
    assert all(problem.hint for problem in caught.value.problems)


def test_a_problem_of_an_override_says_so(catalog):
    for text, told in (("experiments.e.agnt=3", "unknown key"), ("seed=2024-01-01", "a date or time")):
        with pytest.raises(ConfigError) as caught:
            load(GOOD / "minimal.toml", catalog, overrides=[text])
        (problem,) = caught.value.problems
        assert told in problem.what
        assert problem.what.endswith("(set by --set)")
        assert problem.line is None


# built in Python ------------------------------------------------------------------------------------------


def python(function):
    args = {"callable": function, "threads": (1, 2)}
    return document(workload="python", agent_metrics=["time_s"], metrics={"time_s": {"goal": "min"}}, cmd_args=args)


def test_a_function_becomes_a_reference(catalog, tmp_path, monkeypatch):
    (tmp_path / "functions_of_mine.py").write_text("def measure(threads):\n    return {'time_s': threads}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import functions_of_mine  # pyright: ignore[reportMissingImports]

    scenario = parse(python(functions_of_mine.measure), catalog, scenario_dir=tmp_path)
    assert scenario.experiments[0].workload_args == {"callable": "functions_of_mine:measure"}
    assert scenario.document["experiments"][0]["cmd_args"]["threads"] == [1, 2]
    for function in (lambda threads: threads, functools.partial(functions_of_mine.measure, 3)):
        (found,) = problems(python(function), catalog)
        assert found.where == "experiments.e.cmd_args.callable"
        assert "module:function" in (found.hint or "")


def test_python_values_become_plain(catalog, tmp_path):
    args = {"command": "run {a} {b}", "a": (np.int64(1), np.float64(2.5)), "b": PurePosixPath("/x")}
    space = parse(document(cmd_args=args), catalog, scenario_dir=tmp_path).experiments[0].space
    assert space.knobs == {"a": Choice((1, 2.5))}
    assert [type(value) for value in space.knobs["a"].values] == [int, float]  # type: ignore[union-attr]
    assert space.fixed == {"b": "/x"}


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "None has no meaning here"),
        (object(), "a Python object can't be a value"),
        (datetime.date(2024, 1, 1), "a date or time can't be a value"),
        ("a\0b", "a string that can't be passed on"),
        ("\ud800", "a string that can't be passed on"),
        ({3: 4}, "a key must be a string"),
        (b"x", "a Python bytes can't be a value"),
        (ENDLESS, "nested too deeply"),
    ],
)
def test_other_values_are_refused(value, what, catalog):
    assert what in [problem.what for problem in problems(document(timeout_s=value), catalog)]


def test_documents_that_are_no_tables(catalog):
    (found,) = problems([1], catalog)
    assert found.what == "a scenario is a table, and this is a list"
