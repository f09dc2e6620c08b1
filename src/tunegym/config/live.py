"""A live ``[[experiments]]``: a server answers, and the agent chooses from the server's action space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from tunegym.config.experiment import ENV_CLASS, LIVE_RL_MODE, WORKLOAD, budget_of, check_reward, live_driver
from tunegym.config.parameters import EXPERIMENT_KEYS, Parameters, environment, gather, is_range
from tunegym.config.problems import Findings, Scope, kind, known, shown
from tunegym.config.schema import LIVE_KEYS, ExperimentTable, checked_config, recording, server_place
from tunegym.tuning.model.scenario import (
    IN_PROCESS,
    INJECTED,
    TCP,
    Budget,
    Experiment,
    LiveSpec,
    Penalties,
    Recording,
)
from tunegym.tuning.model.space import EnvParams, Space, nested
from tunegym.tuning.workloads.live import declared_arguments

MOST_SERVERS = 1024
"""More slots than this are a mistake: each has its own server, and maybe its own process."""
_SERVER_KEYS = {"cmd_args", "dse_excluded_args", "env_params", "server"}

MEANINGLESS = {
    "constraints": ("the server's action space decides what the agent may choose", "let the server refuse the rest"),
    "objectives": ("a live experiment is judged by its reward alone", "write an agent_reward_function instead"),
    "pruner": ("a step of a live server is not ended early", ""),
    "metrics": ("the metrics of a live server are the numbers in its info", "name them in agent_metrics"),
    "repeats": ("a step of a live server can't be repeated under the same conditions", ""),
    "cache": ("a live server has state, so its answers are not cached", ""),
    "keep": ("a step of a live server has no folder", "record says which steps are written down"),
    "isolate": ("isolate is for the python workload", 'server = "process" isolates a live server'),
    "timeout_s": ("timeout_s is for jobs", 'write step_timeout_s and server = "process" instead'),
    "episode_steps": ("a live server ends its episodes itself", ""),
    "stop_after_no_improvement": ("the steps of a live server have no best setting", "write agent_steps or max_time"),
    "num_nodes": ("num_nodes is for jobs", ""),
    "extra_env_vars": ("extra_env_vars are for jobs", "give them to the class as arguments in cmd_args"),
}
"""Keys that mean nothing in a live experiment: why, and what to do besides removing them."""

_HARMLESS: dict[str, Any] = {"repeats": 1, "cache": "off"}
"""Values that say what is the case anyway."""

_AMBIGUOUS: dict[str, Callable[[str], object]] = {"server": server_place, "record": recording}
"""Keys that may also be a class's argument: in ``cmd_args`` a value that is valid for the key is taken for the key."""


def check_servers(slots: int, findings: Findings) -> None:
    """Refuse more servers than any machine has."""
    if slots > MOST_SERVERS:
        what = f"a live experiment has a server in each slot, and {slots:,} are too many"
        allowed = f"an integer from 1 to {MOST_SERVERS}"
        findings.add(what, found=slots, allowed=allowed, hint="write for example slots = 4")


def read_live(
    name: str,
    raw: Mapping[str, Any],
    table: ExperimentTable,
    agent: tuple[str, Any],
    around: Scope,
    findings: Findings,
) -> Experiment | None:
    """A live experiment, or None and problems; ``agent`` is the agent's name and class."""
    workload = known(around.catalog, "workloads", table.workload or WORKLOAD, Findings())
    _check_given(raw, table, findings)
    _refuse_meaningless(raw, findings)
    parameters = _parameters(table, around.scenario_dir, findings)
    complete = not findings.broken() & {"cmd_args", "dse_excluded_args"}
    below = findings.at("env_params")
    drawn = environment(table.env_params, parameters, around.catalog, below, complete, live=True)
    spec = _server(table, parameters, around.scenario_dir, findings)
    driver, config = _driver(agent, table, around, findings)
    _check_budget(table, findings)
    _check_reward(table, around, findings)
    built = Experiment(
        name=name,
        workload=table.workload or WORKLOAD,
        workload_args={ENV_CLASS: spec.env_class},
        space=Space({}, parameters.fixed),
        env_params=EnvParams(drawn, around.seed),
        agent=agent[0],
        agent_config=config,
        agent_metrics=tuple(table.agent_metrics or ()),
        reward=table.agent_reward_function,
        penalties=getattr(config, "rewards", Penalties()),
        budget=Budget(table.agent_steps, budget_of(table).max_time_s),
        cache=False,
        live=spec,
    )
    if workload is not None and not findings.broken() & _SERVER_KEYS:
        findings.adopt(workload.check(built, around.scenario_dir))
    if driver is not None and hasattr(driver, "check") and not findings.broken():
        findings.adopt(driver.check(built, around.scenario_dir))
    return None if findings.broken() else built


