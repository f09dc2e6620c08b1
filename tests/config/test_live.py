"""What a live experiment becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.config.load import load, parse
from tunegym.core.errors import ConfigError
from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.model.scenario import INJECTED, Budget, LiveSpec, Penalties, Recording
from tunegym.tuning.model.space import Choice, EnvParam, Range, Space

GOOD = Path(__file__).parent / "good"


def document(cmd_args=None, **keys):
    arguments = {"env_class": "good_live:Server", "size": 3} if cmd_args is None else cmd_args
    agent = {"agent": "good_live:Driver", "agent_steps": 10}
    return {"name": "live", "experiments": [{"name": "e", "workload": "live", "cmd_args": arguments, **agent, **keys}]}


def one(catalog, cmd_args=None, **keys):
    return parse(document(cmd_args, **keys), catalog, scenario_dir=GOOD).experiments[0]


def problems(catalog, cmd_args=None, **keys):
    with pytest.raises(ConfigError) as caught:
        one(catalog, cmd_args, **keys)
    return caught.value.problems


def test_what_is_left_out(catalog):
    experiment = one(catalog)

    assert experiment.live == LiveSpec("good_live:Server", {"size": 3})
    assert experiment.workload == "live"
    assert experiment.workload_args == {"env_class": "good_live:Server"}
    assert experiment.space == Space({}, {"size": 3})
    assert (experiment.agent, experiment.agent_config) == ("good_live:Driver", AgentConfig())
    assert experiment.budget == Budget(agent_steps=10)
    assert (experiment.reward, experiment.agent_metrics, experiment.objectives) == (None, (), ())
    assert not experiment.cache
    assert experiment.most_trials == 10
    assert experiment.penalties == Penalties()


def test_live_rl_mode_is_the_workload(catalog):
    left_out, said_twice, other = load(GOOD / "live_rl_mode.toml", catalog).experiments

    assert left_out.live == said_twice.live
    assert left_out.workload == said_twice.workload == "live"
    assert left_out.workload_args == said_twice.workload_args
    assert other.live is None
    assert "live_rl_mode" not in other.parameter_names()


@pytest.mark.parametrize(
    ("text", "recording"),
    [
        ("all", Recording()),
        ("every:100", Recording("every", 100)),
        ("every:1", Recording("every", 1)),
        ("episodes", Recording("episodes")),
    ],
)
def test_record(text, recording, catalog):
    assert one(catalog, record=text).live.recording == recording


def test_a_server_in_its_own_process(catalog):
    (experiment,) = load(GOOD / "live_process.toml", catalog).experiments

    assert experiment.live == LiveSpec(
        "good_live:Server", {"size": 3}, "process", 2.5, restarts=0, recording=Recording("every", 100)
    )
    assert experiment.live.address is None


def test_a_server_elsewhere(catalog):
    any_class, named = load(GOOD / "live_tcp.toml", catalog).experiments

    assert any_class.live.env_class == ""
    assert any_class.live.address == ("127.0.0.1", 7000)
    assert any_class.live.token_file == str(GOOD / "token.txt")
    assert named.live.env_class == "only.there:Server"
    assert named.live.address == ("::1", 7001)


@pytest.mark.parametrize("host", ["localhost", "a-b.example", "10.0.0.1", "[::1]"])
def test_hosts(host, catalog):
    assert one(catalog, {}, server=f"tcp://{host}:1").live.address == (host.strip("[]"), 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp",
        "tcp://",
        "tcp://a",
        "tcp://a:",
        "tcp://a:0",
        "tcp://a:65536",
        "tcp://a b:1",
        "tcp://::1:7",
        "udp://a:1",
    ],
)
def test_no_place(text, catalog):
    (problem,) = problems(catalog, server=text)

    assert problem.where == "experiments.e.server"


def test_env_params_are_no_arguments(catalog):
    (experiment,) = load(GOOD / "live_env_params.toml", catalog).experiments

    assert experiment.env_params.params == {
        "load": EnvParam(Choice((10, 20, 40)), (0.5, 0.25, 0.25), "onehot"),
        "noise": EnvParam(Range(0.0, 1.0), every_step=True),
        "network.drop": EnvParam(Choice((0.0, 0.1))),
    }
    assert experiment.env_params.seed == 7
    assert experiment.live.arguments == {"size": 3}
    assert experiment.space.fixed == {"size": 3}


def test_arguments_are_nested(catalog):
    (experiment,) = load(GOOD / "live_arguments.toml", catalog).experiments

    assert experiment.live.arguments == {
        "size": 3,
        "speed": 2.0,
        "layers": [64, 64],
        "timeout_s": 4,
        "limits": {"first": 1, "deep": {"name": "x"}, "bounds": {"low": 1, "high": [2, 3]}},
    }
    assert experiment.space.fixed["limits.deep.name"] == "x"
    assert experiment.timeout_s is None


def test_rewards(catalog):
    recorded, by_name, by_function = load(GOOD / "live_rewards.toml", catalog).experiments

    assert (recorded.reward, recorded.agent_metrics) == (None, ("latency_s", "errors"))
    assert (by_name.reward, by_name.penalties) == ("negative", Penalties(metric_failure=-5.0))
    assert by_name.agent_config.random_seed == 3
    assert by_function.reward == "good_live:cost"


def test_an_object_given_in_python_is_not_looked_for(catalog):
    experiment = one(catalog, {"env_class": INJECTED, "load": [1, 2]}, env_params={"load": {}})

    assert experiment.live == LiveSpec(INJECTED)


def test_what_is_served_elsewhere_may_take_what_jobs_have_keys_for(catalog):
    assert one(catalog, {"timeout_s": 3, "cache": "on"}, server="tcp://a:1").live.arguments == {
        "timeout_s": 3,
        "cache": "on",
    }
    (problem,) = problems(catalog, {"agent_steps": 3}, server="tcp://a:1")
    assert problem.where == "experiments.e.cmd_args.agent_steps"


def test_every_meaningless_key_is_told_of_at_once(catalog):
    found = problems(catalog, keep="all", isolate=True, timeout_s=3.0, repeats=2, num_nodes=[1, 2])

    assert [problem.where.rpartition(".")[2] for problem in found] == [
        "repeats",
        "keep",
        "isolate",
        "timeout_s",
        "num_nodes",
    ]


def test_a_meaningless_key_with_a_wrong_value_is_told_of_once(catalog):
    (problem,) = problems(catalog, keep="al")

    assert problem.what == "not one of the possible values"


def test_a_contradiction_hides_no_misspelt_key(catalog):
    found = problems(catalog, {"live_rl_mode": False, "env_class": "good_live:Server", "size": 3}, agent_stesp=3)

    assert [problem.where for problem in found] == ["experiments.e.cmd_args.live_rl_mode", "experiments.e.agent_stesp"]


def test_the_agent_may_refuse(catalog):
    raw = document()
    raw["experiments"][0]["name"] = "ugly"
    with pytest.raises(ConfigError, match="the agent can't stand"):
        parse(raw, catalog, scenario_dir=GOOD)
