"""One ``[[experiments]]`` becomes an ``Experiment``, or problems."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from tunegym.config.parameters import Parameters, environment, flattened, gather
from tunegym.config.problems import Catalog, Findings, Scope, did_you_mean, kind, known, listed, shown
from tunegym.config.schema import (
    LIVE_KEYS,
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
from tunegym.tuning.agents.base import AgentConfig, driver, drives
from tunegym.tuning.model import expression
from tunegym.tuning.model.expression import ExpressionConstraint, FunctionConstraint
from tunegym.tuning.model.scenario import (
    BUILTIN_METRICS,
    Budget,
    Experiment,
    Keep,
    MetricSpec,
    Objective,
    Penalties,
    PrunerSpec,
    aims,
)
from tunegym.tuning.model.space import Choice, EnvParams, Space

DEFAULT_AGENT = "grid_search"
WORKLOAD = "live"
LIVE_RL_MODE = "live_rl_mode"
ENV_CLASS = "env_class"
BUDGETS = ("agent_steps", "max_time", "stop_after_no_improvement")
_PARAMETER_KEYS = {"cmd_args", "extra_env_vars", "num_nodes", "dse_excluded_args", "workload"}
_WORKLOAD_KEYS = _PARAMETER_KEYS | {"env_params", "metrics", "agent_metrics", "objectives", "isolate", "timeout_s"}
_UNUSED_BY_PLAIN = ("agent", *BUDGETS, "episode_steps", "objectives", "pruner", "agent_config")


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
        from tunegym.config.live import read_live

        built = read_live(name, raw, table, (table.agent or DEFAULT_AGENT, agent), around, findings)
        return Draft(name, True, built, live=True)
    if workload is not None:
        refuse_live_keys(raw, findings)
    agent = driver_of_trials(agent, agent_name, findings.at("agent"))
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
    ends_early = pruner(table.pruner, around.catalog, findings.at("pruner"))
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
        budget=budget_of(table) if driven else Budget(agent_steps=1),
        pruner=ends_early if tuner is not None else None,
        timeout_s=table.timeout_s,
        repeats=table.repeats,
        cache=table.cache == "on",
        keep=table.keep if isinstance(table.keep, Keep) else Keep(),
        isolate=table.isolate is not False,
        episode_steps=table.episode_steps,
    )
    if tuner is not None and not findings.broken() & {"agent_metrics", "env_params", "metrics", "objectives"}:
        check_pruned(built, findings)
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
    check_agent(agent, name, table, catalog, findings)
    if not findings.broken() & (_PARAMETER_KEYS | {"env_params"}):
        check_space(agent, Space(parameters.knobs, parameters.fixed), findings)


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


def budget_of(table: ExperimentTable) -> Budget:
    """When the experiment ends."""
    return Budget(table.agent_steps, typing.cast("float | None", table.max_time), table.stop_after_no_improvement)


def check_agent(agent: Any, name: str, table: ExperimentTable, catalog: Catalog, findings: Findings) -> None:
    """Refuse an agent that would never end, or that can't handle env_params."""
    if not agent.finite and not findings.broken() & set(BUDGETS) and budget_of(table) == Budget():
        findings.at("agent_steps").add(
            f"{shown(name)} never ends by itself, and no budget is given",
            allowed=f"at least one of {listed(BUDGETS)}",
            hint="write for example agent_steps = 100",
        )
    if table.env_params and not agent.supports_variable_environment:
        able = [other for other in catalog.names("agents") if _varies(catalog, other)]
        findings.at("env_params").add(
            f"{shown(name)} can't handle an environment that varies",
            allowed=f"env_params with one of {listed(able)}",
            hint=f'write agent = "{able[0]}", or remove env_params' if able else "remove env_params",
        )


def check_space(agent: Any, space: Space, findings: Findings) -> None:
    """Let the agent refuse a space that it can't search."""
    problem = agent.refuse(space)
    if problem is not None:
        findings.adopt([problem])


def driver_of_trials(agent: Any, name: str, findings: Findings) -> Any:
    """The agent itself, or None and a problem if it drives live systems only."""
    if agent is None or drives(agent, "trials"):
        return agent
    hint = 'use another agent, or workload = "live"'
    findings.add(f"{shown(name)} drives live systems, and this experiment runs jobs", found=name, hint=hint)
    return None


