"""One ``[[experiments]]`` becomes an ``Experiment``, or problems.

``entry_of`` looks up the names in the table and says whether a server answers. ``read_jobs`` reads an experiment that
runs jobs; ``config.live`` reads the other kind, with the checks of this module.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from tunegym.config.parameters import Parameters, environment, flattened, gather, setting
from tunegym.config.problems import INSTEAD, Findings, Scope, kind, known, listed, shown
from tunegym.config.schema import (
    LIVE_KEYS,
    ConfirmTable,
    CvarTable,
    ExperimentTable,
    MetricTable,
    ObjectiveTable,
    ScenarioTable,
    SystemTable,
    checked,
    checked_config,
)
from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import callable_by_name, is_reference, resolve
from tunegym.core.text import did_you_mean
from tunegym.tuning.agents.base import AgentConfig, learns, trait
from tunegym.tuning.model import expression
from tunegym.tuning.model.expression import Constraint
from tunegym.tuning.model.scenario import (
    BUILTIN_METRICS,
    GOAL_OF_REWARD,
    Budget,
    Confirm,
    Experiment,
    Goal,
    Judged,
    Keep,
    MetricSpec,
    Objective,
    OverContexts,
    Penalties,
    PrunerSpec,
    aims,
)
from tunegym.tuning.model.space import Choice, EnvParams, Space
from tunegym.tuning.model.values import Context, pairs

WORKLOAD = "live"
LIVE_RL_MODE = "live_rl_mode"
ENV_CLASS = "env_class"
BUDGETS = ("agent_steps", "max_time", "stop_after_no_improvement")
_PARAMETER_KEYS = {"cmd_args", "extra_env_vars", "num_nodes", "dse_excluded_args", "workload"}
_WORKLOAD_KEYS = _PARAMETER_KEYS | {"env_params", "metrics", "agent_metrics", "objectives", "isolate", "timeout_s"}
_UNUSED_BY_PLAIN = ("agent", *BUDGETS, "stop_after_failures", "episode_steps", "objectives", "pruner", "agent_config")

_REFUSED_BY_PLAIN = ("baseline", "enqueue", "confirm", "over_contexts")
_Source: TypeAlias = Literal["regex", "json", "csv"]
_SOURCES: tuple[_Source, ...] = ("regex", "json", "csv")
_OPTIONS = {"match": "regex", "stream": "regex", "row": "csv"}
"""A metric's keys that only one source has."""
_WITHOUT_SETTING = {
    "max_finalists": "remove it: each context has one finalist",
    "confidence": "remove it: intervals have a confidence of 95 %",
}
"""Hints for settings of ``confirm`` that are not there any more."""
LEAST_SHARE = 0.001
"""A search is warned of constraints that leave a smaller share of the space."""
CHECKED = 4_000
"""A grid of at most so many points is checked whole against the constraints; of other spaces so many draws are."""
_CONSTRAINT = 'an expression such as "threads * 2 <= 8", or "module:function"'


@dataclasses.dataclass(frozen=True)
class Entry:
    """An experiment while it is read: its checked table, the classes that it names, and its problems."""

    name: str
    raw: Mapping[str, Any]  # the table as it is written
    table: ExperimentTable
    agent_name: str
    agent: Any  # the agent's class; None if there is none of this name. So is ``workload``.
    workload: Any
    live: bool | None  # whether a server answers; None, with a problem, if the experiment says both
    scope: Scope
    findings: Findings


@dataclasses.dataclass(frozen=True)
class Draft:
    """The result of reading one experiment."""

    name: str
    driven: bool | None  # whether an agent drives it; None when its problems leave that open
    experiment: Experiment | None  # None if it has a problem
    warnings: tuple[str, ...] = ()
    live: bool = False  # whether a server answers it
    learns: bool = False  # whether its agent's choices depend on the results of trials


