"""The settings to use: over all contexts, or in the one that a user is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunegym.core.errors import ConfigError, Problem, StoreError
from tunegym.core.spelling import closest
from tunegym.tuning.model.values import Action, Context, exact_key, spelled
from tunegym.tuning.reports.asking import asked, pairs
from tunegym.tuning.reports.best import BEST, Setting
from tunegym.tuning.reports.caveats import Field, about_limits, about_pareto, exceeded
from tunegym.tuning.reports.certainty import reward_metric
from tunegym.tuning.reports.choices import Chosen, SavedPolicy, saved_policy
from tunegym.tuning.reports.evidence import Evidence, better_measured, evidence_of, told
from tunegym.tuning.reports.live import LOADERS
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.nearby import Within, domains_of, trials_at
from tunegym.tuning.reports.results import ExperimentResults, Results, load
from tunegym.tuning.stores import reader

FROM_TRIALS = "trials"
FROM_POLICY = "policy"
"""Where a recommendation comes from: measurements of just these settings, or what the agent's policy chooses."""

_FIRST_METRIC = (None, "identity", "negative", "inverse")
"""Rewards of one metric: the first that the agent sees."""


@dataclass(frozen=True)
class Recommendation:
    """The settings to use.

    Attributes:
        action: one value for every knob, by address.
        context: what was asked for; empty if nothing was.
        source: where it comes from: ``trials``, or ``policy``.
        measured: how many samples of these settings it rests on, in that context; 0 only for a policy's choice.
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
        StoreError: there are no results, or nothing was measured, or it is a live experiment, which has a policy and no
            settings; says where that is and how it is used.
    """
    results = load(folder)
    chosen = _chosen(results, experiment, Path(folder))
    return recommendation(chosen, context or {}, results.declared(chosen.name))


def recommendation(
    results: ExperimentResults, context: Mapping[str, Any], declared: Mapping[str, Any]
) -> Recommendation:
    """As ``recommend``, for one experiment; ``declared`` is what the scenario says of it."""
    if isinstance(results, LiveResults):
        raise _only_a_policy(results)
    head = results.journal.head
    wanted = asked(context, head) if head is not None else {}
    if results.best is None:
        raise StoreError(
            f"{results.name}: no trial was measured, so there is nothing to recommend",
            hint="see why with: tunegym status, or the reasons in journal.jsonl",
        )
    found = _from_policy(results, wanted, declared)
    return found if isinstance(found, Recommendation) else _from_trials(results, wanted, declared, found)


def _only_a_policy(results: LiveResults) -> StoreError:
    """There are no settings, but perhaps a policy."""
    agent = (results.past.head or {}).get("agent")
    what = f"{results.name} is a live experiment: it has no settings to recommend"
    place = results.policy
    if place is None:
        hint = "an agent that learns, such as ppo, leaves one in policy/"
        return StoreError(f"{what}, and {agent or 'its agent'} has left no policy", hint=hint)
    loader = LOADERS.get(agent or "")
    use = f"{loader}.load({str(place)!r}) of stable_baselines3, then predict(observation)" if loader else str(place)
    return StoreError(f"{what}, but a policy: {place}", hint=f"use it with {use}")


def _from_trials(
    results: ExperimentResults, wanted: Context, declared: Mapping[str, Any], why: str | None
) -> Recommendation:
    """The best that was measured; ``why`` it is not what a policy chooses, where there is one."""
    metrics = rewarded(results, declared)
    there, note = _at(results, wanted) if wanted else (results, None)
    setting = there.best
    assert setting is not None
    notes = [why, note, *_caveats(there, setting, metrics)]
    return _recommendation(results, setting, wanted, FROM_TRIALS, metrics, notes)


def _recommendation(
    results: ExperimentResults,
    setting: Setting,
    wanted: Context,
    source: str,
    metrics: list[str],
    notes: list[str | None],
) -> Recommendation:
    mean, spread = setting.metrics(), setting.spread()
    return Recommendation(
        action=setting.action,
        context=wanted,
        source=source,
        measured=len(setting.samples),
        mean={name: mean[name] for name in metrics if name in mean},
        spread={name: spread[name] for name in metrics if name in spread},
        violation=setting.violation,
        note="; ".join(note for note in notes if note is not None) or None,
        failed=setting.failed,
        experiment=results.name,
        setting=setting,
    )


def _partly(policy: SavedPolicy, wanted: Context, missing: list[str]) -> str:
    """Why a policy doesn't answer where a part of the context is left open, and what it would say most often."""
    why = f"this is from the trials: the policy answers for a whole context, so give {' and '.join(missing)} too"
    mostly = policy.mostly(wanted)
    if mostly is None:
        return why
    action, count, total = mostly
    return f"{why}; in {count} of {total} such contexts it chooses {pairs(action)}"


