"""One ``[[experiments]]`` becomes an ``Experiment``, or problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tunegym.config import agents
from tunegym.config.catalog import Catalog, Scope, known
from tunegym.config.environment import environment, flattened
from tunegym.config.live import LIVE_RL_MODE, is_live, read_live, refuse_live_keys
from tunegym.config.metrics import Constraint, check_reward, constraints, metric_names, metrics, objectives
from tunegym.config.parameters import Parameters, gather
from tunegym.config.problems import Findings, listed
from tunegym.config.schema import ExperimentTable, ScenarioTable, SystemTable, checked, checked_config
from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.model.scenario import Budget, Experiment, Keep, Penalties
from tunegym.tuning.model.space import EnvParams, Space

DEFAULT_AGENT = "grid_search"
_PARAMETER_KEYS = {"cmd_args", "extra_env_vars", "num_nodes", "dse_excluded_args", "workload"}
_WORKLOAD_KEYS = _PARAMETER_KEYS | {"env_params", "metrics", "agent_metrics", "objectives", "isolate", "timeout_s"}
_UNUSED_BY_PLAIN = ("agent", *agents.BUDGETS, "episode_steps", "objectives", "pruner", "agent_config")


@dataclasses.dataclass(frozen=True)
class Draft:
    """The result of reading one experiment.

    Attributes:
        driven: whether an agent drives it; None when its problems leave that open.
        experiment: None if it has a problem.
        live: whether a server answers it.
    """

    name: str
    driven: bool | None
    experiment: Experiment | None
    warnings: tuple[str, ...] = ()
    live: bool = False


def read(name: str, raw: Mapping[str, Any], around: Scope, findings: Findings) -> Draft:
    """Check one experiment's table, which is plain data, and build what it describes."""
    # Names come first: most of what follows depends on the agent and the workload.
    agent_name = raw.get("agent", DEFAULT_AGENT)
    agent = _class(around.catalog, "agents", agent_name, findings.at("agent"))
    workload = _class(around.catalog, "workloads", raw.get("workload"), findings.at("workload"))
    live = is_live(raw, workload, findings)
    table = checked(ExperimentTable, _prepared(raw), findings, lambda key: _stray(key, workload, raw.get("workload")))
    if live is None:  # it says both, and further problems depend on which is meant
        return Draft(name, None, None)
    if live:
        built = read_live(name, raw, table, (table.agent or DEFAULT_AGENT, agent), around, findings)
        return Draft(name, True, built, live=True)
    if workload is not None:
        refuse_live_keys(raw, findings)
    agent = agents.driver_of_trials(agent, agent_name, findings.at("agent"))
    driven, built = _read_jobs(name, table, (agent_name, agent), workload, around, findings)
    unused = [key for key in _UNUSED_BY_PLAIN if key in raw] if driven is False else []
    verb = "is" if len(unused) == 1 else "are"
    warning = f"experiment '{name}' has no knob: it runs once, and {listed(unused)} {verb} not used"
    return Draft(name, driven, None if findings.broken() else built, (warning,) if unused else ())


def _read_jobs(
    name: str,
    table: ExperimentTable,
    named_agent: tuple[str, Any],
    workload: Any,
    around: Scope,
    findings: Findings,
) -> tuple[bool | None, Experiment]:
    """An experiment that runs jobs, and whether an agent drives it: it does if there is a knob."""
    agent_name, agent = named_agent
    _check_required(table, workload, findings)
    parameters = gather(table, getattr(workload, "reserved", ()), findings)
    complete = not findings.broken() & _PARAMETER_KEYS
    drawn = environment(table.env_params, parameters, around.catalog, findings.at("env_params"), complete)
    driven = _driven(table, parameters, complete, findings)
    specs = metrics(table.metrics, findings.at("metrics"))
    goals = objectives(table, findings)
    ends_early = agents.pruner(table.pruner, around.catalog, findings.at("pruner"))
    config = None
    if agent is not None:
        config = checked_config(agent.Config, table.agent_config, findings.at("agent_config"))
        if driven:
            _check_driven(agent, agent_name, table, parameters, around.catalog, findings)
    _check_isolation(table, workload, findings)
    limits: tuple[Constraint, ...] = ()
    if complete and "env_params" not in findings.broken():
        names = [*parameters.fixed, *parameters.knobs, *drawn]
        limits = constraints(table.constraints, names, around.scenario_dir, findings.at("constraints"))
    reward, below = table.agent_reward_function, findings.at("agent_reward_function")
    check_reward(reward, metric_names(table), around.catalog, around.scenario_dir, below)
    space = Space(parameters.knobs, parameters.fixed)
    tuner: Any = agent if driven else None
    built = Experiment(
        name=name,
        workload=table.workload or "",
        workload_args=parameters.own,
        space=space,
        env_params=EnvParams(drawn, around.seed),
        agent=(table.agent or DEFAULT_AGENT) if driven else None,
        agent_config=config if driven else None,
        agent_ends_after=tuner.ends_after(space) if hasattr(tuner, "ends_after") else None,
        agent_metrics=tuple(dict.fromkeys([*(table.agent_metrics or ()), *(goal.metric for goal in goals)])),
        reward=table.agent_reward_function or (None if goals else "identity"),
        objectives=goals,
        metrics=specs,
        constraints=limits,
        penalties=config.rewards if driven and config is not None else Penalties(),
        budget=agents.budget_of(table) if driven else Budget(agent_steps=1),
        pruner=ends_early if tuner is not None else None,
        timeout_s=table.timeout_s,
        repeats=table.repeats,
        cache=table.cache == "on",
        keep=table.keep if isinstance(table.keep, Keep) else Keep(),
        isolate=table.isolate is not False,
        episode_steps=table.episode_steps,
    )
    if tuner is not None and not findings.broken() & {"agent_metrics", "env_params", "metrics", "objectives"}:
        agents.check_pruned(built, findings)
    if workload is not None and not findings.broken() & _WORKLOAD_KEYS:
        findings.adopt(workload.check(built, around.scenario_dir))
    if tuner is not None and hasattr(tuner, "check") and not findings.broken():
        findings.adopt(tuner.check(built, around.scenario_dir))
    return driven, built


