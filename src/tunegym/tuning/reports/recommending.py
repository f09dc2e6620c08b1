"""The settings to use: over all contexts, or in the one that a user is in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunegym.core.errors import ConfigError, Problem, StoreError
from tunegym.core.spelling import closest
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, spelled
from tunegym.tuning.reports.asking import asked, domain, matches, pairs
from tunegym.tuning.reports.best import BEST, Setting
from tunegym.tuning.reports.caveats import Field, about_limits, about_pareto
from tunegym.tuning.reports.results import ExperimentResults, Results, load
from tunegym.tuning.stores import reader

FROM_TRIALS = "trials"
"""Where a recommendation comes from: measurements of just these settings."""

NEAR_SHARE = 0.25
NEAR_LEAST = 10
"""Of a range's draws, the nearest quarter is near, and at least this many measured ones."""

_FIRST_METRIC = (None, "identity", "negative", "inverse")
"""Rewards of one metric: the first that the agent sees."""


@dataclass(frozen=True)
class Recommendation:
    """The settings to use.

    Attributes:
        action: one value for every knob, by address.
        context: what was asked for; empty if nothing was.
        source: where it comes from: ``trials``.
        measured: how many samples of these settings it rests on.
        mean: of the reward's metrics over these samples, by name.
        spread: their sample standard deviations; empty with fewer than two samples.
        violation: by how much it exceeds the objectives' limits, as a share of them; 0 if it keeps them all.
        note: what one should know about it, such as that the context was never measured; None if nothing.
        failed: how many trials of these settings gave no measurement.
        experiment: its name.
        setting: everything that was recorded about it.
    """

    action: Action
    context: Context
    source: str
    measured: int
    mean: Mapping[str, float]
    spread: Mapping[str, float]
    violation: float
    note: str | None
    failed: int
    experiment: str
    setting: Setting = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``tunegym recommend --json`` prints it."""
        return {
            "action": dict(self.action),
            "context": dict(self.context),
            "source": self.source,
            "measured": self.measured,
            "mean": dict(self.mean),
            "spread": dict(self.spread),
            "failed": self.failed,
            "violation": self.violation,
            "note": self.note,
        }


def recommend(
    folder: str | Path, context: Mapping[str, Any] | None = None, experiment: str | None = None
) -> Recommendation:
    """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

    Args:
        folder: a run's results.
        context: values of env_params by address.
        experiment: which one; may be left out when there is only one.

    Raises:
        ConfigError: no such experiment, or a context that the run could not have drawn.
        StoreError: there are no results, or nothing was measured.
    """
    results = load(folder)
    chosen = _chosen(results, experiment, Path(folder))
    return recommendation(chosen, context or {}, rewarded(chosen, results.declared(chosen.name)))


def recommendation(results: ExperimentResults, context: Mapping[str, Any], metrics: list[str]) -> Recommendation:
    """As ``recommend``, for one experiment; ``metrics`` are those that ``mean`` and ``spread`` tell of."""
    head = results.journal.head
    wanted = asked(context, head) if head is not None else {}
    there, note = _at(results, wanted) if wanted else (results, None)
    setting = there.best
    if setting is None:
        raise StoreError(
            f"{results.name}: no trial was measured, so there is nothing to recommend",
            hint="see why with: tunegym status, or the reasons in journal.jsonl",
        )
    mean, spread = setting.metrics(), setting.spread()
    return Recommendation(
        action=setting.action,
        context=wanted,
        source=FROM_TRIALS,
        measured=len(setting.samples),
        mean={name: mean[name] for name in metrics if name in mean},
        spread={name: spread[name] for name in metrics if name in spread},
        violation=setting.violation,
        note="; ".join([*([note] if note is not None else []), *_caveats(there, setting, metrics)]) or None,
        failed=setting.failed,
        experiment=results.name,
        setting=setting,
    )


def rewarded(results: ExperimentResults, declared: Mapping[str, Any]) -> list[str]:
    """The metrics that the reward is made of; all that the agent sees where only the reward itself knows."""
    if results.objectives:
        return [objective.metric for objective in results.objectives]
    metrics: list[str] = list(declared.get("agent_metrics", []))
    return metrics[:1] if declared.get("agent_reward_function") in _FIRST_METRIC else metrics


def _caveats(results: ExperimentResults, setting: Setting, metrics: list[str]) -> list[str]:
    """What one should know about the best of ``results``."""
    within = isinstance(results, _Within)
    told = [
        about_limits(setting, results.objectives),
        about_pareto(results.pareto, None if within else BEST),
    ]
    if within:  # over all, best.toml and the report tell of the contexts
        field = Field(results, setting, results.objectives, metrics)
        told += [field.better_looking(), field.not_everywhere()]
    return [one for one in told if one is not None]


# which trials count ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Within(ExperimentResults):
    """The trials of an experiment that count in a context."""

    counts: Callable[[Trial], bool]

    def __iter__(self) -> Iterator[Trial]:
        return (trial for trial in super().__iter__() if self.counts(trial))


def _at(results: ExperimentResults, wanted: Context) -> tuple[ExperimentResults, str | None]:
    """The trials where the context is as wanted, and what to say about them; all of them if it never was."""
    domains = {name: domain(spec) for name, spec in (results.journal.head or {})["env_params"].items()}
    ranges = {name: knob for name, knob in domains.items() if name in wanted and isinstance(knob, Range)}
    exact = {name: value for name, value in wanted.items() if name not in ranges}
    never = f"{pairs(wanted)} was never measured: this is the best over all contexts"

    def counts(trial: Trial) -> bool:
        return matches(trial.context, exact)

    if not ranges:
        there = _Within(results.name, results.folder, counts)
        return (there, None) if there.best is not None else (results, never)
    away = _distance(ranges, wanted)
    near = sorted(away(trial.context) for trial in results if _own(trial) and counts(trial))
    if not near:
        return results, never
    taken = max(math.ceil(NEAR_SHARE * len(near)), min(NEAR_LEAST, len(near)))
    reach = near[taken - 1]
    taken = sum(distance <= reach for distance in near)
    note = f"from the {taken} of {len(near)} measured draws that are nearest to {pairs(wanted)}"
    return _Within(results.name, results.folder, lambda trial: counts(trial) and away(trial.context) <= reach), note


def _own(trial: Trial) -> bool:
    return trial.measured and trial.cached_from is None


def _distance(ranges: Mapping[str, Range], wanted: Context) -> Callable[[Context], float]:
    """How far a context is from the wanted one, each range as wide as 1 on its own scale."""
    target = {name: knob.position(float(wanted[name])) for name, knob in ranges.items()}

    def away(context: Context) -> float:
        return math.hypot(*(knob.position(float(context[name])) - target[name] for name, knob in ranges.items()))

    return away


def _chosen(results: Results, name: str | None, folder: Path) -> ExperimentResults:
    """The experiment that is asked about: by name, by its own folder, or the only one."""
    experiments = results.experiments
    if name is None and len(experiments) == 1:
        return next(iter(experiments.values()))
    if name is None and folder.name in experiments and (folder / reader.JOURNAL).is_file():
        return experiments[folder.name]
    if name is not None and name in experiments:
        return experiments[name]
    match = closest(name, experiments) if name is not None else None
    what = "there is no such experiment" if name is not None else "which experiment? the run has several"
    hint = f"did you mean {match}?" if match is not None else "give one of these"
    found = spelled(name) if name is not None else None
    raise ConfigError("--experiment", [Problem("", what, found, ", ".join(experiments), hint)])