def live_driver(agent: Any, name: str, catalog: Catalog, folder: Path, findings: Findings) -> Any:
    """The class that drives a live experiment under an agent's name, or None and a problem."""
    if not drives(agent, "live"):
        names = catalog.names("agents")
        able = [other for other in names if drives(known(catalog, "agents", other, Findings()), "live")]
        findings.add(
            f"{shown(name)} searches knobs, and a live system has none: it can't drive one",
            found=name,
            allowed=f'{listed(able)}, or "package.module:Name"',
            hint=f'write for example agent = "{able[0]}"' if able else "name an agent that can",
        )
        return None
    try:
        found = driver(agent, "live", [str(folder)])
    except UnresolvedReferenceError as error:
        hint = error.hint or "correct the reference in its `kinds`"
        findings.add(f"{shown(name)} can't drive a live system here: {error.message}", found=name, hint=hint)
        return None
    if not (callable(found) and hasattr(found, "Config")):
        what = f"the class that {shown(name)} names for live experiments is no agent: {agent.kinds['live']}"
        findings.add(what, found=name, hint="name a class over LiveAgent in its `kinds`")
        return None
    return found


def _varies(catalog: Catalog, name: str) -> bool:
    """Whether an agent handles a varying environment; one that can't be imported doesn't count."""
    return bool(getattr(known(catalog, "agents", name, Findings()), "supports_variable_environment", False))


def pruner(value: str | Mapping[str, Any] | None, catalog: Catalog, findings: Findings) -> PrunerSpec | None:
    """The pruner that the experiment names, or None, possibly with problems."""
    if value is None:
        return None
    before = len(findings.problems)
    options = {} if isinstance(value, str) else dict(value)
    kind = value if isinstance(value, str) else options.pop("kind", None)
    if not isinstance(kind, str):
        what = "a pruner needs a kind" if kind is None else "a pruner's kind is a name"
        allowed = f'{listed(catalog.names("pruners"))}, or "package.module:Name"'
        found = value if kind is None else kind
        findings.at("kind").add(what, found=found, allowed=allowed, hint='write kind = "median"')
        return None
    factory = known(catalog, "pruners", kind, findings if isinstance(value, str) else findings.at("kind"))
    if factory is not None:
        found = Findings(findings.where)
        checked_config(factory.Config, options, found)
        for problem in found.problems:
            # The class itself refuses one of its settings, and only it knows which.
            hint = "change it, or leave it out for its default" if problem.where == findings.where else problem.hint
            findings.problems.append(replace(problem, hint=hint))
    return PrunerSpec(kind, options) if len(findings.problems) == before else None


def check_pruned(experiment: Experiment, findings: Findings) -> None:
    """Refuse a pruner that could never judge a trial, or has no single metric to judge by."""
    if experiment.pruner is None:
        return
    below, kind = findings.at("pruner"), experiment.pruner.kind
    goals = aims(experiment.objectives)
    if len(goals) > 1:
        names = listed(goal.metric for goal in goals)
        below.add(
            "a pruner judges by one number, and there are several objectives",
            found=kind,
            allowed="a pruner beside one objective, or none",
            hint=f"remove the pruner, or give all but one of {names} weight = 0 and a limit",
        )
        return
    judged = experiment.judged_metric
    for spec in experiment.metrics:
        if spec.stream and spec.name != judged:
            what = f"{shown(spec.name)} is streamed, but trials are judged by {shown(judged)}"
            hint = f"write stream = true for {judged} instead, or let {spec.name} be the first of agent_metrics"
            findings.at("metrics").at(spec.name).at("stream").add(what, found=True, allowed=f"{judged}", hint=hint)
    ranges = [name for name, param in experiment.env_params.params.items() if not isinstance(param.domain, Choice)]
    if ranges:
        below.add(
            f"trials are compared under the same context, and {listed(ranges)} never has the same value twice",
            found=kind,
            allowed="env_params with a list of candidates beside a pruner",
            hint=f"make {ranges[0]} a list, or remove the pruner",
        )


Constraint: TypeAlias = ExpressionConstraint | FunctionConstraint
_Source: TypeAlias = Literal["regex", "json", "csv"]
_SOURCES: tuple[_Source, ...] = ("regex", "json", "csv")
_CONSTRAINT = 'an expression such as "threads * 2 <= 8", or "module:function"'


def metrics(tables: Mapping[str, dict[str, Any]], findings: Findings) -> tuple[MetricSpec, ...]:
    """The metrics in the order of the file; what has a problem is noted and left out."""
    read = [_metric(name, table, findings.at(name)) for name, table in tables.items()]
    specs = tuple(spec for spec in read if spec is not None)
    streamed = [spec.name for spec in specs if spec.stream]
    for name in streamed[1:]:
        findings.at(name).at("stream").add(
            f"{streamed[0]} is streamed already, and a trial reports the values of one metric",
            found=True,
            allowed="one metric with stream = true",
            hint=f"remove stream from {name} or from {streamed[0]}",
        )
    return specs


