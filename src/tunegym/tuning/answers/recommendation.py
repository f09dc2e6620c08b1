"""The settings to use: over all contexts, or in the one that a user is in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.answers.answer import RewardMetric, Verdict, answer_at, reward_metric
from tunegym.tuning.answers.contexts import checked_context, distance, domains_of, trials_at
from tunegym.tuning.answers.intervals import SLACK, pooled
from tunegym.tuning.answers.ranking import Measurements, Setting, best_among, samples_of
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.space import Knob
from tunegym.tuning.model.trial import CONFIRM, SEARCH, Trial
from tunegym.tuning.model.values import Action, Context, counted, exact_key, number, spelled_pairs

CONFIDENCE = 0.95
FEWEST = 2
"""Measurements without which nothing is recommended."""
FROM_TRIALS = "trials"
FROM_POLICY = "policy"
"""The source of a recommendation: measurements of just these settings, or the choice of the agent's policy."""


@dataclass(frozen=True)
class Recommendation:
    """The settings to use."""

    action: Action  # one value for every knob, by address
    context: Context  # the one that was asked for; empty if none was
    source: str  # where it comes from: ``trials``, or ``policy``
    measured: int  # how many samples of these settings it rests on, in that context; 0 only for a policy's choice
    mean: Mapping[str, float]  # of the reward's metrics over these samples, by name
    goals: Mapping[str, str]  # ``min`` or ``max`` by metric, where a direction is known
    spread: Mapping[str, float]  # their sample standard deviations; empty with fewer than two samples
    violation: float  # by how much it exceeds the objectives' limits, as a share of them; 0 if it keeps them all
    note: str | None  # what one should know about it, such as that the context was never measured; None if nothing
    failed: int  # how many trials of these settings gave no measurement
    experiment: str  # its name
    setting: Setting = field(repr=False)  # everything that was recorded about it
    # the confirmed answer that it is, with its intervals, its gain over the baseline and its ties; None if the
    # recommendation rests on the search alone
    verdict: Verdict | None = field(default=None, repr=False)

    @property
    def confirmed(self) -> bool:
        """Whether it rests on samples measured after the search."""
        return self.verdict is not None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``tunegym recommend --json`` prints it."""
        names = ("action", "context", "source", "measured", "mean", "goals", "spread", "failed", "violation", "note")
        return {name: getattr(self, name) for name in names} | {"confirmed": self.confirmed}


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy's choice in a context; ``chance`` is how likely it is when it explores, None if unknown."""

    action: Action
    chance: float | None = None
    context: Context = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """The choices of an agent's policy in each context that it was asked for, after learning from ``trials`` trials."""

    agent: str
    trials: int
    choices: tuple[PolicyChoice, ...]

    def at(self, wanted: Context, domains: Mapping[str, Knob]) -> PolicyChoice | None:
        """Its choice in a whole context, of a range at the nearest place; None if it wasn't asked there."""
        away = distance(wanted, domains)
        there = (one for one in self.choices if away(one.context) < math.inf)
        return min(there, key=lambda one: away(one.context), default=None)