def entry_of(name: str, raw: Mapping[str, Any], scope: Scope, findings: Findings) -> Entry:
    """Check one experiment's table, which is plain data, and look up the agent and the workload."""
    # Names come first: the other problems depend on the agent and the workload.
    default = "bayes" if any(key in raw for key in BUDGETS) else "grid_search"
    names = {"agent": raw.get("agent", default), "workload": raw.get("workload")}
    agent, workload = (
        known(scope.catalog, f"{key}s", value, findings.at(key)) if isinstance(value, str) else None
        for key, value in names.items()
    )
    live = _is_live(raw, workload, findings)
    table = dict(raw)
    if isinstance(table.get("cmd_args"), dict):
        table["cmd_args"] = {key: value for key, value in table["cmd_args"].items() if key != LIVE_RL_MODE}
    if isinstance(table.get("env_params"), dict):
        table["env_params"] = flattened(table["env_params"])
    read = checked(ExperimentTable, table, findings, lambda key: _stray(key, workload, raw.get("workload")))
    return Entry(name, raw, read, names["agent"], agent, workload, live, scope, findings)


def _is_live(raw: Mapping[str, Any], workload: Any, findings: Findings) -> bool | None:
    arguments = raw.get("cmd_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    mode = arguments.get(LIVE_RL_MODE)
    below = findings.at("cmd_args").at(LIVE_RL_MODE)
    if mode is not None and not isinstance(mode, bool):
        hint = f"write {LIVE_RL_MODE} = true, or leave it out"
        below.add(f"expected true or false, got {kind(mode)}", found=mode, hint=hint)
        mode = None
    if workload is None:  # missing or unknown: a server's class then shows the intention
        return mode is True or (mode is None and ENV_CLASS in arguments)
    live = bool(getattr(workload, "live", False))
    if mode is None or mode == live:
        return live
    named = f'workload = "{raw["workload"]}"'
    if mode:
        what = f'{LIVE_RL_MODE} = true means workload = "{WORKLOAD}", and this experiment has {named}'
        below.add(what, found=mode, hint=f'write workload = "{WORKLOAD}", or remove {LIVE_RL_MODE}')
    else:
        below.add(f"{LIVE_RL_MODE} = false contradicts {named}", found=mode, hint=f"remove {LIVE_RL_MODE}")
    return None


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
    return INSTEAD.get(key) or next((f"move it into {home}" for home, keys in homes.items() if key in keys), None)


# experiments that run jobs --------------------------------------------------------------------------------------------


def read_jobs(entry: Entry) -> Draft:
    """An experiment that runs jobs. An agent drives it if there is a knob."""
    table, findings, scope = entry.table, entry.findings, entry.scope
    for key in LIVE_KEYS:
        if entry.workload is not None and key in entry.raw and key not in findings.broken():
            hint = f'remove {key}, or write workload = "{WORKLOAD}"'
            what = f"{key} is for live experiments, and this one runs jobs"
            findings.at(key).add(what, found=entry.raw[key], hint=hint)
    agent = entry.agent
    if agent is not None and "trials" not in trait(agent, "kinds"):
        what = f"{shown(entry.agent_name)} drives live systems, and this experiment runs jobs"
        findings.at("agent").add(what, found=entry.agent_name, hint='use another agent, or workload = "live"')
        agent = None
    _check_required(entry)
    parameters = gather(table, getattr(entry.workload, "reserved", ()), findings)
    complete = not findings.broken() & _PARAMETER_KEYS
    drawn = environment(table.env_params, parameters, scope.catalog, findings.at("env_params"), complete)
    driven = _driven(table, parameters, complete, findings)
    specs = _metrics(table, findings.at("metrics"))
    objectives = _objectives(table, findings)
    metrics = tuple(dict.fromkeys([*(table.agent_metrics or ()), *(one.metric for one in objectives)]))
    goals = _goals(entry, objectives, [*metrics, *(spec.name for spec in specs)], driven)
    by_goal = "negative" if goals.get(next(iter(metrics), "")) == "min" else "identity"
    pruner = _pruner(entry)
    space = Space(parameters.knobs, parameters.fixed)
    config = None
    if agent is not None:
        below = findings.at("agent_config")
        config = checked_config(trait(agent, "Config"), table.agent_config, below, plane=scope.plane)
        if driven:
            _check_driven(entry, space)
    _check_isolation(entry)
    limits: tuple[Constraint, ...] = ()
    if complete and "env_params" not in findings.broken():
        limits = _constraints(table.constraints, [*space.fixed, *space.knobs, *drawn], scope, findings)
    judged = [name for one in table.objectives or () if (name := one.get("metric"))]
    check_reward(entry, [*(table.agent_metrics or ()), *judged, *table.metrics, *BUILTIN_METRICS])
    tuner: Any = agent if driven else None
    baseline, enqueue = _known_settings(entry, space, drawn, complete, limits)
    params = EnvParams(drawn, scope.seed)
    ends = None if tuner is None else trait(tuner, "ends_after")(space)
    contexts = len(params.represented()) if tuner is not None and trait(tuner, "plans_contexts") else 1
    built = Experiment(
        name=entry.name,
        workload=table.workload or "",
        workload_args=parameters.own,
        space=space,
        env_params=params,
        agent=entry.agent_name if driven else None,
        agent_config=config if driven else None,
        agent_ends_after=None if ends is None else ends * contexts,
        agent_metrics=metrics,
        reward=table.agent_reward_function or (None if objectives else by_goal),
        objectives=objectives,
        metrics=specs,
        goals=goals,
        judged=judged_by(table.agent_reward_function, metrics, objectives, goals),
        constraints=limits,
        penalties=getattr(config, "rewards", Penalties()) if driven else Penalties(),
        budget=budget_of(table) if driven else Budget(agent_steps=1),
        pruner=pruner if tuner is not None else None,
        timeout_s=typing.cast("float | None", table.timeout_s),
        repeats=typing.cast("int | Literal['auto']", table.repeats),
        warmup=table.warmup,
        cache=table.cache == "on",
        keep=table.keep if isinstance(table.keep, Keep) else Keep(),
        isolate=table.isolate is not False,
        episode_steps=table.episode_steps,
        baseline=baseline,
        enqueue=enqueue,
        confirm=_confirm(entry, driven),
        over_contexts=_over_contexts(entry),
    )
    if built.pruner is not None and not findings.broken() & {"agent_metrics", "env_params", "metrics", "objectives"}:
        _check_pruned(built, built.pruner.kind, findings)
    if entry.workload is not None and not findings.broken() & _WORKLOAD_KEYS:
        problems = entry.workload.check(built, scope.scenario_dir)
        findings.adopt(one for one in problems if not (scope.uses_num_nodes and one.where == "num_nodes"))
    if tuner is not None and not findings.broken():
        findings.adopt(trait(tuner, "check")(built, scope.scenario_dir))
    warnings = _unused_keys(entry) if driven is False else []
    if driven and limits and not findings.broken() & {"constraints", "env_params"}:
        warnings = _check_allowed(built, findings.at("constraints"))
    experiment = None if findings.broken() else built
    return Draft(entry.name, driven, experiment, tuple(warnings), learns=bool(tuner) and learns(tuner))


def _unused_keys(entry: Entry) -> list[str]:
    """Warn of the keys that a plain job doesn't use."""
    unused = [key for key in _UNUSED_BY_PLAIN if key in entry.raw]
    verb = "is" if len(unused) == 1 else "are"
    warning = f"experiment '{entry.name}' has no knob: it runs once, and {listed(unused)} {verb} not used"
    return [warning] if unused else []


def budget_of(table: ExperimentTable) -> Budget:
    """When the experiment ends."""
    longest = typing.cast("float | None", table.max_time)
    return Budget(table.agent_steps, longest, table.stop_after_no_improvement, table.stop_after_failures)


def _check_required(entry: Entry) -> None:
    table, findings = entry.table, entry.findings
    broken = findings.broken()
    for key in ("workload", "cmd_args"):
        if getattr(table, key) is None and key not in broken:
            ExperimentTable.require(key, f"{key} is required", findings)
    if entry.workload is None or table.cmd_args is None or "cmd_args" in broken:
        return
    for key in entry.workload.required:
        if key not in table.cmd_args:
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
        what = "without a knob this is a plain job, which runs once: there is nothing to draw for"
        hint = "make another parameter a list or a range, or remove env_params"
        findings.at("env_params").add(what, found=list(table.env_params), hint=hint)
    return None


def _check_driven(entry: Entry, space: Space) -> None:
    """Refuse an agent that has nothing to judge by, never ends, or can't search the space."""
    table, findings, name = entry.table, entry.findings, shown(entry.agent_name)
    unjudged = table.agent_metrics is None and table.objectives is None
    if unjudged and not findings.broken() & {"agent_metrics", "objectives"}:
        what = "an experiment with knobs needs a metric to judge them by"
        hint = f'write for example agent_metrics = ["{next(iter(table.metrics), "duration_s")}"]'
        findings.at("agent_metrics").add(what, allowed="a list of at least one metric's name", hint=hint)
    budgeted = any(getattr(table, key) for key in BUDGETS)
    if not trait(entry.agent, "finite") and not findings.broken() & set(BUDGETS) and not budgeted:
        what, allowed = f"{name} never ends by itself, and no budget is given", f"at least one of {listed(BUDGETS)}"
        findings.at("agent_steps").add(what, allowed=allowed, hint="write for example agent_steps = 100")
    check_varying(entry, entry.agent)
    if not findings.broken() & (_PARAMETER_KEYS | {"env_params"}):
        problem = trait(entry.agent, "refuse")(space)
        findings.adopt([] if problem is None else [problem])


def check_varying(entry: Entry, *agents: Any) -> None:
    """Refuse env_params if none of the agent's classes handles them."""
    if not entry.table.env_params or any(trait(agent, "supports_variable_environment") for agent in agents):
        return
    able = agents_that(entry.scope, lambda agent: trait(agent, "supports_variable_environment"))
    hint = f'write agent = "{able[0]}", or remove env_params' if able else "remove env_params"
    if is_reference(entry.agent_name):
        hint = "if it handles them, write supports_variable_environment = True in the class; else remove env_params"
    what = f"{shown(entry.agent_name)} can't handle an environment that varies"
    entry.findings.at("env_params").add(what, allowed=f"env_params with one of {listed(able)}", hint=hint)


def agents_that(scope: Scope, can: Callable[[Any], bool]) -> list[str]:
    """The agents by name for which ``can`` holds; one that can't be imported doesn't count."""
    agents = {name: known(scope.catalog, "agents", name, Findings()) for name in scope.catalog.names("agents")}
    return [name for name, agent in agents.items() if agent is not None and can(agent)]


def _check_isolation(entry: Entry) -> None:
    table, findings = entry.table, entry.findings
    if table.isolate is None or entry.workload is None:
        return
    if not getattr(entry.workload, "isolatable", table.workload == "python"):
        what = "isolate is for the python workload: a command always runs in its own processes"
        findings.at("isolate").add(what, found=table.isolate, hint="remove isolate")
    elif not table.isolate and table.timeout_s is not None:
        what, hint = "without isolation no process can be ended", "remove timeout_s, or write isolate = true"
        findings.at("timeout_s").add(what, found=table.timeout_s, hint=hint)


# baseline and confirmation --------------------------------------------------------------------------------------------


def _known_settings(
    entry: Entry, space: Space, drawn: Mapping[str, Any], complete: bool, limits: Sequence[Constraint]
) -> tuple[dict[str, Any] | None, tuple[dict[str, Any], ...]]:
    """The settings in use today, and those to try first. Knobs that these don't name are as in the former."""
    table, findings = entry.table, entry.findings
    if not space.knobs:
        for key in _REFUSED_BY_PLAIN if complete and not table.env_params else ():
            if key in entry.raw and key not in findings.broken() and entry.raw[key] != "off":
                what = f"without a knob this is a plain job, which runs once: {key} means nothing"
                findings.at(key).add(what, found=entry.raw[key], hint=f"remove {key}, or make a parameter a list")
        return None, ()
    if not complete or "env_params" in findings.broken():
        return None, ()
    others = dict.fromkeys(space.fixed, "fixed") | dict.fromkeys(drawn, "drawn by the environment")
    baseline = None
    if table.baseline is not None:
        baseline = setting(table.baseline, space.knobs, others, {}, findings.at("baseline"))
        for one in limits if "baseline" not in findings.broken() else ():
            known = (one.names or not drawn) and drawn.keys().isdisjoint(one.names)
            if known and (why := one.refuse({**space.fixed, **baseline})):
                hint = "the baseline is measured first: change it, or the constraint"
                findings.at("baseline").add(f"refused by {why}", found=table.baseline, hint=hint)
    enqueue = [
        setting(one, space.knobs, others, baseline or {}, findings.at("enqueue").at(index))
        for index, one in enumerate(table.enqueue or ())
    ]
    return baseline, tuple(enqueue)


def _confirm(entry: Entry, driven: bool | None) -> Confirm:
    given, findings = entry.table.confirm, entry.findings.at("confirm")
    if not isinstance(given, dict):
        return Confirm("off" if entry.scope.single_sbatch or not driven else given)
    if entry.scope.single_sbatch:
        what = "single_sbatch is for trials that are known in advance, and finalists are not"
        findings.add(what, found=given, hint='write confirm = "off", or remove single_sbatch')
    table = checked(ConfirmTable, given, findings, _WITHOUT_SETTING.get)
    return Confirm("on", table.share)


def _over_contexts(entry: Entry) -> OverContexts:
    given, findings = entry.table.over_contexts, entry.findings.at("over_contexts")
    if "over_contexts" in entry.raw and not entry.table.env_params and not entry.findings.broken():
        what = "there are no env_params, so there is one context only"
        findings.add(what, found=given, hint="remove over_contexts, or name what varies in env_params")
    if not isinstance(given, dict):
        return given
    if "cvar" not in given:
        CvarTable.require("cvar", "a share of the worst contexts is missing", findings)
    one = checked(CvarTable, given, findings)
    return {"cvar": one.cvar or 0.0}


# pruners --------------------------------------------------------------------------------------------------------------


def _pruner(entry: Entry) -> PrunerSpec | None:
    """The pruner that the experiment names, or None, possibly with problems."""
    value, catalog, findings = entry.table.pruner, entry.scope.catalog, entry.findings.at("pruner")
    if value is None:
        return None
    before = len(findings.problems)
    options = {} if isinstance(value, str) else dict(value)
    named = value if isinstance(value, str) else options.pop("kind", None)
    if not isinstance(named, str):
        allowed = f'{listed(catalog.names("pruners"))}, or "package.module:Name"'
        found = value if named is None else named
        findings.at("kind").add("a pruner's kind is a name", found=found, allowed=allowed, hint='write kind = "median"')
        return None
    factory = known(catalog, "pruners", named, findings if isinstance(value, str) else findings.at("kind"))
    if factory is not None:
        checked_config(factory.Config, options, findings)
    return PrunerSpec(named, options) if len(findings.problems) == before else None


def _check_pruned(experiment: Experiment, pruner: str, findings: Findings) -> None:
    """Refuse a pruner that could never judge a trial, or has no single metric to judge by."""
    below, judged = findings.at("pruner"), experiment.reported_metric
    goals = [goal.metric for goal in aims(experiment.objectives)]
    if len(goals) > 1:
        what = "a pruner judges by one number, and there are several objectives"
        hint = f"remove the pruner, or give all but one of {listed(goals)} weight = 0 and a limit"
        below.add(what, found=pruner, hint=hint)
        return
    for spec in experiment.metrics:
        if spec.stream and spec.name != judged:
            what = f"{shown(spec.name)} is streamed, but trials are judged by {shown(judged)}"
            hint = f"write stream = true for {judged} instead, or let {spec.name} be the first of agent_metrics"
            findings.at("metrics").at(spec.name).at("stream").add(what, found=True, hint=hint)
    ranges = [name for name, param in experiment.env_params.params.items() if not isinstance(param.domain, Choice)]
    if ranges:
        what = f"trials are compared under the same context, and {listed(ranges)} never has the same value twice"
        below.add(what, found=pruner, hint=f"make {ranges[0]} a list, or remove the pruner")


# metrics and objectives -----------------------------------------------------------------------------------------------


def _metrics(table: ExperimentTable, findings: Findings) -> tuple[MetricSpec, ...]:
    """The metrics in the order of the file; those with a problem, or only a goal, are left out."""
    # A callable returns its metrics, and every process has the built-in ones: their tables need no source.
    given = BUILTIN_METRICS if table.workload == "command" else table.metrics
    read = [_metric(name, one, findings.at(name), name in given) for name, one in table.metrics.items()]
    specs = tuple(spec for spec in read if spec is not None)
    streamed = [spec.name for spec in specs if spec.stream]
    for name in streamed[1:]:
        what = f"{streamed[0]} is streamed already, and a trial reports the values of one metric"
        hint = f"remove stream from {name} or from {streamed[0]}"
        findings.at(name).at("stream").add(what, found=True, hint=hint)
    return specs


def _metric(name: str, table: Mapping[str, Any], findings: Findings, given: bool) -> MetricSpec | None:
    before = len(findings.problems)
    spec = checked(MetricTable, table, findings)
    if not name.strip():
        findings.add("a metric needs a name", found=name, hint="name it")
    sources: list[_Source] = [source for source in _SOURCES if source in table]
    if len(sources) != 1 and not (given and table.keys() == {"goal"}):
        what = f"a metric is read from exactly one of {listed(_SOURCES)}"
        hint = f"keep one of {listed(sources)}" if sources else "write for example regex = 'time=([0-9.]+)'"
        findings.add(what, found=table, hint=hint)
    for option, source in _OPTIONS.items():
        if option in table and len(sources) == 1 and sources[0] != source:
            what, hint = f"{option} is for {source} only", f"remove {option}, or read the metric by {source}"
            findings.at(option).add(what, found=table[option], hint=hint)
    file = PurePath(spec.file or ".")
    if file.is_absolute() or ".." in file.parts:
        what = "a file outside of the trial's folder may be another trial's"
        hint = "let the command write, or copy, it to its current folder, which is the trial's"
        findings.at("file").add(what, found=spec.file, allowed="a path inside the trial's folder", hint=hint)
    elif spec.file is not None and not file.name:
        findings.at("file").add("this is no file's path", found=spec.file, hint='write for example "out.json"')
    if len(findings.problems) > before or not sources:
        return None
    row = -1 if spec.row is None else spec.row
    return MetricSpec(name, sources[0], table[sources[0]], spec.file, spec.match or "last", row, spec.stream)


def _objectives(table: ExperimentTable, findings: Findings) -> tuple[Objective, ...]:
    """The objectives in the order of the file; those with a problem are left out."""
    if table.objectives is None:
        return ()
    before, below = len(findings.problems), findings.at("objectives")
    if not table.objectives:
        ExperimentTable.require("objectives", "the list is empty", findings)
    found: list[Objective] = []
    for index, raw in enumerate(table.objectives):
        objective = _objective(raw, table, below.at(index))
        if objective is not None and any(objective.metric == other.metric for other in found):
            what, hint = f"{shown(objective.metric)} is there twice", "keep one: an objective has a goal and a limit"
            below.at(index).at("metric").add(what, found=objective.metric, hint=hint)
        elif objective is not None:
            found.append(objective)
    goals = aims(found)
    if len(findings.problems) > before:
        return tuple(found)
    if not goals:
        what = "there are limits to keep, and nothing to be made better"
        below.add(what, found=table.objectives, hint="give one of them a weight above 0")
    elif len(goals) == 1 and table.agent_reward_function is not None:
        what = f"the objective on {goals[0].metric} is the reward already"
        hint = "remove agent_reward_function, or the objectives"
        findings.at("agent_reward_function").add(what, found=table.agent_reward_function, hint=hint)
    return tuple(found)


def _objective(raw: Mapping[str, Any], table: ExperimentTable, findings: Findings) -> Objective | None:
    before = len(findings.problems)
    one = checked(ObjectiveTable, raw, findings)
    for key in ("metric", "goal"):
        if getattr(one, key) is None and key not in findings.broken():
            ObjectiveTable.require(key, f"an objective needs a {key}", findings)
    if one.weight == 0 and one.limit is None and not findings.broken():
        what = "without a weight and without a limit it counts for nothing"
        findings.at("weight").add(what, found=one.weight, hint="give it a limit, a weight above 0, or remove it")
    # A command's metrics are declared; those that a callable returns are not.
    produced = [*table.metrics, *BUILTIN_METRICS] if table.metrics or table.workload == "command" else None
    if one.metric is not None and produced is not None and one.metric not in produced:
        hint = did_you_mean(one.metric, produced, "add it to [experiments.metrics]")
        what = f"there is no metric {shown(one.metric)}"
        findings.at("metric").add(what, found=one.metric, allowed=listed(produced), hint=hint)
    if len(findings.problems) > before or one.metric is None or one.goal is None:
        return None
    return Objective(one.metric, one.goal, one.weight, one.limit)


def _goals(
    entry: Entry, objectives: Sequence[Objective], metrics: Sequence[str], driven: bool | None
) -> dict[str, Goal]:
    """Which way ``metrics`` are better: by their tables, by objectives or by the reward; built-in ones are costs."""
    table, findings, reward = entry.table, entry.findings, entry.table.agent_reward_function
    stated = {name: one["goal"] for name, one in table.metrics.items() if one.get("goal") in ("max", "min")}
    aimed: dict[str, Goal] = {one.metric: one.goal for one in objectives}
    for name, goal in stated.items():
        below = findings.at("metrics").at(name)
        if name not in metrics:
            hint = did_you_mean(name, metrics, f"add {name} to agent_metrics, or remove it")
            below.add("no trial is judged by this metric", found=name, allowed=listed(metrics), hint=hint)
        elif aimed.get(name, goal) != goal:
            what = f'the objective on {name} has goal = "{aimed[name]}"'
            below.at("goal").add(what, found=goal, hint="keep one of the two goals")
    goals: dict[str, Goal] = {**dict.fromkeys(BUILTIN_METRICS, "min"), **stated}
    if table.agent_metrics and not findings.broken() & {"agent_metrics", "metrics", "objectives"}:
        first, implied = table.agent_metrics[0], GOAL_OF_REWARD.get(reward or "")
        write, has_table = f'write {first} = {{ goal = "max" }}', first in table.metrics
        if driven and implied is not None and implied != goals.get(first, implied):
            what = f"{reward} means that {'more' if implied == 'max' else 'less'} {first} is better, and "
            what += f'its goal is "{goals[first]}"' if first in stated else "it is a cost"
            hint = "change the goal" if first in stated else f"{write} in [experiments.metrics]"
            findings.at("agent_reward_function").add(what, found=reward, hint=f"remove it, or {hint}")
        elif driven and not (reward or objectives or first in goals) and (has_table or table.workload != "command"):
            what, allowed = f"nothing says which way {shown(first)} is better", "a goal, a reward function, objectives"
            hint = f'{write} or {{ goal = "min" }} in [experiments.metrics]'
            hint = 'write goal = "min" or goal = "max" in its table' if has_table else hint
            findings.at("agent_metrics").add(what, found=table.agent_metrics, allowed=allowed, hint=hint)
        if implied is not None:
            goals[first] = implied
    goals |= aimed
    return {name: goal for name, goal in goals.items() if name in metrics}


def judged_by(
    reward: str | None, metrics: Sequence[str], objectives: Sequence[Objective], goals: Mapping[str, Goal]
) -> Judged:
    """What settings are judged by: the metric that the reward is a function of, else the reward."""
    names = [objective.metric for objective in aims(objectives)] if objectives else metrics[:1]
    is_metric = reward is None or reward in GOAL_OF_REWARD
    if len(names) != 1 or not is_metric:
        return Judged(scale="difference")
    goal = goals.get(names[0]) or GOAL_OF_REWARD.get(reward or "", "max")
    return Judged(names[0], goal, "ratio" if names[0] in BUILTIN_METRICS else "auto")


# constraints and rewards ----------------------------------------------------------------------------------------------


def _constraints(
    texts: Sequence[str], names: Sequence[str], scope: Scope, findings: Findings
) -> tuple[Constraint, ...]:
    """Each text as an expression over ``names``, or as a function that can be called with them."""
    parsed: list[Constraint] = []
    for index, text in enumerate(texts):
        below = findings.at("constraints").at(index)
        if is_reference(text):
            function = _function(text, names, scope.scenario_dir, below, _CONSTRAINT)
            if function is not None:
                parsed.append(Constraint(text, function))
            continue
        try:
            parsed.append(expression.parse(text, names))
        except expression.ExpressionError as error:
            # Its message may begin with a verb; any must read well after a subject.
            verb = error.message.startswith(("is ", "has ", "takes "))
            what = f"this constraint {'' if verb else 'is not usable: '}{error.message}"
            hint = error.hint or "compare parameters, such as threads * 2 <= 8"
            below.add(what, found=text, allowed=_CONSTRAINT, hint=hint)
    return tuple(parsed)


def _check_allowed(experiment: Experiment, findings: Findings) -> list[str]:
    """Refuse constraints that leave no setting in a represented context; warn if they leave hardly any."""
    texts = [constraint.text for constraint in experiment.expressions]
    used = {name for constraint in experiment.expressions for name in constraint.names}
    varying = used & experiment.env_params.params.keys()
    contexts = [context for context, _ in experiment.env_params.represented()]
    warnings: list[str] = []
    for context in contexts if varying else contexts[:1]:
        if _leaves_enough(experiment, context):
            continue
        under = pairs({name: value for name, value in context.items() if name in varying})
        under = f" under {under}" if under else ""
        if experiment.draw_allowed(context, 0, "constraints", 0) is None:
            what, allowed = f"no setting{under} keeps all constraints", "constraints that at least one setting keeps"
            findings.add(what, found=texts, allowed=allowed, hint="relax one of them, or give the knobs other values")
            return []
        warnings.append(
            f"experiment '{experiment.name}': fewer than {LEAST_SHARE:.1%} of the settings{under} keep the constraints"
        )
    return warnings[:1]


def _leaves_enough(experiment: Experiment, context: Context) -> bool:
    """Whether the constraints leave at least ``LEAST_SHARE`` of the settings, as far as a sample tells."""
    space, size = experiment.space, experiment.space.size
    if size is not None and size <= CHECKED:
        points = (space.point(index) for index in range(size))
    else:
        size = CHECKED
        points = (space.draw(0, "constraints", index) for index in range(CHECKED))
    enough = math.ceil(LEAST_SHARE * size)
    allowed = (point for point in points if experiment.allows(point, context))
    return len(list(islice(allowed, enough))) == enough


def check_reward(entry: Entry, metrics: Sequence[str]) -> None:
    """Refuse a reward that is neither known nor a function of ``metrics``."""
    name, findings = entry.table.agent_reward_function, entry.findings.at("agent_reward_function")
    if name is None:
        return
    if is_reference(name):
        metrics = list(dict.fromkeys(metrics))
        _function(name, metrics, entry.scope.scenario_dir, findings, 'a reward\'s name, or "module:function"')
    else:
        known(entry.scope.catalog, "rewards", name, findings)


def _function(
    reference: str, names: Sequence[str], folder: Path, findings: Findings, allowed: str
) -> Callable[[Mapping[str, Any]], Any] | None:
    try:
        function: Callable[..., Any] = resolve(reference, (str(folder),))
        if callable(function):
            return callable_by_name(function, names)
        what, hint = "this is not a function", "name a function of the module"
    except UnresolvedReferenceError as error:
        what, hint = error.message, error.hint or "check the module's and the function's name"
    findings.add(what, found=reference, allowed=allowed, hint=hint)
    return None
