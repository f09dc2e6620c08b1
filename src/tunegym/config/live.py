"""A live ``[[experiments]]``: a server answers, and the agent chooses from the server's action space."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

from tunegym.config.experiment import (
    BUDGETS,
    ENV_CLASS,
    LIVE_RL_MODE,
    WORKLOAD,
    Draft,
    Entry,
    agents_that,
    budget_of,
    check_reward,
    check_varying,
    judged_by,
)
from tunegym.config.parameters import EXPERIMENT_KEYS, Parameters, environment, gather
from tunegym.config.problems import Findings, kind, known, listed, shown
from tunegym.config.schema import LIVE_KEYS, ExperimentTable, checked_config
from tunegym.core.references import is_reference
from tunegym.tuning.agents.base import trait
from tunegym.tuning.model.scenario import IN_PROCESS, INJECTED, TCP, Experiment, Judged, LiveSpec, Penalties, Recording
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
    "warmup": ("a live server warms up in its reset", ""),
    "baseline": ("a live experiment has no knobs, so there are no settings in use today", ""),
    "enqueue": ("a live experiment has no knobs, so there are no settings to try first", ""),
    "confirm": ("a live experiment is judged by its episodes, and nothing is confirmed", ""),
    "over_contexts": ("a live experiment has no settings to compare over contexts", ""),
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

_HARMLESS: dict[str, Any] = {"repeats": 1, "warmup": 0, "cache": "off", "confirm": "off"}
"""Values that change nothing in a live experiment."""


def check_servers(slots: int, findings: Findings) -> None:
    """Refuse more servers than any machine has."""
    if slots > MOST_SERVERS:
        what = f"a live experiment has a server in each slot, and {slots:,} are too many"
        allowed = f"an integer from 1 to {MOST_SERVERS}"
        findings.add(what, found=slots, allowed=allowed, hint="write for example slots = 4")


def read_live(entry: Entry) -> Draft:
    """A live experiment, or problems."""
    table, findings, scope = entry.table, entry.findings, entry.scope
    workload = known(scope.catalog, "workloads", table.workload or WORKLOAD, Findings())
    _check_keys(entry)
    parameters = _parameters(table, scope.scenario_dir, findings)
    complete = not findings.broken() & {"cmd_args", "dse_excluded_args"}
    drawn = environment(table.env_params, parameters, scope.catalog, findings.at("env_params"), complete, live=True)
    spec = _server(table, parameters, scope.scenario_dir, findings)
    found, config = _driver(entry)
    if not any(getattr(table, key) for key in BUDGETS) and not findings.broken() & {"agent_steps", "max_time"}:
        what = "a live system never ends by itself, and no budget is given"
        hint = "write for example agent_steps = 100000"
        findings.at("agent_steps").add(what, allowed="at least one of agent_steps, max_time", hint=hint)
    unnamed = table.agent_metrics is None and "agent_metrics" not in findings.broken()
    if table.agent_reward_function is not None and unnamed:
        what = "a reward function is over metrics, and agent_metrics names none"
        hint = "add agent_metrics, or remove it: then the server's own reward counts"
        findings.at("agent_reward_function").add(what, found=table.agent_reward_function, hint=hint)
    else:
        check_reward(entry, table.agent_metrics or ())
    metrics, reward = tuple(table.agent_metrics or ()), table.agent_reward_function
    built = Experiment(
        name=entry.name,
        workload=table.workload or WORKLOAD,
        workload_args={ENV_CLASS: spec.env_class},
        space=Space({}, parameters.fixed),
        env_params=EnvParams(drawn, scope.seed),
        agent=entry.agent_name,
        agent_config=config,
        agent_metrics=metrics,
        judged=Judged(scale="difference") if reward is None else judged_by(reward, metrics, (), {}),
        reward=reward,
        penalties=getattr(config, "rewards", Penalties()),
        budget=budget_of(table),
        cache=False,
        live=spec,
    )
    if workload is not None and not findings.broken() & _SERVER_KEYS:
        findings.adopt(workload.check(built, scope.scenario_dir))
    if found is not None and not findings.broken():
        findings.adopt(trait(found, "check")(built, scope.scenario_dir))
    return Draft(entry.name, True, None if findings.broken() else built, live=True)


def _check_keys(entry: Entry) -> None:
    """Refuse keys that a live experiment doesn't use, and require those that it needs."""
    raw, findings = entry.raw, entry.findings
    broken = findings.broken()
    # An env_class alone only suggests that the experiment is live.
    if "workload" not in raw and LIVE_RL_MODE not in raw["cmd_args"]:
        hint = f'{ENV_CLASS} is there: write workload = "{WORKLOAD}"'
        findings.at("workload").add("workload is required", hint=hint)
    if "cmd_args" not in raw and not entry.table.server.startswith(TCP):  # a remote server may need no arguments
        ExperimentTable.require("cmd_args", "cmd_args is required", findings)
    for key, (what, instead) in MEANINGLESS.items():
        if key in raw and key not in broken and raw[key] != _HARMLESS.get(key):
            findings.at(key).add(what, found=raw[key], hint=f"remove {key}" + (f"; {instead}" if instead else ""))


