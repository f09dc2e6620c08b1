"""What would run, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunegym.app.parts import build_agent, build_constraints, build_workload
from tunegym.tuning.model.job import CommandJob, Job
from tunegym.tuning.model.objective import Objective
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Observation, OpenTrial, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.ports import Constraint


@dataclass(frozen=True)
class PlannedTrial:
    """One trial as it would be: what is chosen, what is drawn, what would run."""

    number: int
    action: Action
    context: Context
    runs: str
    refused: str | None = None


@dataclass(frozen=True)
class ExperimentPlan:
    """What an experiment would do."""

    experiment: Experiment
    trials: int | None
    combinations: int | None
    first: tuple[PlannedTrial, ...]


def plan(scenario: Scenario, experiment: Experiment, count: int) -> ExperimentPlan:
    """The experiment's size and its first ``count`` trials, as an agent without feedback would choose them.

    What a live server would be asked nobody knows without it, and it is not started: no trials are planned.
    """
    total = experiment.most_trials
    if experiment.live is not None:
        return ExperimentPlan(experiment, total, None, ())
    workload = build_workload(scenario, experiment)
    constraints = build_constraints(scenario, experiment)
    agent = build_agent(scenario, experiment, _Unmeasured(experiment))
    select = getattr(agent, "select_action", None)
    first: list[PlannedTrial] = []
    for number in range(1, min(count, total or count) + 1):
        context = experiment.env_params.context(number)
        action = select(Observation(number, context)) if select is not None else None
        if action is None:
            break
        action = experiment.space.accept(action)
        parameters = experiment.parameters(action, context)
        job = workload.plan(number, 1, parameters, str(Path("trials") / f"{number:06d}"))
        first.append(PlannedTrial(number, action, context, what_runs(job), _refused(constraints, parameters)))
    return ExperimentPlan(experiment, total, experiment.space.size, tuple(first))


def what_runs(job: Job) -> str:
    """A job as one reads it: the command, or the call."""
    if isinstance(job, CommandJob):
        return job.command
    arguments = [f"{name}={value!r}" for name, value in job.arguments.items()]
    return f"{job.target}({', '.join([*arguments, *(['report=report'] if job.reports else [])])})"


def _refused(constraints: list[Constraint], parameters: dict[str, Any]) -> str | None:
    return next((reason for one in constraints if (reason := one.refuse(parameters))), None)


class _Unmeasured:
    """An ``Env`` that shows its space and runs nothing."""

    slots = 1
    in_flight = 0

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.folder = Path(experiment.name)

    @property
    def space(self) -> Space:
        return self.experiment.space

    @property
    def objectives(self) -> Sequence[Objective]:
        return self.experiment.objectives

    def exhausted(self, lane: int = 0) -> str | None:
        del lane
        return "this is a dry run"

    def observe(self, lane: int = 0) -> Observation:
        return Observation(lane + 1, self.context(lane + 1))

    def begin(self, action: Action, lane: int = 0) -> OpenTrial:
        return OpenTrial(lane + 1, self.context(lane + 1), action)

    def next_finished(self) -> tuple[int, Trial] | None:
        return None

    def history(self) -> tuple[Trial, ...]:
        return ()

    def context(self, number: int) -> Context:
        return self.experiment.env_params.context(number)