def _metric(name: str, table: Mapping[str, Any], findings: Findings) -> MetricSpec | None:
    before = len(findings.problems)
    spec = checked(MetricTable, table, findings)
    if not name.strip():
        findings.add("a metric needs a name", found=name, hint="name it")
    sources: list[_Source] = [source for source in _SOURCES if source in table]
    if len(sources) != 1:
        what = f"a metric is read from exactly one of {listed(_SOURCES)}"
        hint = f"keep one of {listed(sources)}" if sources else "write for example regex = 'time=([0-9.]+)'"
        findings.add(what, found=table, allowed=listed(_SOURCES), hint=hint)
    if len(findings.problems) > before:
        return None
    source = sources[0]
    expression = table[source]
    _check_options(source, spec, findings)
    if len(findings.problems) > before:
        return None
    row = -1 if spec.row is None else spec.row
    return MetricSpec(name, source, expression, spec.file, spec.match or "last", row, spec.stream)


def _check_options(source: str, spec: MetricTable, findings: Findings) -> None:
    if spec.match is not None and source != "regex":
        findings.at("match").add("match is for regex only", found=spec.match, hint="remove match")
    if spec.stream and source != "regex":
        what, hint = "only a regex can be matched while the file grows", "write the metric as a regex, or remove stream"
        findings.at("stream").add(what, found=spec.stream, allowed="stream = true beside regex", hint=hint)
    if spec.row is not None and source != "csv":
        findings.at("row").add("row is for csv only", found=spec.row, hint="remove row")
    if spec.file is not None and (PurePath(spec.file).is_absolute() or ".." in PurePath(spec.file).parts):
        what = "a file outside of the trial's folder may be another trial's"
        hint = "let the command write, or copy, it to its current folder, which is the trial's"
        findings.at("file").add(what, found=spec.file, allowed="a path inside the trial's folder", hint=hint)
    elif spec.file is not None and (not spec.file or PurePath(spec.file).name == ""):
        findings.at("file").add("this is no file's path", found=spec.file, hint='write for example "out.json"')


# objectives ----------------------------------------------------------------------------------------------------------


def objectives(table: ExperimentTable, findings: Findings) -> tuple[Objective, ...]:
    """The experiment's objectives in the order of the file; what has a problem is noted and left out."""
    if table.objectives is None:
        return ()
    before = len(findings.problems)
    below = findings.at("objectives")
    if not table.objectives:
        below.add("the list is empty", found=[], hint=ExperimentTable.says("objectives").hint)
    read = [_objective(one, table, below.at(index)) for index, one in enumerate(table.objectives)]
    found = [objective for objective in read if objective is not None]
    _check_distinct(found, below)
    if len(findings.problems) == before:
        _check_together(found, table, findings)
    return tuple(found)


def _objective(raw: Mapping[str, Any], table: ExperimentTable, findings: Findings) -> Objective | None:
    before = len(findings.problems)
    one = checked(ObjectiveTable, raw, findings)
    for key in ("metric", "goal"):
        if getattr(one, key) is None and key not in findings.broken():
            says = ObjectiveTable.says(key)
            findings.at(key).add(f"an objective needs a {key}", allowed=says.allowed, hint=says.hint)
    if one.weight == 0 and one.limit is None and not findings.broken():
        what = "without a weight and without a limit it counts for nothing"
        findings.at("weight").add(what, found=one.weight, hint="give it a limit, a weight above 0, or remove it")
    # What a command gives is written down; what a callable returns is not.
    produced = [*table.metrics, *BUILTIN_METRICS] if table.metrics or table.workload == "command" else None
    if one.metric is not None and produced is not None and one.metric not in produced:
        what = f"there is no metric {shown(one.metric)}"
        hint = did_you_mean(one.metric, produced, "add it to [experiments.metrics]")
        findings.at("metric").add(what, found=one.metric, allowed=listed(produced), hint=hint)
    if len(findings.problems) > before or one.metric is None or one.goal is None:
        return None
    return Objective(one.metric, one.goal, one.weight, one.limit)