def _parameters(table: ExperimentTable, folder: Path, findings: Findings) -> Parameters:
    """The constructor's arguments and the candidates of env_params; any other list or range is refused."""
    arguments = table.cmd_args or {}
    # The class may take an argument that has the name of an experiment's key. A remote class is not known here.
    if table.server.startswith(TCP):
        keys = EXPERIMENT_KEYS - MEANINGLESS.keys()
    else:
        declared = declared_arguments(arguments.get(ENV_CLASS), folder)
        keys = frozenset() if declared is None else (EXPERIMENT_KEYS | {*LIVE_KEYS}) - declared
    alone = table.model_copy(update={"extra_env_vars": {}, "num_nodes": None})
    parameters = gather(alone, (ENV_CLASS,), findings, keys)
    for address, sort in parameters.kinds.items():
        if sort in ("list", "range", "single") and address not in table.env_params:
            value: Any = arguments
            for key in address.split("."):
                value = value[key]
            what = "a live experiment has no knobs: the agent chooses from the server's own action space"
            allowed = "a single value, the candidates of an env_param, or a list in dse_excluded_args"
            hint = f"name {address} in env_params to have it drawn, or in dse_excluded_args to pass it as it is"
            findings.at("cmd_args").under(address).add(what, found=value, allowed=allowed, hint=hint)
    return parameters


def _server(table: ExperimentTable, parameters: Parameters, folder: Path, findings: Findings) -> LiveSpec:
    """Which server it is and where it runs."""
    remote = table.server.startswith(TCP)
    env_class = parameters.own.get(ENV_CLASS, "")
    below, broken = findings.at("cmd_args").at(ENV_CLASS), findings.broken()
    hint = f'write for example {ENV_CLASS} = "my_module:MyServer"'
    if not isinstance(env_class, str):
        below.add(f"expected a class's reference, got {kind(env_class)}", found=env_class, hint=hint)
        env_class = ""
    elif not env_class and not remote and not broken & {"cmd_args", "server"}:
        below.add(f"the workload {WORKLOAD} needs {ENV_CLASS}", allowed="a class's reference", hint=hint)
    if env_class == INJECTED and table.server != IN_PROCESS:
        what = "a server that is given in Python runs in this process"
        hint = "remove server, or name its class instead of giving an object"
        findings.at("server").add(what, found=table.server, allowed=f'"{IN_PROCESS}"', hint=hint)
    elif table.step_timeout_s is not None and table.server == IN_PROCESS and "server" not in broken:
        what = "a step of a server in this process can't be ended"
        hint = 'write server = "process", or remove step_timeout_s'
        findings.at("step_timeout_s").add(what, found=table.step_timeout_s, hint=hint)
    return LiveSpec(
        env_class=env_class,
        arguments=nested(parameters.fixed),
        server=table.server,
        step_timeout_s=typing.cast("float | None", table.step_timeout_s),
        restarts=table.server_restarts,
        recording=table.record if isinstance(table.record, Recording) else Recording(),
        token_file=None if "server" in broken else _token_file(table.server_token_file, remote, folder, findings),
    )


def _token_file(given: str | None, remote: bool, folder: Path, findings: Findings) -> str | None:
    if given is None:
        return None
    file = folder / Path(given).expanduser()
    if not remote:
        what, hint = "only a remote server asks for a token", "remove server_token_file"
        findings.at("server_token_file").add(what, found=given, hint=hint)
    elif not file.is_file():
        hint = "write the token that tunegym serve wants into it, or remove server_token_file"
        findings.at("server_token_file").add("there is no such file", found=given, hint=hint)
    return str(file)


def _driver(entry: Entry) -> tuple[Any, Any]:
    """The class that drives the experiment, with its settings; None for either that has a problem."""
    table, findings, name = entry.table, entry.findings, shown(entry.agent_name)
    below = findings.at("agent")
    if entry.agent is None:
        return None, None
    kinds = trait(entry.agent, "kinds")
    if "live" not in kinds:
        able = agents_that(entry.scope, lambda agent: "live" in trait(agent, "kinds"))
        what = f"{name} searches knobs, and a live system has none: it can't drive one"
        hint = f'write for example agent = "{able[0]}"' if able else "name an agent that can"
        if is_reference(entry.agent_name):
            hint = 'if its run() takes steps of a LiveEnv, write kinds = {"live": None} in the class'
        allowed = f'{listed(able)}, or "package.module:Name"'
        below.add(what, found=entry.agent_name, allowed=allowed, hint=hint)
        return None, None
    reference = kinds["live"]
    found = entry.agent if reference is None else known(entry.scope.catalog, "agents", reference, below)
    if found is None:
        return None, None
    check_varying(entry, found, entry.agent)
    below = findings.at("agent_config")
    config = checked_config(trait(found, "Config"), table.agent_config, below, plane=entry.scope.plane)
    rewards = table.agent_config.get("rewards")
    if isinstance(rewards, dict) and "constraint_failure" in rewards and config is not None:
        what, hint = "a live experiment has no constraints that could refuse anything", "remove constraint_failure"
        below = findings.at("agent_config").at("rewards").at("constraint_failure")
        below.add(what, found=rewards["constraint_failure"], hint=hint)
    return found, config