class Recommender:
    """Answers from one experiment's trials.

    Args:
        name: the experiment.
        trials: in the order of closing.
        head: the journal's first record.
        declared: the experiment in the scenario.
        policy: the agent's saved policy; a text that says why it can't be used; None if there is none.
    """

    def __init__(
        self,
        name: str,
        trials: Sequence[Trial],
        head: Mapping[str, Any],
        declared: Mapping[str, Any],
        policy: PolicyTable | str | None = None,
    ) -> None:
        self._name = name
        self._given = trials
        self._declared = declared
        self._trials = [trial for trial in trials if trial.phase != CONFIRM]
        self._head = head
        self._policy = policy
        self._objectives = [Objective(**document) for document in head.get("objectives", ())]
        self._metric = reward_metric(head.get("metrics", []), self._objectives, declared)
        first = [] if self._metric is None else [self._metric.name]
        self._metrics = [one.metric for one in self._objectives] or first or declared.get("agent_metrics", [])
        self._all = Measurements(self._trials, self._objectives)

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

        Raises:
            ConfigError: the run could not have drawn the context.
            StoreError: next to nothing was measured.
        """
        wanted = checked_context(context, self._head) if self._head else {}
        usable = sum(len(samples_of(trial)) for trial in self._given if trial.cached_from is None)
        if usable < FEWEST:
            what = f"{self._name}: {counted(usable, 'measurement')} in all, which is too little to recommend anything"
            raise StoreError(what, hint="see why with: tunegym status, or the reasons in journal.jsonl")
        if (confirmed := self._from_confirmation(wanted)) is not None:
            return confirmed
        found = self._from_policy(wanted)
        return found if isinstance(found, Recommendation) else self._from_trials(wanted, found)

    def _made(
        self,
        setting: Setting,
        wanted: Context,
        source: str,
        notes: Sequence[str | None],
        verdict: Verdict | None = None,
    ) -> Recommendation:
        mean, spread = setting.metrics(), setting.spread()
        return Recommendation(
            action=setting.action,
            context=wanted,
            source=source,
            measured=len(setting.samples),
            mean={name: mean[name] for name in self._metrics if name in mean},
            goals={name: goal for name, goal in self._head.get("goals", {}).items() if name in self._metrics},
            spread={name: spread[name] for name in self._metrics if name in spread},
            violation=setting.violation,
            note="; ".join(note for note in notes if note is not None) or None,
            failed=setting.failed,
            experiment=self._name,
            setting=setting,
            verdict=verdict,
        )

    def _from_confirmation(self, wanted: Context) -> Recommendation | None:
        """The confirmed answer; None if there is none."""
        if len(self._trials) == len(self._given):
            return None
        policy = self._policy if isinstance(self._policy, PolicyTable) else None
        verdict = answer_at(wanted, self._given, self._head, self._declared, policy)
        if not verdict.confirmed or verdict.chosen is None:
            return None
        numbers = set(verdict.chosen.trials)
        samples = [replace(trial, phase=SEARCH) for trial in self._given if trial.number in numbers]
        fresh = Measurements(samples, self._objectives)
        setting = replace(fresh.setting(verdict.chosen.action), context=verdict.context, failed=verdict.chosen.failed)
        choice = policy.at(wanted, domains_of(self._head)) if policy is not None else None
        chose = choice is not None and exact_key(choice.action) == exact_key(setting.action)
        return self._made(setting, wanted, FROM_POLICY if chose else FROM_TRIALS, verdict.notes, verdict)

    def _at(self, wanted: Context) -> tuple[Measurements, str | None]:
        """The trials that count in a context, and which they are where the context itself was not drawn."""
        if not wanted:
            return self._all, None
        trials, near = trials_at(self._trials, wanted, domains_of(self._head))
        return Measurements(trials, self._objectives), near

    # from the trials ----------------------------------------------------------------------------------

    def _from_trials(self, wanted: Context, why: str | None) -> Recommendation:
        """The best measured setting; ``why`` it is not the policy's choice, where there is a policy."""
        there, near = self._at(wanted)
        note = f"from {near}" if near is not None else None
        if not there.actions:
            there, note = self._all, f"{spelled_pairs(wanted)} was never measured: this is the best over all contexts"
        best = best_among(there)
        chosen = best.overall
        assert chosen is not None
        if there is not self._all and not best.pareto:  # what a setting does elsewhere counts, too
            key = self._all.best_at(wanted, domains_of(self._head))
            chosen = there.setting(there.values[key]) if key is not None and there.measured(key) else chosen
        notes = [why, note]
        if chosen.violation:
            limits = exceeded(chosen, self._objectives)
            notes.append(f"no measured setting keeps the limits, and this one comes closest{limits}")
        if len(best.pareto) > 1:
            see = ": see best.toml" if there is self._all else ""
            notes.append(f"one of {len(best.pareto)} settings on the Pareto set, the one with the highest reward{see}")
        return self._made(chosen, wanted, FROM_TRIALS, notes)

    # from the policy ----------------------------------------------------------------------------------

    def _from_policy(self, wanted: Context) -> Recommendation | str | None:
        """The policy's choice; why it is not used; None if there is no policy."""
        policy = self._policy
        if policy is None:
            return None
        if isinstance(policy, str):
            return f"this is from the trials, since the policy can't be used: {policy}"
        domains = domains_of(self._head)
        missing = [name for name in domains if name not in wanted]
        if missing:
            names = " and ".join(missing)
            return f"this is from the trials: the policy answers for a whole context, so give {names} too"
        chosen = policy.at(wanted, domains)
        if chosen is None:
            return f"this is from the trials: the policy was never asked at {spelled_pairs(wanted)}"
        there, near = self._at(wanted)
        setting = there.setting(chosen.action)
        failures = setting.failed - setting.cancelled
        if failures and not setting.samples:
            times = "the one time" if failures == 1 else f"all {failures} times"
            why = f"chooses {spelled_pairs(chosen.action)}, which failed {times} it was tried"
            return f"this is from the trials: the policy {why}{' there' if wanted else ''}"
        asked = None
        if exact_key(chosen.context) != exact_key(wanted):
            asked = f"the policy was asked at {spelled_pairs(chosen.context)}, which is nearest"
        made = sum(trial.status != "cancelled" for trial in self._trials)
        age = f"the policy was saved after {policy.trials} of {made} trials" if policy.trials < made else None
        measurements = f"measurements are {near}" if near is not None else None
        notes = [asked, age, measurements, *self._about_choice(there, setting)]
        return self._made(setting, wanted, FROM_POLICY, notes)

    def _about_choice(self, there: Measurements, setting: Setting) -> list[str | None]:
        """Notes on the measurements of a policy's choice, and of the best beside it."""
        best = best_among(there).overall
        metric = self._metric
        if setting.samples and best is not None:
            over = f"it exceeds the limits{exceeded(setting, self._objectives)}" if setting.violation else None
            return [over, better_measured(setting, best, metric)]
        notes: list[str | None] = []
        elsewhere = self._all.setting(setting.action)
        if elsewhere.samples:
            notes.append(f"in other contexts these settings were measured: {described(elsewhere, metric)}")
        if best is not None:
            name = spelled_pairs(best.action)
            notes.append(f"the best that was measured there is {name} ({described(best, metric)})")
        return notes