def rewarded(results: ExperimentResults, declared: Mapping[str, Any]) -> list[str]:
    """The metrics that the reward is made of; all that the agent sees where only the reward itself knows."""
    if results.objectives:
        return [objective.metric for objective in results.objectives]
    metrics: list[str] = list(declared.get("agent_metrics", []))
    return metrics[:1] if declared.get("agent_reward_function") in _FIRST_METRIC else metrics


def _caveats(results: ExperimentResults, setting: Setting, metrics: list[str]) -> list[str]:
    """What one should know about the best of ``results``."""
    within = isinstance(results, Within)
    told = [
        about_limits(setting, results.objectives),
        about_pareto(results.pareto, None if within else BEST),
    ]
    if within:  # over all, best.toml and the report tell of the contexts
        field = Field(results, setting, results.objectives, metrics)
        told += [field.better_looking(), field.not_everywhere()]
    return [one for one in told if one is not None]


def _at(results: ExperimentResults, wanted: Context) -> tuple[ExperimentResults, str | None]:
    """The trials where the context is as wanted, and what to say about them; all of them if it never was."""
    there = trials_at(results, wanted)
    if there.best is None:
        return results, f"{pairs(wanted)} was never measured: this is the best over all contexts"
    return there, f"from {there.near}" if there.near is not None else None


# what a policy chooses ------------------------------------------------------------------------------------


def _from_policy(
    results: ExperimentResults, wanted: Context, declared: Mapping[str, Any]
) -> Recommendation | str | None:
    """What the experiment's policy chooses; why it is not asked; None if there is none."""
    try:
        policy = saved_policy(results)
    except StoreError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return f"this is from the trials, since the policy can't be used: {error.message}{hint}"
    if policy is None:
        return None
    domains = domains_of(results)
    missing = [name for name in domains if name not in wanted]
    if missing:
        return _partly(policy, wanted, missing)
    chosen = policy.at(wanted, domains)
    if chosen is None:
        return f"this is from the trials: the policy was never asked at {pairs(wanted)}"
    there = trials_at(results, wanted) if wanted else results
    evidence = evidence_of(chosen.action, there, results.objectives)
    if evidence.hopeless:
        times = "the one time it was" if evidence.failed == 1 else f"all {evidence.failed} times it was"
        return (
            f"this is from the trials: the policy chooses {pairs(chosen.action)}, which failed {times} tried"
            f"{' there' if wanted else ''}"
        )
    notes = [
        _place(chosen, wanted),
        _age(results, policy.trials),
        *_what_trials_say(results, there, evidence, declared),
    ]
    metrics = rewarded(results, declared)
    return _recommendation(results, evidence.setting, wanted, FROM_POLICY, metrics, notes)


def _place(chosen: Chosen, wanted: Context) -> str | None:
    """Where the policy was asked, if that is not where the user is."""
    if exact_key(chosen.context) == exact_key(wanted):
        return None
    return f"the policy was asked at {pairs(chosen.context)}, which is nearest"


def _age(results: ExperimentResults, learned: int) -> str | None:
    """That there are trials which the policy has not seen."""
    made = sum(trial.status != "cancelled" for trial in results)
    return f"the policy was saved after {learned} of {made} trials" if learned < made else None


def _what_trials_say(
    results: ExperimentResults, there: ExperimentResults, evidence: Evidence, declared: Mapping[str, Any]
) -> list[str | None]:
    """What was measured of the choice and beside it."""
    head = results.journal.head or {}
    metric = reward_metric(head.get("metrics", []), results.objectives, declared)
    setting, best = evidence.setting, there.best
    near = f"measurements are {there.near}" if isinstance(there, Within) and there.near is not None else None
    if setting.samples and best is not None:
        limits = exceeded(setting, results.objectives)
        over = f"it exceeds the limits{limits}" if setting.violation else None
        return [near, over, better_measured(there, setting, best, metric)]
    elsewhere = evidence_of(setting.action, results, results.objectives)
    notes: list[str | None] = [near]
    if elsewhere.setting.samples:
        notes.append(f"in other contexts these settings were measured: {told(elsewhere.setting, metric)}")
    elif elsewhere.failed:
        times = "once" if elsewhere.failed == 1 else f"{elsewhere.failed} times"
        notes.append(f"in other contexts these settings failed {times}, and were never measured")
    if best is not None:
        notes.append(f"the best that was measured there is {pairs(best.action)} ({told(best, metric)})")
    return notes


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
