"""The parts that an experiment is made of, by what its scenario says."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from tunegym.app.catalog import Catalog
from tunegym.core.references import callable_by_name, is_reference, resolve
from tunegym.tuning.agents.base import driver
from tunegym.tuning.agents.once import RunOnce
from tunegym.tuning.model import expression
from tunegym.tuning.model.expression import ExpressionConstraint, FunctionConstraint
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment, Scenario
from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import Agent, Constraint, Pruner, Reward, Workload
from tunegym.tuning.rewards import ByName, FromObjectives
from tunegym.tuning.stores.records import Head, Session


def build_agent(scenario: Scenario, experiment: Experiment, env: Any) -> Agent:
    """The agent that drives ``experiment`` through ``env``; a plain job drives itself, once."""
    if experiment.agent is None:
        return RunOnce(env)
    named = Catalog().at(scenario.scenario_dir).get("agents", experiment.agent)
    kind = "trials" if experiment.live is None else "live"
    agent = driver(named, kind, [str(scenario.scenario_dir)])(env, experiment.agent_config, scenario.seed)
    source = getattr(experiment.agent_config, "warm_start", None)
    if source is not None:
        from tunegym.app.warming import warm_trials

        agent.warm_up(warm_trials(scenario.scenario_dir / source, experiment, build_reward(scenario, experiment)))
    return agent


def build_workload(scenario: Scenario, experiment: Experiment) -> Workload:
    """The workload by its name."""
    factory = Catalog().at(scenario.scenario_dir).get("workloads", experiment.workload)
    return factory(experiment, scenario.scenario_dir)


def build_pruner(scenario: Scenario, experiment: Experiment) -> Callable[[], Pruner] | None:
    """What makes the experiment's pruners, one for each context; None if it has none."""
    spec = experiment.pruner
    if spec is None:
        return None
    factory = Catalog().at(scenario.scenario_dir).get("pruners", spec.kind)
    return partial(factory, factory.Config(**spec.options), scenario.seed)


def build_reward(scenario: Scenario, experiment: Experiment) -> Reward:
    """The reward by its name, or a user's own function of the metrics."""
    if not experiment.agent_metrics:
        return _no_reward
    if experiment.reward is None:
        return FromObjectives(experiment.objectives)
    if is_reference(experiment.reward):
        function = resolve(experiment.reward, (str(scenario.scenario_dir),))
        return ByName(experiment.reward, callable_by_name(function, metric_names(experiment)))
    return Catalog().at(scenario.scenario_dir).get("rewards", experiment.reward)(experiment.agent_metrics)


def _no_reward(metrics: Metrics) -> float:
    """A plain job without metrics has nothing to score."""
    del metrics
    return 0.0


def metric_names(experiment: Experiment) -> list[str]:
    """Every metric that a measurement of this experiment is known to give."""
    named = [*experiment.agent_metrics, *(spec.name for spec in experiment.metrics), *BUILTIN_METRICS]
    return list(dict.fromkeys(named))


def build_constraints(scenario: Scenario, experiment: Experiment) -> list[Constraint]:
    """The constraints, each an expression or a user's own function."""
    names = experiment.parameter_names()
    constraints: list[Constraint] = []
    for text in experiment.constraints:
        if is_reference(text):
            function = resolve(text, (str(scenario.scenario_dir),))
            constraints.append(FunctionConstraint(text, callable_by_name(function, names)))
        else:
            constraints.append(ExpressionConstraint(text, expression.parse(text, names)))
    return constraints


def head_of(scenario: Scenario, experiment: Experiment) -> Head:
    """What the journal belongs to."""
    declared = [spec.name for spec in experiment.metrics]
    return Head(
        experiment=experiment.name,
        run=uuid.uuid4().hex,
        seed=scenario.seed,
        agent=experiment.agent,
        knobs=experiment.space.spec(),
        env_params={
            name: {**param.domain.spec(), "weights": param.weights, **({"draw": "step"} if param.every_step else {})}
            for name, param in experiment.env_params.params.items()
        },
        metrics=list(dict.fromkeys([*experiment.agent_metrics, *declared])),
        repeats=experiment.repeats,
        objectives=[objective.as_dict() for objective in experiment.objectives],
        live={} if experiment.live is None else {"record": experiment.live.recording.spelled},
    )


def session_of(scenario: Scenario, experiment: Experiment, workload: Workload) -> Session:
    """What this driver is about to do."""
    return Session(
        fingerprint=workload.fingerprint(),
        parts=workload.fingerprint_parts(),
        slots=scenario.slots,
        agent_steps=experiment.budget.agent_steps,
    )
