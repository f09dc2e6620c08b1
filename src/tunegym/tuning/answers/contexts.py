"""Contexts that a user asks about: checked against what the run could have drawn, and which trials count there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunegym.core.errors import ConfigError, Problem
from tunegym.core.text import closest, did_you_mean
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.space import MOST_REPRESENTED, Knob, Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key, native, spelled, spelled_pairs

WHERE = "--context"
NEAR_SHARE = 0.25
NEAR_LEAST = 10
"""Of a range's draws the nearest quarter is near, and at least this many measured ones."""


def domains_of(head: Head) -> dict[str, Knob]:
    """The values that the environment draws from, by env_param."""
    return {name: spec.domain for name, spec in head.env_params.items()}


@dataclass(frozen=True)
class OverContexts:
    """How advantages within contexts become one number: the mean over all draws, or over the worst ones.

    The latter is the conditional value at risk.
    """

    share: float = 1.0  # of the draws, those with the least advantage; next to nothing for the worst context alone
    weights: Mapping[bytes, float] = field(default_factory=dict)  # by exact key; empty: as often as drawn
    baseline: Action | None = None  # an advantage is over this setting; else over what is typical in the context

    @classmethod
    def of(cls, head: Head) -> OverContexts:
        """As the journal's head says."""
        mode = head.over_contexts
        left_out = mode["cvar"] if isinstance(mode, Mapping) else float(mode == "worst")
        params = head.params
        whole = params.represented() if (params.size or math.inf) <= MOST_REPRESENTED else ()
        weights = {exact_key(one): weight for one, weight in whole}
        return cls(max(1.0 - left_out, 1e-9), weights, head.baseline)

    def parts(self, shares: Sequence[float], advantages: Sequence[float]) -> list[float]:
        """How much each context counts, in sum 1: as often as it is drawn, of the worst ones only if asked."""
        left, found = self.share * math.fsum(shares), [0.0] * len(shares)
        for at in sorted(range(len(shares)), key=lambda at: advantages[at]):
            found[at] = min(shares[at], left)
            left -= found[at]
        total = math.fsum(found)
        return [part / total for part in found]


def checked_context(context: Mapping[str, Any], head: Head) -> dict[str, Scalar]:
    """``context`` in the run's own order and types.

    Raises:
        ConfigError: an unknown name, or a value that the run could not have drawn; it lists the allowed ones.
    """
    if not isinstance(context, Mapping):
        what, hint = "a context is a dict of values by env_param", 'write for example {"load": 0.5}'
        raise ConfigError(WHERE, [Problem("", what, repr(context), hint=hint)])
    domains = domains_of(head)
    problems: list[Problem] = []
    found: dict[str, Scalar] = {}
    for name, value in context.items():
        try:
            found[name] = domains[name].accept(native(value))
        except KeyError:
            hint = _hint(name, domains, head.knobs)
            problems.append(Problem(name, "there is no such env_param", spelled(value), ", ".join(domains), hint))
        except ValueError:
            what, hint = _outside(name, value, domains[name])
            problems.append(Problem(name, what, spelled(value), domains[name].describe(), hint))
    if problems:
        raise ConfigError(WHERE, problems)
    return {name: found[name] for name in domains if name in found}


def _hint(name: str, domains: Mapping[str, Knob], knobs: Mapping[str, Any]) -> str:
    if not domains:
        return "leave it out: this experiment has no env_params"
    if name in knobs:
        return "leave it out: it is a knob, and the answer says what to set it to"
    return did_you_mean(name, domains, "give one of these")


def _outside(name: str, value: object, knob: Knob) -> tuple[str, str]:
    """A value's fault, and a hint: the candidate that was probably meant, as it is typed in a shell."""
    if isinstance(knob, Range):
        return "the value is out of bounds", f"give a number from {knob.low} to {knob.high}"
    texts = {str(one).lower(): one for one in knob.values}
    text = str(value).lower()
    match = texts.get(text if text in texts else closest(text, texts) or "")
    hint = "give one of these"
    if match is not None:
        is_word = isinstance(match, str) and match.replace("-", "").replace("_", "").isalpha()
        quoted = f"'{spelled(match)}'" if isinstance(match, str) else spelled(match)
        hint = f"write {name}={match if is_word else quoted}"
    return "this is none of its candidates", hint


def trials_at(
    trials: Sequence[Trial], wanted: Context, domains: Mapping[str, Knob]
) -> tuple[tuple[Trial, ...], str | None]:
    """The trials whose context is as wanted, of a range's draws the nearest ones; and which draws these are.

    The text is None where the context itself was drawn.
    """
    away = distance(wanted, domains)
    there = tuple(trial for trial in trials if away(trial.context) < math.inf)
    near = sorted(away(trial.context) for trial in there if trial.measured and trial.cached_from is None)
    if not near or not any(isinstance(domains[name], Range) for name in wanted):
        return there, None
    reach = near[max(math.ceil(NEAR_SHARE * len(near)), min(NEAR_LEAST, len(near))) - 1]
    taken = sum(one <= reach for one in near)
    about = f"the {taken} of {len(near)} measured draws that are nearest to {spelled_pairs(wanted)}"
    return tuple(trial for trial in there if away(trial.context) <= reach), about


def distance(wanted: Context, domains: Mapping[str, Knob]) -> Callable[[Context], float]:
    """How far a context is from the wanted one: a range is 1 wide on its own scale, any other difference infinite."""

    def away(context: Context) -> float:
        steps: list[float] = []
        for name, value in wanted.items():
            knob = domains[name]
            if isinstance(knob, Range):
                steps.append(knob.position(float(context[name])) - knob.position(float(value)))
            elif type(context[name]) is not type(value) or context[name] != value:
                return math.inf
        return math.hypot(*steps)

    return away
