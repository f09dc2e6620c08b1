"""``tunegym dry-run``: what would run."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tunegym.app.planning import ExperimentPlan, plan
from tunegym.app.running import as_scenario
from tunegym.cli.console import console, print_json
from tunegym.cli.errors import guarded
from tunegym.cli.live_plan import live_as_dict, live_lines
from tunegym.cli.tables import pairs
from tunegym.tuning.model.scenario import Scenario


def main(path: Path, overrides: list[str], slots: int | None, count: int, *, as_json: bool) -> int:
    """Show every experiment's plan."""
    return guarded(lambda: _dry_run(path, overrides, slots, count, as_json=as_json))


def _dry_run(path: Path, overrides: list[str], slots: int | None, count: int, *, as_json: bool) -> int:
    settings = [*overrides, *([] if slots is None else [f"system.slots={slots}"])]
    scenario = as_scenario(path, settings)
    plans = [plan(scenario, experiment, count) for experiment in scenario.experiments]
    out = console()
    if as_json:
        print_json({"scenario": scenario.name, "experiments": [_as_dict(one) for one in plans]})
        return 0
    for warning in scenario.warnings:
        console(stderr=True).print(f"warning: {warning}", markup=False, soft_wrap=True)
    for one in plans:
        for line in _lines(scenario, one):
            out.print(line, markup=False, soft_wrap=True)
    return 0


def _as_dict(one: ExperimentPlan) -> dict[str, Any]:
    if one.experiment.live is not None:
        return live_as_dict(one.experiment, one.experiment.live)
    return {
        "name": one.experiment.name,
        "agent": one.experiment.agent,
        "trials": one.trials,
        "combinations": one.combinations if (one.combinations or 0) < 2**63 else None,
        "first": [
            {
                "step": trial.number,
                "action": trial.action,
                "context": trial.context,
                "runs": trial.runs,
                "infeasible": trial.refused,
            }
            for trial in one.first
        ],
    }


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _indented(head: str, text: str) -> list[str]:
    """A command behind its head, or below it when it has several lines."""
    if "\n" not in text.strip():
        return [f"{head} {text.strip()}"]
    return [head, textwrap.indent(textwrap.dedent(text).strip("\n "), "    ")]


def _lines(scenario: Scenario, one: ExperimentPlan) -> list[str]:
    experiment = one.experiment
    if experiment.live is not None:
        return live_lines(scenario, experiment, experiment.live)
    budget = experiment.budget
    trials = _plural(one.trials, "trial") if one.trials is not None else "trials until the budget ends"
    combinations = f"{one.combinations:,} combinations" if one.combinations is not None else "a continuous space"
    if experiment.agent is None:
        lines = [f"{experiment.name}: a plain job, run once on {scenario.runner}"]
    else:
        width = f"{scenario.slots} at a time on {scenario.runner}, {_plural(experiment.repeats, 'sample')} each"
        lines = [f"{experiment.name}: {experiment.agent}, {trials} over {combinations}, {width}"]
    if budget.max_time_s is not None:
        lines.append(f"  ends after {budget.max_time_s:g} s")
    if budget.stop_after_no_improvement is not None:
        lines.append(f"  ends after {budget.stop_after_no_improvement} trials without improvement")
    lines += [f"  {name} = {knob.describe()}" for name, knob in experiment.space.knobs.items()]
    for name, param in experiment.env_params.params.items():
        weights = f" with weights {list(param.weights)}" if param.weights else ""
        lines.append(f"  {name} = {param.domain.describe()}{weights}, drawn per trial")
    for trial in one.first:
        context = f"  [{pairs(trial.context)}]" if trial.context else ""
        lines += _indented(f"  trial {trial.number}{context}:", trial.runs)
        if trial.refused is not None:
            lines.append(f"    infeasible: {trial.refused}")
    return lines
