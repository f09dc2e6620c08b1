from __future__ import annotations

import datetime
import functools
import os
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from tunegym.config.load import load, parse
from tunegym.core.errors import ConfigError
from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.model.scenario import Budget, Keep, MetricSpec, Penalties
from tunegym.tuning.model.space import Choice, EnvParam, Range

GOOD = Path(__file__).parent / "good"


def problems(document, catalog, **options):
    with pytest.raises(ConfigError) as caught:
        parse(document, catalog, scenario_dir=Path(__file__).parent, **options)
    return caught.value.problems


def experiment(**keys):
    return {
        "name": "e",
        "workload": "command",
        "agent": "random_search",
        "agent_steps": 4,
        "agent_metrics": ["duration_s"],
        "cmd_args": {"command": "run {threads}", "threads": [1, 2]},
        **keys,
    }


def document(**keys):
    return {"name": "demo", "experiments": [experiment(**keys)]}


def test_the_designs_example(catalog):
    scenario = load(GOOD / "design.toml", catalog)
    (iperf,) = scenario.experiments

    assert (scenario.name, scenario.seed, scenario.runner, scenario.slots) == ("tcp-under-loss", 42, "local", 2)
    assert scenario.file == str(GOOD / "design.toml")
    assert iperf.space.knobs == {
        "algorithm": Choice(("cubic", "reno")),
        "buffer_kb": Range(64, 8192, "int", log=True),
    }
    assert iperf.env_params.params == {
        "drop_rate": EnvParam(Choice((0.001, 0.01, 0.1)), (0.5, 0.3, 0.2), "log"),
    }
    assert iperf.env_params.seed == 42
    assert iperf.metrics == (MetricSpec("throughput_mbps", "regex", "throughput=([0-9.]+)"),)
    assert iperf.agent_config == AgentConfig(random_seed=42, rewards=Penalties(-1.0, "auto"))
    assert iperf.penalties == Penalties(-1.0, "auto")
    assert iperf.budget == Budget(agent_steps=160)
    assert iperf.timeout_s == 60.0
    assert [one.refuse({"buffer_kb": size}) for one in iperf.constraints for size in (4096, 4097)] == [
        None,
        'constraint "buffer_kb <= 4096" (buffer_kb = 4097)',
    ]


def test_the_forms_of_parameters(catalog):
    ranges = load(GOOD / "ranges.toml", catalog).experiments[0].space.knobs
    assert ranges["a"] == Range(1, 9, "int")
    assert ranges["c"] == Range(0.0, 1.0, "float", step=0.1)
    assert type(ranges["e"].low) is float  # type: ignore[union-attr]

    excluded = load(GOOD / "excluded.toml", catalog).experiments[0].space
    assert excluded.fixed == {"layers": [64, 64], "server.ports": [80, 443]}
    assert list(excluded.knobs) == ["threads", "server.threads"]

    variables = load(GOOD / "extra_env_vars.toml", catalog).experiments[0].space
    assert variables.fixed == {"extra_env_vars.MODE": "fast", "extra_env_vars.DEBUG": True}
    assert set(variables.knobs) == {"threads", "extra_env_vars.OMP_NUM_THREADS", "extra_env_vars.CHUNK"}

    nested = load(GOOD / "nested.toml", catalog).experiments[0]
    assert list(nested.env_params.params) == ["server.threads"]
    assert list(nested.space.knobs) == ["threads", "server.socket.buffer"]


def test_settings_of_the_experiment(catalog):
    assert load(GOOD / "keep_best_3.toml", catalog).experiments[0].keep == Keep("best", 3)
    assert load(GOOD / "budgets.toml", catalog).experiments[0].budget == Budget(4, 600.0, 3)
    off = load(GOOD / "cache_off_and_repeats.toml", catalog).experiments[0]
    assert (off.cache, off.repeats, off.timeout_s) == (False, 3, 0.5)
    assert not load(GOOD / "python_in_process.toml", catalog).experiments[0].isolate


def test_a_plain_job_has_no_agent_and_says_what_is_not_used(catalog):
    scenario = load(GOOD / "plain_with_agent.toml", catalog)

    assert scenario.experiments[0].agent is None
    assert scenario.experiments[0].budget == Budget(agent_steps=1)
    assert scenario.warnings == ("experiment 'once' has no knob: it runs once, and agent, agent_steps are not used",)


def test_the_resolved_document_has_the_defaults(catalog, tmp_path):
    scenario = parse(document(), catalog, scenario_dir=tmp_path)

    assert scenario.document["seed"] == 0
    assert scenario.document["scenario_dir"] == str(tmp_path)
    assert scenario.document["system"] == {"runner": "local", "slots": 1}


