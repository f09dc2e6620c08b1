"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win. Where the environment varies, a lucky context must not win either: settings are ranked
by how much better they did than the average trial *in the same context*, shrunk towards zero when they were
measured only a few times. Over all, each context counts as often as it was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
        reward: the mean reward of its measurements; over all, of its contexts by how often they were drawn.
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
    cells = _cells(trials, usual)
    overall = _settings(trials, _winners(_over_all(cells, usual)), per_context=False)
    best = overall[0] if overall else None
    # A context drawn from a range never comes twice: there is nothing to tell per context then.
    if not usual.varies or usual.contexts > MOST_CONTEXTS:
        return Best(best)
    ranks = {key: cell.rank(group=key[1]) for key, cell in cells.items() if cell.measured}
    return Best(best, tuple(_settings(trials, _winners(ranks), per_context=True)))


_Key: TypeAlias = tuple[bytes, bytes]
"""An action and a context; the context is empty where all of them are meant."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """How good an action is among those of its ``group``."""

    group: bytes
    score: float
    first: int
    reward: float
    failed: int


@dataclass(slots=True)
class _Cell:
    """One action in one context."""

    first: int
    measured: int = 0
    failed: int = 0
    rewards: float = 0.0
    advantages: float = 0.0

    @property
    def score(self) -> float:
        """The mean advantage over what is usual in the context, shrunk by how seldom it was measured."""
        return self.advantages / (self.measured + SHRINK)

    def rank(self, group: bytes) -> _Rank:
        return _Rank(group, self.score, self.first, self.rewards / self.measured, self.failed)


def _cells(trials: Iterable[Trial], usual: UsualReward) -> dict[_Key, _Cell]:
    """Every action in every context it was tried in. A cached trial is no further measurement."""
    cells: dict[_Key, _Cell] = {}
    for trial in trials:
        cell = cells.setdefault(_key(trial, per_context=True), _Cell(trial.number))
        cell.first = min(cell.first, trial.number)
        if not trial.measured:
            cell.failed += 1
        elif trial.cached_from is None:
            cell.measured += 1
            cell.rewards += trial.reward
            cell.advantages += trial.reward - usual(trial.context)
    return cells


def _over_all(cells: Mapping[_Key, _Cell], usual: UsualReward) -> dict[_Key, _Rank]:
    """Every action over all contexts.

    Where contexts come again, each counts as often as it was drawn, and one that the action never met counts as
    no better than usual there. Where they don't, and where there is only one, all measurements count alike.
    """
    by_action: dict[bytes, list[tuple[bytes, _Cell]]] = {}
    for (action, context), cell in cells.items():
        by_action.setdefault(action, []).append((context, cell))
    ranks: dict[_Key, _Rank] = {}
    for action, met in by_action.items():
        measured = [(usual.share(context) if usual.recurs else 1.0, cell) for context, cell in met if cell.measured]
        if not measured:
            continue
        if usual.recurs:
            score = sum(share * cell.score for share, cell in measured)
            weights = sum(share for share, _ in measured)
            reward = sum(share * cell.rewards / cell.measured for share, cell in measured) / weights
        else:
            count = sum(cell.measured for _, cell in measured)
            reward = sum(cell.rewards for _, cell in measured) / count
            score = sum(cell.advantages for _, cell in measured) / (count + SHRINK)
        score = score if usual.varies else reward
        failed = sum(cell.failed for _, cell in met)
        ranks[action, b""] = _Rank(b"", score, min(cell.first for _, cell in met), reward, failed)
    return ranks


def _winners(ranks: Mapping[_Key, _Rank]) -> dict[_Key, _Rank]:
    """The winner of each group; the earliest of equals."""
    winners: dict[bytes, _Key] = {}
    for key, rank in ranks.items():
        best = winners.setdefault(rank.group, key)
        if (rank.score, -rank.first) > (ranks[best].score, -ranks[best].first):
            winners[rank.group] = key
    return {key: ranks[key] for key in winners.values()}


def _settings(trials: Iterable[Trial], winners: Mapping[_Key, _Rank], *, per_context: bool) -> list[Setting]:
    """The winners with their samples, in the order of their first trials."""
    samples: dict[_Key, list[Metrics]] = {key: [] for key in winners}
    example: dict[_Key, Trial] = {}
    for trial in trials:
        key = _key(trial, per_context=per_context)
        if key in winners and isinstance(trial.outcome, Measured) and trial.cached_from is None:
            samples[key].extend(trial.outcome.samples)
            example[key] = trial
    settings = [
        Setting(
            action=example[key].action,
            context=example[key].context if per_context else None,
            first=rank.first,
            reward=rank.reward,
            samples=tuple(samples[key]),
            failed=rank.failed,
        )
        for key, rank in winners.items()
    ]
    return sorted(settings, key=lambda setting: setting.first)


def _key(trial: Trial, *, per_context: bool) -> _Key:
    return exact_key(trial.action), exact_key(trial.context) if per_context else b""


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