def _check_distinct(found: list[Objective], findings: Findings) -> None:
    names = [objective.metric for objective in found]
    for index, name in enumerate(names):
        if name in names[:index]:
            what, hint = f"{shown(name)} is there twice", "keep one; a goal and a limit fit into one objective"
            findings.at(index).at("metric").add(what, found=name, hint=hint)


def _check_together(found: list[Objective], table: ExperimentTable, findings: Findings) -> None:
    goals = aims(found)
    if not goals:
        findings.at("objectives").add(
            "there are limits to keep, and nothing to be made better",
            found=[objective.as_dict() for objective in found],
            allowed="at least one objective with a weight above 0",
            hint="give one of them a weight",
        )
    elif len(goals) == 1 and table.agent_reward_function is not None:
        findings.at("agent_reward_function").add(
            f"the objective on {goals[0].metric} is the reward already",
            found=table.agent_reward_function,
            allowed="a reward function beside several objectives, or without any",
            hint="remove agent_reward_function, or the objectives",
        )


# constraints and rewards ---------------------------------------------------------------------------------------------


def constraints(texts: Sequence[str], names: Sequence[str], folder: Path, findings: Findings) -> tuple[Constraint, ...]:
    """Each text as an expression over ``names``, or as a function that can be called with them."""
    parsed: list[Constraint] = []
    for index, text in enumerate(texts):
        below = findings.at(index)
        if is_reference(text):
            function = _function(text, names, folder, below, _CONSTRAINT)
            if function is not None:
                parsed.append(FunctionConstraint(text, function))
            continue
        try:
            parsed.append(ExpressionConstraint(text, expression.parse(text, names)))
        except expression.ExpressionError as error:
            hint = error.hint or "compare parameters, such as threads * 2 <= 8"
            below.add(f"this constraint {_clause(error.message)}", found=text, allowed=_CONSTRAINT, hint=hint)

    return tuple(parsed)


def metric_names(table: ExperimentTable) -> list[str]:
    """Every metric that jobs of the experiment are known to give."""
    judged = [objective.get("metric") for objective in table.objectives or ()]
    named = [*(table.agent_metrics or ()), *filter(None, judged), *table.metrics, *BUILTIN_METRICS]
    return list(dict.fromkeys(named))


def check_reward(name: str | None, metrics: Sequence[str], catalog: Catalog, folder: Path, findings: Findings) -> None:
    """Refuse a reward that is neither known nor a function of the experiment's metrics."""
    if name is None:
        return
    if is_reference(name):
        _function(name, metrics, folder, findings, 'a reward\'s name, or "module:function"')
    else:
        known(catalog, "rewards", name, findings)


def _clause(message: str) -> str:
    """An expression's message may begin with its verb; any must read well after a subject."""
    return message if message.startswith(("is ", "has ", "takes ")) else f"can't be used: {message}"


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


def is_live(raw: Mapping[str, Any], workload: Any, findings: Findings) -> bool | None:
    """Whether a server answers; None, with a problem, if the experiment says both."""
    arguments = raw.get("cmd_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    mode = arguments.get(LIVE_RL_MODE)
    below = findings.at("cmd_args").at(LIVE_RL_MODE)
    if mode is not None and not isinstance(mode, bool):
        hint = f"write {LIVE_RL_MODE} = true, or leave it out"
        below.add(f"expected true or false, got {kind(mode)}", found=mode, allowed="true or false", hint=hint)
        mode = None
    if workload is None:  # missing or unknown: then a server's class says what was meant
        return mode is True or (mode is None and ENV_CLASS in arguments)
    live = bool(getattr(workload, "live", False))
    if mode is None or mode == live:
        return live
    named = f'workload = "{raw["workload"]}"'
    if mode:
        what = f'{LIVE_RL_MODE} = true means workload = "{WORKLOAD}", and this experiment has {named}'
        hint = f'write workload = "{WORKLOAD}", or remove {LIVE_RL_MODE}'
    else:
        what, hint = f"{LIVE_RL_MODE} = false contradicts {named}, which is live", f"remove {LIVE_RL_MODE}"
    below.add(what, found=mode, allowed=f'{LIVE_RL_MODE} = true with workload = "{WORKLOAD}" or without any', hint=hint)
    return None


def refuse_live_keys(raw: Mapping[str, Any], findings: Findings) -> None:
    """Refuse the keys that only a live experiment uses."""
    for key in LIVE_KEYS:
        if key in raw and key not in findings.broken():
            what = f"{key} is for live experiments, and this one runs jobs"
            hint = f'remove {key}, or write workload = "{WORKLOAD}"'
            findings.at(key).add(what, found=raw[key], hint=hint)
