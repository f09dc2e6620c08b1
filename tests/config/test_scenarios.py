"""What good scenarios become: experiments of both kinds, and trackers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.config.conftest import GOOD, document, live

from tunegym.config import load as module
from tunegym.config.load import load, parse
from tunegym.core.errors import ConfigError
from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.model.scenario import INJECTED, Budget, Keep, LiveSpec, MetricSpec, Penalties, Recording, Tracking
from tunegym.tuning.model.space import Choice, EnvParam, Range, Space


def test_the_example_of_the_design(catalog):
    scenario = load(GOOD / "design.toml", catalog)
    (iperf,) = scenario.experiments
    assert (scenario.name, scenario.seed, scenario.runner, scenario.slots) == ("tcp-under-loss", 42, "local", 2)
    assert scenario.file == str(GOOD / "design.toml")
    assert iperf.space.knobs == {
        "algorithm": Choice(("cubic", "reno")),
        "buffer_kb": Range(64, 8192, "int", log=True),
    }
    assert iperf.env_params.params == {"drop_rate": EnvParam(Choice((0.001, 0.01, 0.1)), (0.5, 0.3, 0.2), "log")}
    assert iperf.env_params.seed == 42
    assert iperf.metrics == (MetricSpec("throughput_mbps", "regex", "throughput=([0-9.]+)"),)
    assert iperf.agent_config == AgentConfig(random_seed=42, rewards=Penalties(-1.0, "auto"))
    assert iperf.penalties == Penalties(-1.0, "auto")
    assert (iperf.budget, iperf.timeout_s) == (Budget(agent_steps=160, stop_after_failures=10), 60.0)
    (constraint,) = iperf.constraints
    assert constraint.refuse({"buffer_kb": 4096}) is None
    assert constraint.refuse({"buffer_kb": 4097}) == 'constraint "buffer_kb <= 4096" (buffer_kb = 4097)'


def test_goals_decide_the_reward(catalog):
    found = [(one.reward, dict(one.goals)) for one in load(GOOD / "goals.toml", catalog).experiments]
    assert found == [
        ("negative", {"duration_s": "min"}),
        ("identity", {"cpu_s": "min", "time_s": "max"}),
        ("identity", {"cpu_s": "max"}),
    ]


def test_the_forms_of_parameters(catalog):
    def space(name):
        return load(GOOD / f"{name}.toml", catalog).experiments[0].space

    ranges = space("ranges").knobs
    assert ranges["a"] == Range(1, 9, "int")
    assert ranges["c"] == Range(0.0, 1.0, "float", step=0.1)
    assert type(ranges["e"].low) is float
    assert space("excluded").fixed == {"layers": [64, 64], "server.ports": [80, 443]}
    assert list(space("excluded").knobs) == ["threads", "server.threads"]
    assert space("extra_env_vars").fixed == {"extra_env_vars.MODE": "fast", "extra_env_vars.DEBUG": True}
    assert set(space("extra_env_vars").knobs) == {
        *("threads", "extra_env_vars.OMP_NUM_THREADS", "extra_env_vars.CHUNK"),
    }
    nested = load(GOOD / "nested.toml", catalog).experiments[0]
    assert list(nested.env_params.params) == ["server.threads"]
    assert list(nested.space.knobs) == ["threads", "server.socket.buffer"]


def test_settings_of_an_experiment(catalog, tmp_path):
    assert load(GOOD / "keep_best_3.toml", catalog).experiments[0].keep == Keep("best", 3)
    assert load(GOOD / "budgets.toml", catalog).experiments[0].budget == Budget(4, 600.0, 3, 10)
    forms = load(GOOD / "command_forms.toml", catalog).experiments[0]
    assert (forms.timeout_s, forms.budget.stop_after_failures, forms.keep) == (120.0, 0, Keep())
    off = load(GOOD / "cache_off_and_repeats.toml", catalog).experiments[0]
    assert (off.cache, off.repeats, off.timeout_s) == (False, 3, 0.5)
    assert not load(GOOD / "python_in_process.toml", catalog).experiments[0].isolate
    plain = load(GOOD / "plain_with_agent.toml", catalog)
    assert (plain.experiments[0].agent, plain.experiments[0].budget) == (None, Budget(agent_steps=1))
    assert plain.warnings == ("experiment 'once' has no knob: it runs once, and agent, agent_steps are not used",)
    resolved = parse(document(), catalog, scenario_dir=tmp_path).document
    assert (resolved["seed"], resolved["scenario_dir"]) == (0, str(tmp_path))
    assert resolved["system"] == {"runner": "local", "slots": 1}


# live -----------------------------------------------------------------------------------------------------


def one(catalog, cmd_args=None, **keys):
    raw = {"name": "live", "experiments": [live(cmd_args, **keys)]}
    return parse(raw, catalog, scenario_dir=GOOD).experiments[0]


def test_a_live_experiment(catalog):
    found = one(catalog)
    assert found.live == LiveSpec("good_live:Server", {"size": 3})
    assert (found.workload, found.workload_args) == ("live", {"env_class": "good_live:Server"})
    assert found.space == Space({}, {"size": 3})
    assert (found.agent, found.agent_config) == ("good_live:Driver", AgentConfig())
    assert (found.budget, found.most_trials, found.cache) == (Budget(agent_steps=10, stop_after_failures=10), 10, False)
    assert (found.reward, found.agent_metrics, found.objectives) == (None, (), ())
    assert found.penalties == Penalties()
    injected = one(catalog, {"env_class": INJECTED, "load": [1, 2]}, env_params={"load": {}})
    assert injected.live == LiveSpec(INJECTED)


def test_live_rl_mode_is_the_workload(catalog):
    left_out, said_twice, other = load(GOOD / "live_rl_mode.toml", catalog).experiments
    assert left_out.live == said_twice.live
    assert left_out.workload == said_twice.workload == "live"
    assert left_out.workload_args == said_twice.workload_args
    assert other.live is None
    assert "live_rl_mode" not in other.parameter_names()


def test_servers_in_another_process(catalog):
    (process,) = load(GOOD / "live_process.toml", catalog).experiments
    recording = Recording("every", 100)
    assert process.live == LiveSpec("good_live:Server", {"size": 3}, "process", 2.5, restarts=0, recording=recording)
    assert process.live.address is None
    any_class, named = load(GOOD / "live_tcp.toml", catalog).experiments
    assert (any_class.live.env_class, any_class.live.address) == ("", ("127.0.0.1", 7000))
    assert any_class.live.token_file == str(GOOD / "token.txt")
    assert (named.live.env_class, named.live.address) == ("only.there:Server", ("::1", 7001))
    for host in ("localhost", "a-b.example", "10.0.0.1", "[::1]"):
        assert one(catalog, {}, server=f"tcp://{host}:1").live.address == (host.strip("[]"), 1)


def test_arguments_of_a_server(catalog):
    (drawn,) = load(GOOD / "live_env_params.toml", catalog).experiments
    assert drawn.env_params.params == {
        "load": EnvParam(Choice((10, 20, 40)), (0.5, 0.25, 0.25), "onehot"),
        "noise": EnvParam(Range(0.0, 1.0), every_step=True),
        "network.drop": EnvParam(Choice((0.0, 0.1))),
    }
    assert (drawn.env_params.seed, drawn.live.arguments, drawn.space.fixed) == (7, {"size": 3}, {"size": 3})
    (nested,) = load(GOOD / "live_arguments.toml", catalog).experiments
    assert nested.live.arguments == {
        "size": 3,
        "speed": 2.0,
        "layers": [64, 64],
        "timeout_s": 4,
        "limits": {"first": 1, "deep": {"name": "x"}, "bounds": {"low": 1, "high": [2, 3]}},
    }
    assert nested.space.fixed["limits.deep.name"] == "x"
    assert nested.timeout_s is None
    remote = {"timeout_s": 3, "cache": "on"}  # a remote class may take arguments with the names of jobs' keys
    assert one(catalog, remote, server="tcp://a:1").live.arguments == remote


def test_rewards_of_live_experiments(catalog):
    recorded, by_name, by_function = load(GOOD / "live_rewards.toml", catalog).experiments
    assert (recorded.reward, recorded.agent_metrics) == (None, ("latency_s", "errors"))
    assert (by_name.reward, by_name.penalties) == ("negative", Penalties(metric_failure=-5.0))
    assert by_name.agent_config.random_seed == 3
    assert by_function.reward == "good_live:cost"


# [tracking] -----------------------------------------------------------------------------------------------


def tracked(catalog, table, folder):
    return parse({**document(), "tracking": table}, catalog, scenario_dir=folder)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://user:word@host:5000/path", "https://user:word@host:5000/path"),
        ("mlruns", "{folder}/mlruns"),
        ("../shared runs", "{parent}/shared runs"),
        ("/data/mlruns", "/data/mlruns"),
        ("file:///data/mlruns", "file:///data/mlruns"),
        ("file:mlruns", "{folder}/mlruns"),
        ("sqlite:///./db/mlflow.db", "sqlite:///{folder}/db/mlflow.db"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("postgresql+psycopg2://u:p@host/db", "postgresql+psycopg2://u:p@host/db"),
        ("databricks", "databricks"),
        ("databricks://profile", "databricks://profile"),
    ],
)
def test_tracking_paths_start_at_the_scenario(given, expected, catalog, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    found = tracked(catalog, {"mlflow": given}, folder)
    assert found.tracking.mlflow == expected.format(folder=folder, parent=tmp_path)
    assert found.document["tracking"] == {"mlflow": given}


def test_nothing_is_tracked_by_default(catalog, tmp_path):
    found = parse(document(), catalog, scenario_dir=tmp_path)
    assert found.tracking == Tracking(None, False)
    assert "tracking" not in found.document
    assert tracked(catalog, {"tensorboard": False}, tmp_path).tracking == Tracking(None, False)


@pytest.mark.parametrize(
    ("absent", "table", "told"),
    [
        ("mlflow", {"mlflow": "http://host"}, "pip install 'tunegym\\[mlflow\\]'"),
        ("tensorboardX", {"tensorboard": True}, "pip install 'tunegym\\[tensorboard\\]'"),
        ("sqlalchemy", {"mlflow": "sqlite:///mlflow.db"}, "pip install mlflow"),
    ],
)
def test_a_package_that_is_not_installed(absent, table, told, catalog, tmp_path, monkeypatch):
    real = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == absent else real(name))
    with pytest.raises(ConfigError, match=told):
        tracked(catalog, table, tmp_path)


def test_loading_imports_no_tracker(tmp_path):
    raw = {**document(), "tracking": {"mlflow": "http://h", "tensorboard": True}}
    code = f"import sys, tunegym; tunegym.scenario({raw!r}); print({{'mlflow', 'tensorboardX'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
