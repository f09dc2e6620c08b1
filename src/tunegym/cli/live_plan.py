"""What ``tunegym dry-run`` shows of a live experiment, whose server it doesn't start."""

from __future__ import annotations

from typing import Any

from tunegym.tuning.model.scenario import IN_PROCESS, INJECTED, PROCESS, Experiment, LiveSpec, Recording, Scenario
from tunegym.tuning.model.values import spelled


def live_lines(scenario: Scenario, experiment: Experiment, spec: LiveSpec) -> list[str]:
    """The experiment in words."""
    steps = experiment.budget.agent_steps
    budget = "steps until the budget ends" if steps is None else f"{steps:,} step{'' if steps == 1 else 's'}"
    servers = "one live server" if scenario.slots == 1 else f"{scenario.slots} live servers"
    lines = [f"{experiment.name}: {experiment.agent}, {budget} of {servers}"]
    if experiment.budget.max_time_s is not None:
        lines.append(f"  ends after {experiment.budget.max_time_s:g} s")
    lines.append(f"  server: {_named(spec)}, {_lives(spec)}")
    lines += [f"  {name} = {spelled(value)}" for name, value in experiment.space.fixed.items()]
    for name, param in experiment.env_params.params.items():
        weights = f" with weights {list(param.weights)}" if param.weights else ""
        drawn = "drawn per step" if param.every_step else "drawn per episode"
        shown = ", shown to the agent" if param.encoding is not None else ""
        lines.append(f"  {name} = {param.domain.describe()}{weights}, {drawn}{shown}")
    return [*lines, f"  reward: {_reward(experiment)}", f"  recorded: {_recorded(spec.recording)}"]


def live_as_dict(experiment: Experiment, spec: LiveSpec) -> dict[str, Any]:
    """The experiment as plain data; the keys that every plan has come first."""
    return {
        "name": experiment.name,
        "agent": experiment.agent,
        "trials": experiment.most_trials,
        "combinations": None,
        "first": [],
        "live": {
            "env_class": spec.env_class or None,
            "server": spec.server,
            "step_timeout_s": spec.step_timeout_s,
            "server_restarts": spec.restarts,
            "arguments": spec.arguments,
            "env_params": {
                name: {
                    **param.domain.spec(),
                    "weights": param.weights,
                    "draw": "step" if param.every_step else "episode",
                    "encoding": param.encoding,
                }
                for name, param in experiment.env_params.params.items()
            },
            "max_time_s": experiment.budget.max_time_s,
            "agent_metrics": list(experiment.agent_metrics),
            "reward": experiment.reward,
            "record": spec.recording.spelled,
        },
    }


def _named(spec: LiveSpec) -> str:
    if spec.env_class == INJECTED:
        return "an object given in Python"
    return spec.env_class or "whatever is served there"


def _lives(spec: LiveSpec) -> str:
    patience = "" if spec.step_timeout_s is None else f", {spec.step_timeout_s:g} s to answer"
    if spec.server == IN_PROCESS:
        return "in this process"
    place = "in a process of its own" if spec.server == PROCESS else f"at {spec.server}"
    return f"{place}{patience}, {_restarted(spec.restarts)}"


def _restarted(times: int) -> str:
    if times <= 1:
        return "started again at most once" if times else "never started again"
    return f"started again up to {times} times in a row"


def _reward(experiment: Experiment) -> str:
    metrics = ", ".join(experiment.agent_metrics)
    if experiment.reward is not None:
        return f"{experiment.reward} of {metrics} in the server's info"
    return "the server's own" + (f"; {metrics} of its info are recorded" if metrics else "")


def _recorded(recording: Recording) -> str:
    if recording.kind == "episodes":
        return "the last step of every episode, and every step that failed"
    if recording.kind == "every":
        return f"every {recording.every:,}th step, and every step that failed"
    return "every step"
