"""``objectives``: what is better, how much it counts, and what it must not exceed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunegym.config.findings import Findings
from tunegym.config.schema import ExperimentTable, ObjectiveTable
from tunegym.config.spelling import did_you_mean, listed, shown
from tunegym.config.tables import checked
from tunegym.tuning.model.objective import Objective, aims
from tunegym.tuning.model.scenario import BUILTIN_METRICS


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
