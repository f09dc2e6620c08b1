"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win. Where the environment varies, a lucky context must not win either: settings are ranked
by how much better they did than the average trial *in the same context*, shrunk towards zero when they were
measured only a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunegym.core import toml
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, Metrics, exact_key
from tunegym.tuning.reports.usual import UsualReward

BEST = "best.toml"
SHRINK = 1.0
MOST_CONTEXTS = 50


@dataclass(frozen=True)
class Setting:
    """What was recorded about one action (in one context, or over all of them).

    Attributes:
        first: the number of the first trial that tried it.
        reward: the mean reward of its measurements.
        samples: every sample of metrics.
        failed: how many trials of it gave no measurement.
    """

    action: Action
    context: Context | None
    first: int
    reward: float
    samples: tuple[Metrics, ...]
    failed: int = 0

    def metrics(self) -> dict[str, float]:
        """The mean of every sample."""
        return Measured(self.samples).mean()

    def spread(self) -> dict[str, float]:
        """The standard deviation over every sample; empty with fewer than two."""
        return Measured(self.samples).spread() if len(self.samples) > 1 else {}

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
    """The best settings among ``trials``. Infeasible, failed, timed-out and cancelled ones never win.

    Goes over the trials several times and holds none of them, so that a run of any length can be asked; give
    it a sequence, or something that reads the journal anew each time.
    """
    if iter(trials) is trials:
        trials = list(trials)
    usual = UsualReward(trials)
    overall = _standings(trials, usual, per_context=False)
    if not usual.varies:
        winners = _highest(overall, lambda standing: standing.reward)
        return Best(next(iter(_settings(trials, winners, per_context=False)), None))
    winners = _highest(overall, lambda standing: standing.score)
    best = next(iter(_settings(trials, winners, per_context=False)), None)
    # A context drawn from a range never comes twice: there is nothing to tell per context then.
    if usual.contexts > MOST_CONTEXTS:
        return Best(best)
    winners = _highest(_standings(trials, usual, per_context=True), lambda standing: standing.score)
    return Best(best, tuple(_settings(trials, winners, per_context=True)))


@dataclass(slots=True)
class _Standing:
    """How one action stands, in one context or over all; ``group`` is who it competes with."""

    group: bytes
    first: int
    measured: int = 0
    failed: int = 0
    rewards: float = 0.0
    advantages: float = 0.0

    @property
    def reward(self) -> float:
        return self.rewards / self.measured

    @property
    def score(self) -> float:
        """The mean advantage over the context's average, shrunk by how seldom it was measured."""
        return self.advantages / (self.measured + SHRINK)


def _standings(trials: Iterable[Trial], usual: UsualReward, *, per_context: bool) -> dict[bytes, _Standing]:
    """Every action that was measured at least once. A cached trial is no further measurement."""
    standings: dict[bytes, _Standing] = {}
    for trial in trials:
        group = exact_key(trial.context) if per_context else b""
        standing = standings.setdefault(_key(trial, per_context=per_context), _Standing(group, trial.number))
        standing.first = min(standing.first, trial.number)
        if not trial.measured:
            standing.failed += 1
        elif trial.cached_from is None:
            standing.measured += 1
            standing.rewards += trial.reward
            standing.advantages += trial.reward - usual(trial.context)
    return {key: standing for key, standing in standings.items() if standing.measured}


def _highest(standings: Mapping[bytes, _Standing], value: Callable[[_Standing], float]) -> dict[bytes, _Standing]:
    """The winner of each group; the earliest of equals."""
    winners: dict[bytes, tuple[float, int, bytes]] = {}
    for key, standing in standings.items():
        rank = (value(standing), -standing.first, key)
        if standing.group not in winners or rank > winners[standing.group]:
            winners[standing.group] = rank
    return {key: standings[key] for _, _, key in winners.values()}


def _settings(trials: Iterable[Trial], winners: Mapping[bytes, _Standing], *, per_context: bool) -> list[Setting]:
    """The winners with their samples, in the order of their first trials."""
    samples: dict[bytes, list[Metrics]] = {key: [] for key in winners}
    example: dict[bytes, Trial] = {}
    for trial in trials:
        key = _key(trial, per_context=per_context)
        if key in winners and isinstance(trial.outcome, Measured) and trial.cached_from is None:
            samples[key].extend(trial.outcome.samples)
            example[key] = trial
    settings = [
        Setting(
            action=example[key].action,
            context=example[key].context if per_context else None,
            first=standing.first,
            reward=standing.reward,
            samples=tuple(samples[key]),
            failed=standing.failed,
        )
        for key, standing in winners.items()
    ]
    return sorted(settings, key=lambda setting: setting.first)


def _key(trial: Trial, *, per_context: bool) -> bytes:
    return exact_key(trial.action, trial.context) if per_context else exact_key(trial.action)


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