def _refuse_meaningless(raw: Mapping[str, Any], findings: Findings) -> None:
    """Refuse keys that a live experiment doesn't use."""
    broken = findings.broken()
    for key, (what, instead) in MEANINGLESS.items():
        if key not in raw or key in broken or (key in _HARMLESS and repr(raw[key]) == repr(_HARMLESS[key])):
            continue
        findings.at(key).add(what, found=raw[key], hint=f"remove {key}" + (f"; {instead}" if instead else ""))


def _refuse_misplaced(arguments: dict[str, Any], taken: Set[str], findings: Findings) -> None:
    """Take the live experiment's own keys out of ``cmd_args``, unless the class takes an argument of the name."""
    for key in LIVE_KEYS:
        if key in arguments and key not in taken and (key not in _AMBIGUOUS or _valid(key, arguments[key])):
            hint = f"move {key} out of cmd_args, below [[experiments]]"
            what = f"{key} is a key of the experiment, not an argument"
            findings.at(key).add(what, found=arguments.pop(key), hint=hint)


def _valid(key: str, value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(_AMBIGUOUS[key](value))
    except ValueError:
        return False


def _check_given(raw: Mapping[str, Any], table: ExperimentTable, findings: Findings) -> None:
    """Without a workload the experiment must say that it is live: an ``env_class`` alone only suggests it."""
    if "workload" not in raw and LIVE_RL_MODE not in raw["cmd_args"]:
        hint = f'{ENV_CLASS} is there: write workload = "{WORKLOAD}"'
        findings.at("workload").add("workload is required", allowed=ExperimentTable.says("workload").allowed, hint=hint)
    if "cmd_args" not in raw and not table.server.startswith(TCP):  # a remote server may need no arguments
        says = ExperimentTable.says("cmd_args")
        findings.at("cmd_args").add("cmd_args is required", allowed=says.allowed, hint=says.hint)


def _parameters(table: ExperimentTable, folder: Path, findings: Findings) -> Parameters:
    """The constructor's arguments and the candidates of env_params; every other list is refused."""
    arguments = dict(table.cmd_args or {})
    below = findings.at("cmd_args")
    if table.server.startswith(TCP):  # the class's arguments are not known here
        taken = frozenset(MEANINGLESS)
    else:
        taken = declared_arguments(arguments.get(ENV_CLASS), folder)
    _refuse_misplaced(arguments, taken, below)
    kept = {*table.env_params, *table.dse_excluded_args}
    own = {key: arguments.pop(key) for key in (ENV_CLASS, LIVE_RL_MODE) if key in arguments}
    rest = {**own, **_without_lists(arguments, "", kept, below)}
    alone = table.model_copy(update={"cmd_args": rest, "extra_env_vars": {}, "num_nodes": None})
    # The class may take an argument that has the name of an experiment's key.
    return gather(alone, own, findings, EXPERIMENT_KEYS - taken)


def _without_lists(table: Mapping[str, Any], prefix: str, kept: Set[str], findings: Findings) -> dict[str, Any]:
    """``table`` without the lists and ranges that are neither drawn nor meant as values."""
    rest: dict[str, Any] = {}
    for key, value in table.items():
        address, below = f"{prefix}{key}", findings.at(key)
        if address in kept:
            rest[key] = value
        elif isinstance(value, list) or is_range(value):
            below.add(
                "a live experiment has no knobs: the agent chooses from the server's own action space",
                found=value,
                allowed="a single value, the candidates of an env_param, or a list in dse_excluded_args",
                hint=f"name {address} in env_params to have it drawn, or in dse_excluded_args to pass it as it is",
            )
        elif isinstance(value, dict) and value:
            rest[key] = _without_lists(value, f"{address}.", kept, below)
            if not rest[key]:
                del rest[key]
        else:
            rest[key] = value
    return rest


def _server(table: ExperimentTable, parameters: Parameters, folder: Path, findings: Findings) -> LiveSpec:
    """Which server it is and where it lives."""
    elsewhere = table.server.startswith(TCP)
    env_class = parameters.own.get(ENV_CLASS, "")
    place = findings.at("cmd_args").at(ENV_CLASS)
    broken = findings.broken()
    hint = f'write for example {ENV_CLASS} = "my_module:MyServer"'
    if ENV_CLASS in parameters.own and not isinstance(env_class, str):
        place.add(f"expected a class's reference, got {kind(env_class)}", found=env_class, hint=hint)
        env_class = ""
    elif not env_class and not elsewhere and not broken & {"cmd_args", "server"}:
        place.add(f"the workload {WORKLOAD} needs {ENV_CLASS}", allowed="a class's reference", hint=hint)
    if "server" not in broken:
        _check_place(table, env_class, findings)
    return LiveSpec(
        env_class=env_class,
        arguments=nested(parameters.fixed),
        server=table.server,
        step_timeout_s=table.step_timeout_s,
        restarts=table.server_restarts,
        recording=table.record if isinstance(table.record, Recording) else Recording(),
        token_file=_token_file(table, folder, findings.at("server_token_file")),
    )


def _check_place(table: ExperimentTable, env_class: str, findings: Findings) -> None:
    """Refuse settings that a server can't have where it runs."""
    if env_class == INJECTED and table.server != IN_PROCESS:
        what = "a server that is given in Python runs in this process"
        hint = "remove server, or name its class instead of giving an object"
        findings.at("server").add(what, found=table.server, allowed=f'"{IN_PROCESS}"', hint=hint)
    elif table.step_timeout_s is not None and table.server == IN_PROCESS:
        findings.at("step_timeout_s").add(
            "a step of a server in this process can't be ended",
            found=table.step_timeout_s,
            allowed='step_timeout_s with server = "process" or server = "tcp://HOST:PORT"',
            hint='write server = "process", or remove step_timeout_s',
        )


def _token_file(table: ExperimentTable, folder: Path, findings: Findings) -> str | None:
    if table.server_token_file is None or "server" in findings.broken():
        return None
    file = folder / Path(table.server_token_file).expanduser()
    if not table.server.startswith(TCP):
        what, hint = "only a remote server asks for a token", "remove server_token_file"
        allowed = 'server_token_file with server = "tcp://HOST:PORT"'
        findings.add(what, found=table.server_token_file, allowed=allowed, hint=hint)
    elif not file.is_file():
        hint = "write the token that tunegym serve wants into it, or remove server_token_file"
        findings.add("there is no such file", found=table.server_token_file, allowed="an existing file", hint=hint)
    return str(file)


def _driver(agent: tuple[str, Any], table: ExperimentTable, around: Scope, findings: Findings) -> Any:
    """The class that drives the experiment, with its settings; None for what has a problem."""
    name, found = agent
    if found is None:
        return None, None
    driver = live_driver(found, name, around.catalog, around.scenario_dir, findings.at("agent"))
    if driver is None:
        return None, None
    if table.env_params and not any(getattr(one, "supports_variable_environment", False) for one in (driver, found)):
        what, hint = f"{shown(name)} can't handle an environment that varies", "remove env_params, or use another agent"
        findings.at("env_params").add(what, found=list(table.env_params), hint=hint)
    below = findings.at("agent_config")
    config = checked_config(driver.Config, table.agent_config, below)
    rewards = table.agent_config.get("rewards")
    if isinstance(rewards, dict) and "constraint_failure" in rewards and config is not None:
        what, hint = "a live experiment has no constraints that could refuse anything", "remove constraint_failure"
        below.at("rewards").at("constraint_failure").add(what, found=rewards["constraint_failure"], hint=hint)
    return driver, config


def _check_budget(table: ExperimentTable, findings: Findings) -> None:
    if table.agent_steps is None and table.max_time is None and not findings.broken() & {"agent_steps", "max_time"}:
        findings.at("agent_steps").add(
            "a live system never ends by itself, and no budget is given",
            allowed="at least one of agent_steps, max_time",
            hint="write for example agent_steps = 100000",
        )


def _check_reward(table: ExperimentTable, around: Scope, findings: Findings) -> None:
    reward, below = table.agent_reward_function, findings.at("agent_reward_function")
    if reward is not None and table.agent_metrics is None and "agent_metrics" not in findings.broken():
        below.add(
            "a reward function is over metrics, and agent_metrics names none",
            found=reward,
            allowed="a reward function beside agent_metrics, which are numbers in the server's info",
            hint="add agent_metrics, or remove it: then the server's own reward counts",
        )
        return
    check_reward(reward, table.agent_metrics or (), around.catalog, around.scenario_dir, below)
