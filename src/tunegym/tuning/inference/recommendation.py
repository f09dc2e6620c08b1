"""The settings to use: over all contexts, or in the one that a user is in; and what an agent's policy would choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tunegym.core.errors import ConfigError, Problem, StoreError
from tunegym.core.text import closest, did_you_mean
from tunegym.tuning.inference.answer import Analysis, Answer, Gain, Verdict
from tunegym.tuning.inference.coordinates import ContextIndex
from tunegym.tuning.inference.decision import Certainty
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.inference.wording import Background, worded_verdict
from tunegym.tuning.model.space import Knob, Range
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key, native, pairs, spelled

WHERE = "--context"


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

    def at(self, context: Context, contexts: ContextIndex) -> PolicyChoice | None:
        """Return its choice in a whole context, of a range at the nearest place; None if it wasn't asked there."""
        distances = [contexts.distance(choice.context, context) for choice in self.choices]
        nearest = min(distances, default=1.0)
        return None if nearest >= 1.0 else self.choices[distances.index(nearest)]

    def actions(self, contexts: ContextIndex) -> list[Action | None]:
        """Return its choice in each represented context."""
        choices = [self.at(context, contexts) for context in contexts.contexts]
        return [None if choice is None else choice.action for choice in choices]


@dataclass(frozen=True)
class Recommendation:
    """The settings to use.

    Attributes:
        action: one value for every knob, by address.
        changes: the values that differ from the baseline; without one, all of them.
        context: the one that was asked for; empty if none was.
        certainty: ``sure``, ``likely`` or ``unclear``: that ``best`` is better than the baseline, or the runner-up.
        gain: of the best setting on the baseline; None without a baseline.
        mean: typical values of metrics with these settings; empty over several contexts.
        measured: how many measurements of these settings it rests on.
        failed: how many trials of these settings gave none.
        violation: by how much it exceeds the objectives' limits, as a share of them.
        confirmed: whether it rests on samples measured after the search.
        policy: whether the agent's policy chooses these settings, too.
    """

    experiment: str
    action: Action
    changes: Mapping[str, Scalar]
    context: Context
    certainty: Certainty | None
    gain: Gain | None
    mean: Mapping[str, float]
    measured: int
    failed: int
    violation: float
    confirmed: bool
    policy: bool
    note: str | None
    sentence: str
    verdict: Verdict = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``tunegym recommend --json`` prints it."""
        document = asdict(self)
        del document["verdict"]
        return document


def recommend(
    name: str,
    analysis: Analysis,
    answer: Answer,
    policy: PolicyTable | str | None,
    context: Mapping[str, Any],
    background: Background,
) -> Recommendation:
    """Return the settings to use, over all contexts or in those that ``context`` describes, wholly or in part.

    Args:
        name: the experiment.
        analysis: of its trials.
        answer: of the analysis, in words.
        policy: the agent's saved policy; a text that says why it can't be used; None if there is none.
        context: values by env_param.
        background: of its run.

    Raises:
        ConfigError: the run could not have drawn the context.
        StoreError: next to nothing was measured.
    """
    question = analysis.question
    wanted = checked_context(context, question)
    verdict, notes = _asked(analysis, answer, wanted, background)
    chosen = verdict.chosen
    if chosen is None:
        hint = "see why with: tunegym status, or the reasons in journal.jsonl"
        working = [own.context for own in answer.per_context if own.chosen is not None and own.context is not None]
        if working and not wanted:
            named = [f"{WHERE} {pairs({key: value})}" for key, value in working[0].items()]
            hint = f"name a context in which something worked: {' '.join(named)}"
        raise StoreError(f"{name}: {verdict.sentence}", hint=hint)
    table = policy if isinstance(policy, PolicyTable) else None
    whole = wanted.keys() == question.params.params.keys()
    choice = table.at(wanted, question.contexts) if table is not None and whole else None
    notes += _policy_notes(policy, choice, chosen.action, wanted)
    return Recommendation(
        experiment=name,
        action=chosen.action,
        changes=dict(chosen.changes),
        context=wanted,
        certainty=verdict.certainty,
        gain=chosen.gain,
        mean={metric: interval.mean for metric, interval in chosen.values.items()},
        measured=chosen.samples,
        failed=chosen.failed,
        violation=chosen.violation,
        confirmed=verdict.confirmed,
        policy=choice is not None and exact_key(choice.action) == exact_key(chosen.action),
        note="; ".join(notes) or None,
        sentence=verdict.sentence,
        verdict=verdict,
    )


def _asked(analysis: Analysis, answer: Answer, wanted: Context, background: Background) -> tuple[Verdict, list[str]]:
    """Return the verdict in the contexts that a user means, and what to know about it."""
    contexts = analysis.question.contexts
    if not wanted:
        return answer.overall, [*answer.overall.notes]
    matching = contexts.matching(wanted)
    verdict = analysis.verdict(matching)
    where = f"at {pairs(wanted)}" if len(matching) == 1 else f"at {pairs(wanted)}, over {len(matching)} contexts"
    notes: list[str] = []
    if not contexts.is_represented(wanted):
        nearest = pairs({name: contexts.contexts[matching[0]][name] for name in wanted})
        where = f"at {nearest}"
        notes.append(f"{pairs(wanted)} is represented by {nearest}, the nearest")
    told = worded_verdict(answer, verdict, where, background)
    return told, [*notes, *told.notes]


def _policy_notes(
    policy: PolicyTable | str | None, choice: PolicyChoice | None, action: Action, wanted: Context
) -> list[str]:
    if isinstance(policy, str):
        return [f"this is from the trials, since the policy can't be used: {policy}"]
    if choice is None or exact_key(choice.action) == exact_key(action):
        return []
    return [f"the agent's policy chooses {pairs(choice.action)}{f' at {pairs(wanted)}' if wanted else ''}"]


# contexts that a user asks about -------------------------------------------------------------------------


def checked_context(context: Mapping[str, Any], question: Question) -> dict[str, Scalar]:
    """Return ``context`` in the run's own order and types.

    Raises:
        ConfigError: an unknown name, or a value that the run could not have drawn; it lists the allowed ones.
    """
    if not isinstance(context, Mapping):
        message, hint = "a context is a dict of values by env_param", 'write for example {"load": 0.5}'
        raise ConfigError(WHERE, [Problem("", message, repr(context), hint=hint)])
    domains = {name: param.domain for name, param in question.params.params.items()}
    problems: list[Problem] = []
    values: dict[str, Scalar] = {}
    for name, value in context.items():
        if name not in domains:
            hint = _unknown_hint(name, domains, question)
            allowed = ", ".join(domains)
            problems.append(Problem(name, "there is no such env_param", spelled(value), allowed, hint))
            continue
        try:
            values[name] = domains[name].accept(native(value))
        except ValueError:
            message, hint = _outside(name, value, domains[name])
            problems.append(Problem(name, message, spelled(value), domains[name].describe(), hint))
    if problems:
        raise ConfigError(WHERE, problems)
    return {name: values[name] for name in domains if name in values}


def _unknown_hint(name: str, domains: Mapping[str, Knob], question: Question) -> str:
    if not domains:
        return "leave it out: this experiment has no env_params"
    if name in question.space.knobs:
        return "leave it out: it is a knob, and the answer says what to set it to"
    return did_you_mean(name, domains, "give one of these")


def _outside(name: str, value: object, knob: Knob) -> tuple[str, str]:
    """Return a value's fault, and a hint: the candidate that was probably meant, as it is typed in a shell."""
    if isinstance(knob, Range):
        return "the value is out of bounds", f"give a number from {knob.low} to {knob.high}"
    texts = {str(candidate).lower(): candidate for candidate in knob.values}
    text = str(value).lower()
    match = texts.get(text if text in texts else closest(text, texts) or "")
    if match is None:
        return "this is none of its candidates", "give one of these"
    is_word = isinstance(match, str) and match.replace("-", "").replace("_", "").isalpha()
    quoted = f"'{spelled(match)}'" if isinstance(match, str) else spelled(match)
    return "this is none of its candidates", f"write {name}={match if is_word else quoted}"
