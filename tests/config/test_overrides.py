from __future__ import annotations

import pytest

from tunegym.config.load import override, parse, value_of
from tunegym.core.errors import ConfigError


def document():
    return {
        "name": "demo",
        "experiments": [
            {
                "name": "iperf",
                "workload": "command",
                "agent": "random_search",
                "agent_steps": 4,
                "agent_metrics": ["duration_s"],
                "cmd_args": {"command": "run {threads}", "threads": [1, 2]},
            }
        ],
    }


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
def test_a_value_is_toml_or_the_text_itself(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_overrides_reach_every_level(catalog):
    scenario = parse(
        document(),
        catalog,
        scenario_dir=".",
        overrides=[
            "seed=3",
            "system.slots=2",
            "experiments.iperf.agent=grid_search",
            "experiments.iperf.cmd_args.threads=[1,2,4]",
            "experiments.iperf.agent_config.random_seed = 9",
            'experiments.iperf.cmd_args.command="run {threads} a=b"',
        ],
    )

    (experiment,) = scenario.experiments
    assert (scenario.seed, scenario.slots, experiment.agent) == (3, 2, "grid_search")
    assert experiment.space.knobs["threads"].size == 3
    assert experiment.agent_config.random_seed == 9
    assert experiment.workload_args == {"command": "run {threads} a=b"}
    assert scenario.document["experiments"][0]["cmd_args"]["threads"] == [1, 2, 4]


def test_the_callers_document_is_left_alone(catalog):
    original = document()
    parse(original, catalog, scenario_dir=".", overrides=["seed=3", "experiments.iperf.cmd_args.threads=[3,4]"])
    assert original == document()


def test_later_overrides_win():
    target = document()
    assert override(target, ["seed=1", "seed=2"]) == ["seed", "seed"]
    assert target["seed"] == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed", "this is no key=value"),
        ("=3", "this is no key=value"),
        ("experiments..x=3", "this is no key=value"),
        ("experiments.iperf=3", "an experiment's key is missing"),
        ("experiments.iprf.agent=3", 'did you mean "iperf"?'),
        ("name.first=3", "name is not a table"),
        ("experiments.iperf.agent.name=3", "experiments.iperf.agent is not a table"),
        ("experiments.iperf.cmd_args.threads.low=3", "experiments.iperf.cmd_args.threads is not a table"),
        ("experiments.iperf.cmd_args.threads=[1,2", "the value is no TOML"),
        ('experiments.iperf.agent="x', "the value is no TOML"),
    ],
)
def test_a_wrong_override_is_an_error_of_set(text, expected, catalog):
    with pytest.raises(ConfigError) as caught:
        parse(document(), catalog, scenario_dir=".", overrides=[text])

    assert caught.value.file == "--set"
    assert expected in str(caught.value)
    assert all(problem.hint for problem in caught.value.problems)


def test_a_problem_that_an_override_brought_in_says_so(catalog):
    with pytest.raises(ConfigError) as caught:
        parse(document(), catalog, file="a.toml", scenario_dir=".", overrides=["experiments.iperf.agnt=3"])

    assert "a.toml: experiments.iperf.agnt: unknown key (set by --set)" in str(caught.value)


def test_an_override_may_bring_a_date(catalog):
    with pytest.raises(ConfigError, match="a date or time"):
        parse(document(), catalog, scenario_dir=".", overrides=["seed=2024-01-01"])
