"""``pruner``: what ends hopeless trials early, and whether it has something to judge by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunegym.config.agents import agent_config
from tunegym.config.catalog import Catalog
from tunegym.config.findings import Findings
from tunegym.config.naming import known
from tunegym.config.spelling import listed, shown
from tunegym.tuning.model.objective import aims
from tunegym.tuning.model.scenario import Experiment, PrunerSpec
from tunegym.tuning.model.space import Choice


def pruner(value: str | Mapping[str, Any] | None, catalog: Catalog, findings: Findings) -> PrunerSpec | None:
    """The pruner that is asked for, or None, possibly with problems."""
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
        _check_options(factory.Config, options, findings)
    return PrunerSpec(kind, options) if len(findings.problems) == before else None


def _check_options(config: type[Any], options: Mapping[str, Any], findings: Findings) -> None:
    found = Findings(findings.where)
    agent_config(config, options, found)
    for problem in found.problems:
        # What a class itself refuses is about one of its settings, and it alone knows which.
        hint = "change it, or leave it out for its default" if problem.where == findings.where else problem.hint
        findings.problems.append(replace(problem, hint=hint))


def check_pruned(experiment: Experiment, findings: Findings) -> None:
    """Refuse a pruner that could never judge anything, or wouldn't know by what."""
    if experiment.pruner is None:
        return
    below = findings.at("pruner")
    kind = experiment.pruner.kind
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