def test_all_problems_at_once_most_basic_first(catalog):
    found = problems(
        {
            "sed": 1,
            "name": "a/b",
            "system": {"slots": 0},
            "experiments": [
                experiment(repeats=0, agent="random_serch", agent_config={"x": 1}, constraints=["thread < 3"]),
                experiment(name="f", agent_steps=0, cmd_args={"command": "run", "threads": [1, 1]}),
            ],
        },
        catalog,
    )
    assert [problem.where for problem in found] == [
        "sed",
        "name",
        "system.slots",
        "experiments.e.agent",
        "experiments.e.repeats",
        "experiments.e.constraints[0]",
        "experiments.f.agent_steps",
        "experiments.f.cmd_args.threads[1]",
    ]


def test_a_misspelt_agent_is_first_and_alone(catalog):
    found = problems(document(agent="randm_search", agent_steps=0, agent_config={"x": 1}), catalog)
    assert [problem.where for problem in found] == ["experiments.e.agent", "experiments.e.agent_steps"]


# --- the file itself


def test_a_missing_file_names_its_neighbours(catalog, tmp_path):
    (tmp_path / "scenario.toml").touch()
    with pytest.raises(ConfigError, match=r"there is no such file\n  hint: did you mean .scenario\.toml.\?"):
        load(tmp_path / "scenari.toml", catalog)
    with pytest.raises(ConfigError, match="there is no folder"):
        load(tmp_path / "no" / "scenario.toml", catalog)


def test_a_folder_is_no_file(catalog, tmp_path):
    (tmp_path / "scenario.toml").touch()
    with pytest.raises(ConfigError, match=r"this is a folder, not a file\n  hint: .*scenario\.toml"):
        load(tmp_path, catalog)


def test_an_unreadable_file(catalog, tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so no mode would do
    with pytest.raises(ConfigError, match="the file can't be read: Permission denied"):
        load(tmp_path / "scenario.toml", catalog)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000])
def test_what_tomllib_chokes_on(text, catalog, tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="this is not TOML"):
        load(file, catalog)


def test_a_byte_order_mark_is_no_problem(catalog, tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_bytes(b"\xef\xbb\xbf" + (GOOD / "minimal.toml").read_bytes())
    assert load(file, catalog).name == "minimal"


# --- built in Python


def measured(threads):
    return {"time_s": threads}


def python(callable_, **keys):
    return document(
        workload="python",
        agent_metrics=["time_s"],
        cmd_args={"callable": callable_, "threads": (1, 2)},
        **keys,
    )


def test_a_function_becomes_a_reference(catalog, tmp_path, monkeypatch):
    (tmp_path / "functions_of_mine.py").write_text("def measure(threads):\n    return {'time_s': threads}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import functions_of_mine  # pyright: ignore[reportMissingImports]

    scenario = parse(python(functions_of_mine.measure), catalog, scenario_dir=tmp_path)

    assert scenario.experiments[0].workload_args == {"callable": "functions_of_mine:measure"}
    assert scenario.document["experiments"][0]["cmd_args"]["threads"] == [1, 2]


def test_a_function_without_a_name_is_refused(catalog):
    def local(threads):
        return {"time_s": threads}

    for function in (local, lambda threads: {"time_s": threads}, functools.partial(measured, 3)):
        (found,) = problems(python(function), catalog)
        assert found.where == "experiments.e.cmd_args.callable"
        assert "module:function" in (found.hint or "")


def test_python_values_become_plain(catalog, tmp_path):
    scenario = parse(
        document(cmd_args={"command": "run {a} {b}", "a": (np.int64(1), np.float64(2.5)), "b": PurePosixPath("/x")}),
        catalog,
        scenario_dir=tmp_path,
    )
    space = scenario.experiments[0].space
    assert space.knobs == {"a": Choice((1, 2.5))}
    assert [type(value) for value in space.knobs["a"].values] == [int, float]  # type: ignore[union-attr]
    assert space.fixed == {"b": "/x"}


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
    ],
)
def test_what_is_not_plain_is_refused(value, what, catalog):
    found = problems(document(timeout_s=value), catalog)
    assert what in [problem.what for problem in found]


def test_a_document_that_holds_itself(catalog):
    endless: list[object] = []
    endless.append(endless)
    (found,) = problems(document(cmd_args={"command": "run {threads}", "threads": endless}), catalog)
    assert found.what == "nested too deeply"


def test_a_document_must_be_a_table(catalog):
    (found,) = problems([1], catalog)
    assert found.what == "a scenario is a table, and this is a list"


def test_a_builtin_can_be_referred_to(catalog):
    """Modules of the interpreter itself have no file; naming one must not end in a traceback."""
    (found,) = problems(document(agent_reward_function="builtins:no_such_function"), catalog)
    assert found.where == "experiments.e.agent_reward_function"


def test_a_pipe_is_no_file(catalog, tmp_path):
    """Reading it would wait for ever."""
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(path, catalog)