def _class(catalog: Catalog, kind: str, name: object, findings: Findings) -> Any:
    """The class of a name; a value that is no string is left to the table's own check."""
    return known(catalog, kind, name, findings) if isinstance(name, str) else None


def _prepared(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The table with env_params by address, and without what only says whether the experiment is live."""
    table = dict(raw)
    if isinstance(table.get("cmd_args"), dict):
        table["cmd_args"] = {key: value for key, value in table["cmd_args"].items() if key != LIVE_RL_MODE}
    if isinstance(table.get("env_params"), dict):
        table["env_params"] = flattened(table["env_params"])
    return table


def _stray(key: str, workload: Any, name: object) -> str | None:
    """The table that a key belongs to which is not an experiment's."""
    if key in getattr(workload, "reserved", ()):
        return f"move it into [experiments.cmd_args]: it belongs to the workload {name}"
    homes = {
        "[experiments.agent_config]": [field.name for field in dataclasses.fields(AgentConfig)],
        "[experiments.agent_config.rewards]": [field.name for field in dataclasses.fields(Penalties)],
        "[system]": list(SystemTable.model_fields),
        "the top of the file": list(ScenarioTable.model_fields),
    }
    return next((f"move it into {home}" for home, keys in homes.items() if key in keys), None)


def _check_required(table: ExperimentTable, workload: Any, findings: Findings) -> None:
    broken = findings.broken()
    for key in ("workload", "cmd_args"):
        if getattr(table, key) is None and key not in broken:
            hint = ExperimentTable.says(key).hint
            findings.at(key).add(f"{key} is required", allowed=ExperimentTable.says(key).allowed, hint=hint)
    if workload is None or table.cmd_args is None:
        return
    for key in workload.required:
        if key not in table.cmd_args and "cmd_args" not in broken:
            what = f"the workload {table.workload} needs {key}"
            findings.at("cmd_args").at(key).add(what, hint=f"write {key} = ... in [experiments.cmd_args]")


def _driven(table: ExperimentTable, parameters: Parameters, complete: bool, findings: Findings) -> bool | None:
    """Whether an agent drives the experiment; refuses env_params around a job without a knob."""
    if parameters.knobs:
        return True
    if not complete:
        return None
    if not table.env_params:
        return False
    if "env_params" not in findings.broken():
        findings.at("env_params").add(
            "without a knob this is a plain job, which runs once: there is nothing to draw for",
            found=list(table.env_params),
            allowed="env_params beside at least one knob that the agent chooses",
            hint="make another parameter a list or a range, or remove env_params",
        )
    return None


def _check_driven(
    agent: Any,
    name: str,
    table: ExperimentTable,
    parameters: Parameters,
    catalog: Catalog,
    findings: Findings,
) -> None:
    if (
        table.agent_metrics is None
        and table.objectives is None
        and not findings.broken() & {"agent_metrics", "objectives"}
    ):
        metric = next(iter(table.metrics), "duration_s")
        findings.at("agent_metrics").add(
            "an experiment with knobs needs a metric to judge them by",
            allowed="a list of at least one metric's name",
            hint=f'write for example agent_metrics = ["{metric}"]',
        )
    agents.check_agent(agent, name, table, catalog, findings)
    if not findings.broken() & (_PARAMETER_KEYS | {"env_params"}):
        agents.check_space(agent, Space(parameters.knobs, parameters.fixed), findings)


def _check_isolation(table: ExperimentTable, workload: Any, findings: Findings) -> None:
    if table.isolate is None or workload is None:
        return
    if not getattr(workload, "isolatable", table.workload == "python"):
        what = "isolate is for the python workload: a command always has processes of its own"
        findings.at("isolate").add(what, found=table.isolate, hint="remove isolate")
    elif not table.isolate and table.timeout_s is not None:
        what = "without isolation there is no process that could be ended"
        hint = "remove timeout_s, or write isolate = true"
        findings.at("timeout_s").add(what, found=table.timeout_s, allowed="timeout_s with isolate = true", hint=hint)