def better_measured(mine: Setting, best: Setting, metric: RewardMetric | None) -> str | None:
    """That ``best`` was measured better than ``mine`` for sure; None if it wasn't.

    Where neither was measured twice, so that the spread is unknown, that it looks better.
    """
    if exact_key(mine.action) == exact_key(best.action):
        return None
    name = spelled_pairs(best.action)
    if best.violation + SLACK < mine.violation:
        how = "exceeds the limits by less" if best.violation else "keeps the limits"
        return f"{name} {how} there ({described(best, metric)})"
    groups = [[trial.reward for trial in setting.trials] for setting in (best, mine)]
    found = pooled(groups).difference(*groups)
    bounds = found.interval(CONFIDENCE)
    if found.mean <= SLACK * abs(mine.reward) or (bounds.known and bounds.low <= 0):
        return None
    how = "was measured better there" if bounds.known else "looks better there"
    return f"{name} {how}: {described(best, metric)} against {described(mine, metric)}"


def described(setting: Setting, metric: RewardMetric | None) -> str:
    """``seconds 1.1 from 2 samples``; the reward where it is no metric."""
    means, name = setting.metrics(), "" if metric is None else metric.name
    what = f"{name} {number(means[name])}" if name in means else f"reward {number(setting.reward)}"
    return f"{what} from {counted(len(setting.samples), 'sample')}"


def exceeded(setting: Setting, objectives: Sequence[Objective]) -> str:
    """In brackets the metrics that exceed their limits; empty if none does."""
    means = setting.metrics()
    found = [
        f"{objective.metric} is {number(means[objective.metric])}, the limit {number(objective.limit)}"
        for objective in objectives
        if objective.limit is not None and objective.metric in means and objective.violation(means)
    ]
    return f" ({', '.join(found)})" if found else ""
