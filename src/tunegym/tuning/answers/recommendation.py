"""The settings to use: over all contexts, or in the one that a user is in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.answers.answer import Verdict, answer_at
from tunegym.tuning.answers.contexts import checked_context, distance, domains_of
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.space import Knob
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, exact_key, pairs

FROM_TRIALS = "trials"
FROM_POLICY = "policy"
"""The source of a recommendation: measurements of just these settings, or the choice of the agent's policy."""


@dataclass(frozen=True)
class Recommendation:
    """The settings to use."""

    action: Action  # one value for every knob, by address
    context: Context  # the one that was asked for; empty if none was
    source: str  # where it comes from: ``trials``, or ``policy``
    measured: int  # how many trials of these settings it rests on, in that context
    mean: Mapping[str, float]  # of the reward's metrics over these trials, by name; empty over several contexts
    goals: Mapping[str, str]  # ``min`` or ``max`` by metric, where a direction is known
    spread: Mapping[str, float]  # their sample standard deviations; empty with fewer than two trials
    violation: float  # by how much it exceeds the objectives' limits, as a share of them; 0 if it keeps them all
    note: str | None  # what one should know about it, such as that the context was never measured; None if nothing
    failed: int  # how many trials of these settings gave no measurement
    experiment: str  # its name
    verdict: Verdict = field(repr=False)  # the answer that it is, with its intervals, its gain and its ties

    @property
    def confirmed(self) -> bool:
        """Whether it rests on samples measured after the search."""
        return self.verdict.confirmed

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


def recommend(
    name: str,
    trials: Sequence[Trial],
    head: Head,
    policy: PolicyTable | str | None,
    context: Mapping[str, Any],
) -> Recommendation:
    """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

    Args:
        name: the experiment.
        trials: in the order of closing.
        head: the journal's first record.
        policy: the agent's saved policy; a text that says why it can't be used; None if there is none.
        context: values by env_param.

    Raises:
        ConfigError: the run could not have drawn the context.
        StoreError: next to nothing was measured.
    """
    wanted, domains = checked_context(context, head), domains_of(head)
    table = policy if isinstance(policy, PolicyTable) else None
    verdict = answer_at(wanted, trials, head, table)
    found = verdict.chosen
    if found is None:
        hint = "see why with: tunegym status, or the reasons in journal.jsonl"
        raise StoreError(f"{name}: {verdict.sentence[0].lower()}{verdict.sentence[1:-1]}", hint=hint)
    notes = list(verdict.notes)
    missing = [one for one in domains if one not in wanted]
    if isinstance(policy, str):
        notes.append(f"this is from the trials, since the policy can't be used: {policy}")
    elif table is not None and missing:
        notes.append(f"the policy answers for a whole context: give {' and '.join(missing)} too")
    choice = None if table is None or missing else table.at(wanted, domains)
    if table is not None and not missing and choice is None:
        notes.append(f"the policy was never asked at {pairs(wanted)}")
    chose = choice is not None and exact_key(choice.action) == exact_key(found.action)
    judged = head.judged.metric
    names = [one.metric for one in head.objectives] or ([judged] if judged else head.metrics)
    means = {one: interval.mean for one, interval in found.metrics.items()}
    return Recommendation(
        action=found.action,
        context=wanted,
        source=FROM_POLICY if chose else FROM_TRIALS,
        measured=found.samples,
        mean={one: means[one] for one in names if one in means},
        goals={one: goal for one, goal in head.goals.items() if one in names},
        spread={one: found.spread[one] for one in names if one in found.spread},
        violation=found.violation,
        note="; ".join(notes) or None,
        failed=found.failed,
        experiment=name,
        verdict=verdict,
    )
