"""What an experiment measures and what is better: ``metrics``, ``objectives``, the reward, and ``constraints``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from tunegym.config.catalog import Catalog, known
from tunegym.config.problems import Findings, did_you_mean, listed, shown
from tunegym.config.schema import ExperimentTable, MetricTable, ObjectiveTable, checked
from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import callable_by_name, is_reference, resolve
from tunegym.tuning.model import expression
from tunegym.tuning.model.expression import ExpressionConstraint, FunctionConstraint
from tunegym.tuning.model.scenario import BUILTIN_METRICS, MetricSpec, Objective, aims

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
