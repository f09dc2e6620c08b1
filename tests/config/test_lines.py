"""The line in a message is the line in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.config.load import load
from tunegym.core.errors import ConfigError

TEXT = """\
name = "s"                                  # 1
sed = 3                                     # 2: unknown key
[system]
slots = 0                                   # 4: out of bounds
[[experiments]]
name = "one"                                # 6
workload = "command"
agent = "random_search"
agent_steps = 5
agent_metrics = ["duration_s"]
[experiments.cmd_args]
command = '''
repeats = 0
echo {a} {b.c}
'''
a = [1, 1]                                  # 16: twice
b.c = { low = 5, high = 2 }                 # 17: low above high
[[experiments]]
name = "two"
workload = "command"
agnet = "random_search"                     # 21: unknown key
agent_metrics = ["duration_s"]
cmd_args = { command = "echo {x}", x = [] } # 23: empty
repeats = 0                                 # 24: out of bounds
"""


def lines_of(path: Path, catalog, overrides=()) -> dict[str, int | None]:
    with pytest.raises(ConfigError) as caught:
        load(path, catalog, overrides)
    return {problem.where: problem.line for problem in caught.value.problems}


def test_every_problem_knows_its_line(tmp_path, catalog):
    path = tmp_path / "s.toml"
    path.write_text(TEXT)

    found = lines_of(path, catalog)

    assert found["sed"] == 2
    assert found["system.slots"] == 4
    assert next(line for where, line in found.items() if where.startswith("experiments.one.cmd_args.a")) == 16
    assert next(line for where, line in found.items() if where.startswith("experiments.one.cmd_args.b.c")) == 17
    assert found["experiments.two.agnet"] == 21
    assert found["experiments.two.cmd_args.x"] == 23
    assert found["experiments.two.repeats"] == 24


def test_what_is_missing_points_at_its_experiment(tmp_path, catalog):
    path = tmp_path / "s.toml"
    path.write_text('name = "s"\n\n[[experiments]]\nname = "e"\nworkload = "command"\n')

    assert lines_of(path, catalog)["experiments.e.cmd_args"] == 3


def test_a_problem_that_an_override_made_has_no_line(tmp_path, catalog):
    path = tmp_path / "s.toml"
    path.write_text('name = "s"\n[[experiments]]\nname = "e"\nworkload = "command"\ncmd_args = { command = "true" }\n')

    assert lines_of(path, catalog, ["experiments.e.repeats=0"])["experiments.e.repeats"] is None
