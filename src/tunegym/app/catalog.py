"""Names to classes (``Catalog``), and classes to the objects of one experiment; ``app.kinds`` puts them together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import callable_by_name, is_reference, resolve
from tunegym.core.text import error_text
from tunegym.tuning.agents.base import RunOnce, driver
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment, Scenario
from tunegym.tuning.ports import Agent, ClusterRunner, Pruner, Reward, Runner, Workload
from tunegym.tuning.rewards import FromObjectives
from tunegym.tuning.stores.records import SessionRecord

BUILT_IN: dict[str, dict[str, str]] = {
    "agents": {
        "bayes": "tunegym.tuning.agents.bayes:Bayes",
        "grid_search": "tunegym.tuning.agents.search:GridSearch",
        "random_search": "tunegym.tuning.agents.search:RandomSearch",
        "optuna": "tunegym.tuning.agents.optuna:OptunaAgent",
        "ppo": "tunegym.tuning.agents.sb3.agents:Ppo",
        "a2c": "tunegym.tuning.agents.sb3.agents:A2c",
        "dqn": "tunegym.tuning.agents.sb3.agents:Dqn",
        "sac": "tunegym.tuning.agents.sb3.agents:Sac",
        "rllib_ppo": "tunegym.tuning.agents.rllib.agents:RllibPpo",
        "rllib_dqn": "tunegym.tuning.agents.rllib.agents:RllibDqn",
        "async_ppo": "tunegym.asyncrl.agents:AsyncPpo",
    },
    "workloads": {
        "command": "tunegym.tuning.workloads.command:CommandWorkload",
        "python": "tunegym.tuning.workloads.python:PythonWorkload",
        "live": "tunegym.tuning.workloads.live:LiveWorkload",
    },
    "runners": {
        "local": "tunegym.tuning.runners.local:LocalRunner",
        "slurm": "tunegym.tuning.runners.slurm:SlurmRunner",
        "ray": "tunegym.tuning.runners.ray:RayRunner",
    },
    "rewards": {
        "identity": "tunegym.tuning.rewards:identity",
        "negative": "tunegym.tuning.rewards:negative",
        "inverse": "tunegym.tuning.rewards:inverse",
    },
    "encodings": {
        "categorical": "tunegym.tuning.encodings:Categorical",
        "onehot": "tunegym.tuning.encodings:OneHot",
        "ordinal": "tunegym.tuning.encodings:Ordinal",
        "minmax": "tunegym.tuning.encodings:MinMax",
        "log": "tunegym.tuning.encodings:Log",
    },
    "pruners": {
        "median": "tunegym.tuning.pruners.median:MedianPruner",
        "hyperband": "tunegym.tuning.pruners.hyperband:HyperbandPruner",
    },
}
"""This package's own names. Classes are imported when they are used."""


class Catalog:
    """Finds concrete classes by kind and name; references are looked for in ``paths`` first.

    A name is one of this package's, one that an installed package offers under the entry point group
    ``tunegym.<kind>``, or a reference ``package.module:Name``. Ours win over an entry point of the same name.
    """

    def __init__(self, paths: tuple[str, ...] = ()) -> None:
        self._paths = paths

    def at(self, folder: Path) -> Catalog:
        """A catalog that looks for references in ``folder`` first."""
        return Catalog((str(folder),))

    def kinds(self) -> list[str]:
        """The kinds of things that can be chosen."""
        return list(BUILT_IN)

    def names(self, kind: str) -> list[str]:
        """Every name of a kind, ours first."""
        ours = BUILT_IN[kind]
        return [*ours, *sorted(name for name in self._plugins(kind) if name not in ours)]

    def get(self, kind: str, name: str) -> Any:
        """The class (or factory) behind a name or reference.

        Raises:
            KeyError: no such name.
            UnresolvedReferenceError: it can't be imported.
        """
        if name in BUILT_IN[kind]:
            return resolve(BUILT_IN[kind][name])
        if is_reference(name):
            return resolve(name, self._paths)
        plugin = self._plugins(kind)[name]
        try:
            return resolve(plugin.value)
        except Exception as error:  # of its module, or of one that this imports on demand
            package, why = getattr(plugin.dist, "name", "?"), getattr(error, "message", error_text(error))
            what = f"the plugin {name!r} of the package {package} can't be used: {why}"
            raise UnresolvedReferenceError(what, hint=f"update or uninstall {package}, or fix it") from error

    def where(self, kind: str, name: str) -> str:
        """The reference behind a name, without importing it."""
        return BUILT_IN[kind].get(name) or self._plugins(kind)[name].value

    @staticmethod
    def _plugins(kind: str) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"tunegym.{kind}")}


def build_workload(scenario: Scenario, experiment: Experiment) -> Workload:
    """The experiment's workload."""
    factory = Catalog().at(scenario.scenario_dir).get("workloads", experiment.workload)
    return factory(experiment, scenario.scenario_dir)


def build_agent(scenario: Scenario, experiment: Experiment, env: Any) -> Agent:
    """The agent that drives ``experiment`` through ``env``; a plain job is driven by an agent that runs it once."""
    if experiment.agent is None:
        return RunOnce(env)
    named = Catalog().at(scenario.scenario_dir).get("agents", experiment.agent)
    factory = driver(named, experiment.kind, [str(scenario.scenario_dir)])
    agent = factory(env, experiment.agent_config, scenario.seed)
    source = getattr(experiment.agent_config, "warm_start", None)
    if source is not None:
        from tunegym.app.warm_start import warm_trials

        agent.warm_up(warm_trials(scenario.scenario_dir / source, experiment, build_reward(scenario, experiment)))
    return agent


def build_runner(scenario: Scenario, token: str) -> Runner | ClusterRunner:
    """The runner of the scenario's jobs; ``token`` names the run."""
    factory = Catalog().at(scenario.scenario_dir).get("runners", scenario.runner)
    if not hasattr(factory, "Config"):
        return factory(token=token, slots=scenario.slots)
    return factory(token=token, slots=scenario.slots, config=scenario.runner_config, scenario_dir=scenario.scenario_dir)


def build_pruner(scenario: Scenario, experiment: Experiment) -> Callable[[], Pruner] | None:
    """Makes the experiment's pruners, one for each context; None if it has none."""
    spec = experiment.pruner
    if spec is None:
        return None
    factory = Catalog().at(scenario.scenario_dir).get("pruners", spec.kind)
    return partial(factory, factory.Config(**spec.options), scenario.seed)


def build_reward(scenario: Scenario, experiment: Experiment) -> Reward:
    """The reward by its name, from the objectives, or a user's function of the metrics."""
    if not experiment.agent_metrics:
        return lambda metrics: 0.0  # noqa: ARG005 - a plain job without metrics has nothing to score
    if experiment.reward is None:
        return FromObjectives(experiment.objectives)
    if is_reference(experiment.reward):
        function = resolve(experiment.reward, (str(scenario.scenario_dir),))
        named = [*experiment.agent_metrics, *(spec.name for spec in experiment.metrics), *BUILTIN_METRICS]
        return callable_by_name(function, list(dict.fromkeys(named)))
    return Catalog().at(scenario.scenario_dir).get("rewards", experiment.reward)(experiment.agent_metrics)


def build_session(scenario: Scenario, experiment: Experiment, workload: Workload) -> SessionRecord:
    """The journal's record of this session: what it measures, and how wide."""
    return SessionRecord(
        fingerprint=workload.fingerprint(),
        parts=workload.fingerprint_parts(),
        slots=scenario.slots,
        runner=scenario.runner,
        agent_steps=experiment.budget.agent_steps,
    )
