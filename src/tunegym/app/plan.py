"""What ``tunegym dry-run`` shows of an experiment, without running it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tunegym.app.catalog import build_agent, build_runner, build_workload
from tunegym.tuning.envs.trials.phases import confirming_trials, planned_start
from tunegym.tuning.model.scenario import IN_PROCESS, INJECTED, PROCESS, Experiment, LiveSpec, Scenario
from tunegym.tuning.model.space import EnvParam
from tunegym.tuning.model.summary import Plan
from tunegym.tuning.model.trial import SEARCH, Observation, what_runs
from tunegym.tuning.model.values import counted, pairs, seconds, spelled, with_goal


def plan_trials(scenario: Scenario, experiment: Experiment, count: int) -> Plan:
    """The size of the search, and its first ``count`` trials as the agent would choose them without feedback."""
    combinations = experiment.space.size
    first = _first_trials(scenario, experiment, count)
    combinations = combinations if (combinations or 0) < 2**63 else None
    document = {**_document(experiment), "combinations": combinations, "first": first}
    lines = [_headline(scenario, experiment), *_goal_lines(experiment), *_budget_lines(experiment)]
    lines += [f"  {name} = {knob.describe()}" for name, knob in experiment.space.knobs.items()]
    lines += [f"  {_drawn(name, param)} per trial" for name, param in experiment.env_params.params.items()]
    if experiment.baseline is not None:
        lines.append(f"  baseline: {pairs(experiment.baseline)}")
    if experiment.confirms:
        lines.append(_confirmation(experiment))
    for trial in first:
        context = f"  [{pairs(trial['context'])}]" if trial["context"] else ""
        phase = "" if trial["phase"] == SEARCH else f" ({trial['phase']})"
        lines += _indented(f"  trial {trial['step']}{phase}{context}:", trial.get("script") or trial["runs"])
        if trial["infeasible"] is not None:
            lines.append(f"    infeasible: {trial['infeasible']}")
    return Plan(tuple(lines), document)


def _confirmation(experiment: Experiment) -> str:
    """How many trials confirm the best settings, or that there are too few for that."""
    steps = experiment.budget.agent_steps
    if steps is None:
        return f"  at most {experiment.confirm.share:.0%} of the trials confirm the best settings, on top"
    trials = confirming_trials(experiment, steps)
    if trials:
        return f"  the last {trials} trials confirm the best settings in rounds"
    contexts = len(experiment.env_params.represented())
    where = "" if contexts == 1 else f" in each of {contexts} contexts"
    return f"  nothing is confirmed: {steps} trials have no room for two rounds of two settings{where}"


def plan_live(scenario: Scenario, experiment: Experiment) -> Plan:
    """The server and the budget of a live experiment."""
    spec = experiment.live
    assert spec is not None
    params = experiment.env_params.params
    live = {
        "env_class": spec.env_class or None,
        "server": spec.server,
        "step_timeout_s": spec.step_timeout_s,
        "server_restarts": spec.restarts,
        "arguments": spec.arguments,
        "env_params": {name: _param(param) for name, param in params.items()},
        "max_time_s": experiment.budget.max_time_s,
        "agent_metrics": list(experiment.agent_metrics),
        "reward": experiment.reward,
        "record": spec.recording.spelled,
    }
    document = {**_document(experiment), "combinations": None, "first": [], "live": live}
    steps = experiment.budget.agent_steps
    budget = "steps until the budget ends" if steps is None else counted(steps, "step")
    servers = "one live server" if scenario.slots == 1 else counted(scenario.slots, "live server")
    lines = [f"{experiment.name}: {experiment.agent}, {budget} of {servers}", *_budget_lines(experiment)]
    named = "an object given in Python" if spec.env_class == INJECTED else spec.env_class
    lines.append(f"  server: {named or 'the class that is served there'}, {_place(spec)}")
    lines += [f"  {name} = {spelled(value)}" for name, value in experiment.space.fixed.items()]
    for name, param in params.items():
        when = "per step" if param.every_step else "per episode"
        shown = ", shown to the agent" if param.encoding is not None else ""
        lines.append(f"  {_drawn(name, param)} {when}{shown}")
    metrics = ", ".join(experiment.agent_metrics)
    own = "the server's own" + (f"; {metrics} of its info are recorded" if metrics else "")
    reward = own if experiment.reward is None else f"{experiment.reward} of {metrics} in the server's info"
    lines += [f"  reward: {reward}", f"  record = {spelled(spec.recording.spelled)}"]
    return Plan(tuple(lines), document)


def _document(experiment: Experiment) -> dict[str, Any]:
    counts = {"name": experiment.name, "agent": experiment.agent, "trials": experiment.most_trials}
    return {**counts, "goals": dict(experiment.goals)}


def _param(param: EnvParam) -> dict[str, Any]:
    draw = "step" if param.every_step else "episode"
    return {**param.domain.spec(), "weights": param.weights, "draw": draw, "encoding": param.encoding}


def _first_trials(scenario: Scenario, experiment: Experiment, count: int) -> list[dict[str, Any]]:
    workload = build_workload(scenario, experiment)
    start = [] if experiment.agent is None else planned_start(experiment)
    env = SimpleNamespace(  # an ``Env`` that shows its space and runs nothing
        experiment=experiment,
        folder=Path(experiment.name),
        space=experiment.space,
        objectives=experiment.objectives,
        slots=1,
        first=len(start) + 1,
        history=tuple,
        context=experiment.env_params.context,
        exhausted=lambda _lane=0: "this is a dry run",
    )
    agent = build_agent(scenario, experiment, env)
    select, plan_context = getattr(agent, "select_action", None), getattr(agent, "plan_context", lambda _: None)
    scripted = getattr(build_runner(scenario, "dry-run"), "script", None)
    first: list[dict[str, Any]] = []
    for number in range(1, min(len(start) + count, experiment.most_trials or len(start) + count) + 1):
        phase, action, context = start[number - 1] if number <= len(start) else (SEARCH, None, plan_context(number))
        context = experiment.env_params.context(number) if context is None else context
        if action is None and select is not None:
            action = select(Observation(number, context))
        if action is None:
            break
        action = experiment.space.accept(action)
        parameters = experiment.parameters(action, context)
        refused = next((why for one in experiment.constraints if (why := one.refuse(parameters))), None)
        runs = what_runs(job := workload.plan(number, 1, parameters, str(Path("trials") / f"{number:06d}")))
        script = {"script": scripted(job)} if scripted else {}
        first.append(
            {
                "step": number,
                "phase": phase,
                "action": action,
                "context": context,
                "runs": runs,
                "infeasible": refused,
                **script,
            }
        )
    return first


def _headline(scenario: Scenario, experiment: Experiment) -> str:
    if experiment.agent is None:
        return f"{experiment.name}: a plain job, run once on {scenario.runner}"
    total, combinations = experiment.search_trials, experiment.space.size
    trials = counted(total, "trial") if total is not None else "trials until the budget ends"
    over = counted(combinations, "combination") if combinations is not None else "a continuous space"
    width = f"{scenario.slots} at a time on {scenario.runner}, {_samples(experiment)} each"
    return f"{experiment.name}: {experiment.agent}, {trials} over {over}, {width}"


def _samples(experiment: Experiment) -> str:
    repeats = "1 or 2 samples" if experiment.repeats == "auto" else counted(experiment.repeats, "sample")
    return f"{repeats} after {experiment.warmup} to warm up" if experiment.warmup else repeats


def _budget_lines(experiment: Experiment) -> list[str]:
    budget = experiment.budget
    lines = [] if budget.max_time_s is None else [f"  ends after {seconds(budget.max_time_s)}"]
    if budget.stop_after_no_improvement is not None:
        lines.append(f"  ends after {counted(budget.stop_after_no_improvement, 'trial')} without improvement")
    return lines


def _goal_lines(experiment: Experiment) -> list[str]:
    """What is made better, and which way; nothing for a plain job."""
    if experiment.agent is None:
        return []
    own = experiment.reward not in (None, "identity", "negative")
    judged = [one.metric for one in experiment.objectives] or experiment.agent_metrics[: None if own else 1]
    metrics = ", ".join(with_goal(metric, experiment.goals) for metric in judged)
    return [f"  goal: {f'reward (max), which is {experiment.reward} of {metrics}' if own else metrics}"]


def _drawn(name: str, param: EnvParam) -> str:
    weights = f" with weights {list(param.weights)}" if param.weights else ""
    return f"{name} = {param.domain.describe()}{weights}, drawn"


def _indented(head: str, text: str) -> list[str]:
    """A command behind its head, or below it when it has several lines."""
    if "\n" not in text.strip():
        return [f"{head} {text.strip()}"]
    return [head, textwrap.indent(textwrap.dedent(text).strip("\n "), "    ")]


def _place(spec: LiveSpec) -> str:
    if spec.server == IN_PROCESS:
        return "in this process"
    place = "in its own process" if spec.server == PROCESS else f"at {spec.server}"
    patience = "" if spec.step_timeout_s is None else f", {seconds(spec.step_timeout_s)} to answer"
    restarts = f"up to {counted(spec.restarts, 'restart')} in a row" if spec.restarts else "never restarted"
    return f"{place}{patience}, {restarts}"
