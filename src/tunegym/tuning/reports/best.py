"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win. Where the environment varies, a lucky context must not win either: settings are ranked
by how much better they did than the average trial *in the same context*, shrunk towards zero when they were
measured only a few times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunegym.core import toml
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, Metrics, exact_key

BEST = "best.toml"
SHRINK = 1.0
MOST_CONTEXTS = 50


@dataclass
class Setting:
    """Everything recorded about one action (in one context, or over all of them)."""

    action: Action
    context: Context | None
    first: int
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    samples: list[Metrics] = field(default_factory=list)
    failed: int = 0

    @property
    def reward(self) -> float:
        """The mean reward."""
        return math.fsum(self.rewards) / len(self.rewards)

    @property
    def score(self) -> float:
        """The mean advantage over the context's average, shrunk by how seldom it was measured."""
        return math.fsum(self.advantages) / (len(self.advantages) + SHRINK)

    def metrics(self) -> dict[str, float]:
        """The mean of every sample."""
        return Measured(tuple(self.samples)).mean()

    def spread(self) -> dict[str, float]:
        """The standard deviation over every sample; empty with fewer than two."""
        return Measured(tuple(self.samples)).spread() if len(self.samples) > 1 else {}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for TOML and JSON."""
        document: dict[str, Any] = {
            "trial": self.first,
            "reward": self.reward,
            "measured": len(self.samples),
            "failed": self.failed,
            "settings": nested(self.action),
            "metrics": self.metrics(),
        }
        if self.spread():
            document["spread"] = self.spread()
        if self.context is not None:
            document["context"] = nested(self.context)
        return document


@dataclass(frozen=True)
class Best:
    """The best setting of an experiment, and the best in each context where there are contexts to tell."""

    overall: Setting | None
    per_context: tuple[Setting, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for TOML and JSON."""
        document: dict[str, Any] = {"best": self.overall.as_dict()} if self.overall is not None else {}
        if self.per_context:
            document["per_context"] = [setting.as_dict() for setting in self.per_context]
        return document


def best_of(trials: Iterable[Trial]) -> Best:
    """The best settings among ``trials``. Infeasible, failed, timed-out and cancelled ones never win."""
    trials = list(trials)
    varying = any(trial.context for trial in trials)
    overall = _settings(trials, lambda _: None)
    if not varying:
        return Best(max(overall, key=lambda setting: (setting.reward, -setting.first), default=None))
    per_context: dict[bytes, Setting] = {}
    for setting in _settings(trials, lambda trial: trial.context):
        key = exact_key(setting.context or {})
        if key not in per_context or setting.score > per_context[key].score:
            per_context[key] = setting
    best = max(overall, key=lambda setting: (setting.score, -setting.first), default=None)
    # A context drawn from a range never comes twice: there is nothing to tell per context then.
    few = len(per_context) <= MOST_CONTEXTS
    return Best(best, tuple(per_context.values()) if few else ())


def _settings(trials: list[Trial], split: Any) -> list[Setting]:
    """Trials grouped by action (and by what ``split`` says), with at least one measurement each."""
    means = _context_means(trials)
    settings: dict[bytes, Setting] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        context = split(trial)
        key = exact_key(trial.action, context or {})
        setting = settings.setdefault(key, Setting(trial.action, context, trial.number))
        if not isinstance(trial.outcome, Measured):
            setting.failed += 1
        elif trial.cached_from is None:
            setting.rewards.append(trial.reward)
            setting.advantages.append(trial.reward - means[exact_key(trial.context)])
            setting.samples.extend(trial.outcome.samples)
    return [setting for setting in settings.values() if setting.rewards]


def _context_means(trials: list[Trial]) -> Mapping[bytes, float]:
    rewards: dict[bytes, list[float]] = {}
    for trial in trials:
        if trial.measured and trial.cached_from is None:
            rewards.setdefault(exact_key(trial.context), []).append(trial.reward)
    return {key: math.fsum(values) / len(values) for key, values in rewards.items()}


def write_best(folder: Path, trials: Iterable[Trial], fixed: Mapping[str, Any]) -> Best:
    """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
    best = best_of(trials)
    document = best.as_dict()
    if "best" in document and fixed:
        document["best"]["fixed"] = nested(fixed)
    fresh = folder / f"{BEST}.new"
    fresh.write_text(toml.dumps(document), encoding="utf-8")
    fresh.replace(folder / BEST)
    return best
