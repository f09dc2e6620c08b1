"""What a policy chooses in each context, beside what was measured there: facts as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tunegym.core.errors import StoreError
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.certainty import RewardMetric, reward_spread
from tunegym.tuning.reports.choices import Chosen, SavedPolicy, saved_policy
from tunegym.tuning.reports.evidence import evidence_of
from tunegym.tuning.reports.nearby import domains_of
from tunegym.tuning.reports.results import ExperimentResults
from tunegym.tuning.reports.tried import Watched

MOST_CHOICES = 100
"""How many of a policy's choices are told."""


class PolicyFacts:
    """Gathers what trials say about a policy's choices, in one pass over them, and tells it.

    Where the context has a value of a range it hardly comes again, so nothing is counted then.
    """

    def __init__(self, results: ExperimentResults) -> None:
        self._results = results
        self._policy: SavedPolicy | None = None
        self._error: str | None = None
        try:
            self._policy = saved_policy(results)
        except StoreError as error:
            self._error = str(error)
        self._counted = not any(isinstance(knob, Range) for knob in domains_of(results).values())
        self._drawn: Counter[bytes] = Counter()
        self._trials: dict[tuple[bytes, bytes], list[Trial]] = {}
        if self._policy is not None and self._counted:
            self._trials = {_key(one): [] for one in self._policy.choices}

    def add(self, trial: Trial) -> None:
        """Take in a closed trial."""
        if self._trials:
            context = exact_key(trial.context)
            self._drawn[context] += 1
            kept = self._trials.get((exact_key(trial.action), context))
            if kept is not None:
                kept.append(trial)

    def as_dict(
        self, best: Setting | None, per_context: Sequence[Setting], metric: RewardMetric | None
    ) -> dict[str, Any] | None:
        """Plain data; None where there is no policy.

        ``error`` says why a policy can't be told. ``choices`` are the most often drawn contexts' where there are more
        than ``MOST_CHOICES``, of ``of`` in all; numbers in them are None where nothing is counted, or known.
        """
        if self._error is not None:
            return {"error": self._error, "trials": None, "of": 0, "choices": []}
        if self._policy is None or not self._policy.choices:
            return None
        bests = {exact_key(one.context or {}): one for one in per_context}
        if best is not None:
            bests.setdefault(exact_key({}), best)
        told = [self._choice(one, bests, metric) for one in self._shown(self._policy.choices)]
        return {"error": None, "trials": self._policy.trials, "of": len(self._policy.choices), "choices": told}

    def _shown(self, choices: Sequence[Chosen]) -> Sequence[Chosen]:
        if len(choices) <= MOST_CHOICES:
            return choices
        if self._counted:
            return sorted(choices, key=lambda one: -self._drawn[exact_key(one.context)])[:MOST_CHOICES]
        return choices[:: -(-len(choices) // MOST_CHOICES)]

    def _choice(self, one: Chosen, bests: Mapping[bytes, Setting], metric: RewardMetric | None) -> dict[str, Any]:
        told: dict[str, Any] = {"context": dict(one.context), "action": dict(one.action), "chance": one.chance}
        if not self._counted:
            return told | dict.fromkeys(("drawn", "samples", "failed", "reward", "reward_spread", "best"))
        trials = self._trials[_key(one)]
        found = evidence_of(one.action, trials, self._results.objectives)
        watched = _watched(trials)
        spread = reward_spread(found.setting, metric, watched) if watched.count else None
        best = bests.get(exact_key(one.context))
        return told | {
            "drawn": self._drawn[exact_key(one.context)],
            "samples": len(found.setting.samples),
            "failed": found.failed,
            "reward": found.setting.reward if found.setting.samples else None,
            "reward_spread": None if spread is None else spread.deviation,
            "best": None if best is None else _best(best, one),
        }


def _key(one: Chosen) -> tuple[bytes, bytes]:
    return exact_key(one.action), exact_key(one.context)


def _watched(trials: Sequence[Trial]) -> Watched:
    """Their own rewards. Whether a limit was exceeded doesn't matter where it is asked of trials, not of samples."""
    watched = Watched(exceeded=True)
    for trial in trials:
        if trial.measured and trial.cached_from is None:
            watched.add([trial.reward])
            watched.rewards.append(trial.reward)
    return watched


def _best(best: Setting, one: Chosen) -> dict[str, Any]:
    return {
        "action": dict(best.action),
        "reward": best.reward,
        "samples": len(best.samples),
        "chosen": exact_key(best.action) == exact_key(one.action),
    }
