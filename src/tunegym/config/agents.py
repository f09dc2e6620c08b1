"""The agent of an experiment: its settings, its budget, its pruner, and whether it can do what is asked."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunegym.config.catalog import Catalog, known
from tunegym.config.problems import Findings, listed, shown
from tunegym.config.schema import ExperimentTable, checked_config
from tunegym.core.errors import UnresolvedReferenceError
from tunegym.tuning.agents.base import driver, drives
from tunegym.tuning.model.scenario import Budget, Experiment, PrunerSpec, aims
from tunegym.tuning.model.space import Choice, Space

BUDGETS = ("agent_steps", "max_time", "stop_after_no_improvement")


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
