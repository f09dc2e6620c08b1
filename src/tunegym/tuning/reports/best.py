"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win. Where the environment varies, a lucky context must not win either: settings are ranked
by how much better they did than the average trial *in the same context*, shrunk towards zero when they were
measured only a few times. Over all, each context counts as often as it was drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tunegym.core import toml
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, Metrics, exact_key
from tunegym.tuning.reports.usual import Tries, UsualReward

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
        weights: how much each sample counts; over all, contexts count by how often they were drawn.
        failed: how many trials of it gave no measurement.
    """

    action: Action
    context: Context | None
    first: int
    reward: float
    samples: tuple[Metrics, ...]
    weights: tuple[float, ...]
    failed: int = 0

    def metrics(self) -> dict[str, float]:
        """The mean over the samples, weighted as in ``reward``."""
        if len(set(self.weights)) == 1:
            return Measured(self.samples).mean()
        sums: dict[str, tuple[float, float]] = {}
        for sample, weight in zip(self.samples, self.weights, strict=True):
            for name, value in sample.items():
                total, weights = sums.get(name, (0.0, 0.0))
                sums[name] = total + weight * value, weights + weight
        return {name: total / weights for name, (total, weights) in sums.items()}

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

    Goes over the trials twice and holds none of them, so that a run of any length can be asked; give it a
    sequence, or something that reads the journal anew each time.
    """
    if iter(trials) is trials:
        trials = list(trials)
    cells = _cells(trials)
    usual = UsualReward(_tries(cells))
    ranks = _over_all(cells, usual)
    # A context drawn from a range never comes twice: there is nothing to tell per context then.
    if usual.varies and usual.contexts <= MOST_CONTEXTS:
        ranks |= {key: cell.rank(key[1], usual) for key, cell in cells.items() if cell.measured}
    settings = _settings(trials, _winners(ranks), usual)
    return Best(settings.pop(OVER_ALL, None), tuple(sorted(settings.values(), key=lambda setting: setting.first)))


OVER_ALL = b""
"""The group of those who compete over all contexts; the others compete within one, under its exact key."""

_Key: TypeAlias = tuple[bytes, bytes]
"""An action and a context, or ``OVER_ALL``."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """How good an action is among those of its group."""

    score: float
    first: int
    reward: float
    failed: int


@dataclass(slots=True)
class _Cell:
    """One action in one context. A cached trial is drawn, and no further measurement."""

    first: int
    drawn: int = 0
    measured: int = 0
    failed: int = 0
    rewards: float = 0.0

    @property
    def reward(self) -> float:
        return self.rewards / self.measured

    def advantages(self, context: bytes, usual: UsualReward) -> float:
        """By how much its measurements were better than usual in the context, added up."""
        return self.rewards - self.measured * usual(context)

    def score(self, context: bytes, usual: UsualReward) -> float:
        """The mean advantage, shrunk by how seldom it was measured."""
        return self.advantages(context, usual) / (self.measured + SHRINK)

    def rank(self, context: bytes, usual: UsualReward) -> _Rank:
        return _Rank(self.score(context, usual), self.first, self.reward, self.failed)


def _cells(trials: Iterable[Trial]) -> dict[_Key, _Cell]:
    """Every action in every context it was tried in."""
    cells: dict[_Key, _Cell] = {}
    for trial in trials:
        key = exact_key(trial.action), exact_key(trial.context)
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = _Cell(trial.number)
        cell.first = min(cell.first, trial.number)
        cell.drawn += 1
        if not trial.measured:
            cell.failed += 1
        elif trial.cached_from is None:
            cell.measured += 1
            cell.rewards += trial.reward
    return cells


def _tries(cells: Mapping[_Key, _Cell]) -> Iterator[Tries]:
    return (Tries(context, cell.drawn, cell.measured, cell.rewards) for (_, context), cell in cells.items())


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
        measured = [(context, cell) for context, cell in met if cell.measured]
        if measured:
            score, reward = (_weighted if usual.recurs else _pooled)(measured, usual)
            first, failed = min(cell.first for _, cell in met), sum(cell.failed for _, cell in met)
            ranks[action, OVER_ALL] = _Rank(score if usual.varies else reward, first, reward, failed)
    return ranks


def _weighted(measured: list[tuple[bytes, _Cell]], usual: UsualReward) -> tuple[float, float]:
    """Score and reward, contexts weighted by how often they were drawn."""
    shares = [usual.share(context) for context, _ in measured]
    score = sum(share * cell.score(context, usual) for share, (context, cell) in zip(shares, measured, strict=True))
    reward = sum(share * cell.reward for share, (_, cell) in zip(shares, measured, strict=True)) / sum(shares)
    return score, reward


def _pooled(measured: list[tuple[bytes, _Cell]], usual: UsualReward) -> tuple[float, float]:
    """Score and reward, all measurements alike."""
    count = sum(cell.measured for _, cell in measured)
    advantages = sum(cell.advantages(context, usual) for context, cell in measured)
    return advantages / (count + SHRINK), sum(cell.rewards for _, cell in measured) / count


def _winners(ranks: Mapping[_Key, _Rank]) -> dict[_Key, _Rank]:
    """The winner of each group; the earliest of equals."""
    winners: dict[bytes, _Key] = {}
    for key, rank in ranks.items():
        best = ranks[winners.setdefault(key[1], key)]
        if (rank.score, -rank.first) > (best.score, -best.first):
            winners[key[1]] = key
    return {key: ranks[key] for key in winners.values()}


def _settings(trials: Iterable[Trial], winners: Mapping[_Key, _Rank], usual: UsualReward) -> dict[bytes, Setting]:
    """The winners with their samples, by group."""
    samples: dict[_Key, list[tuple[bytes, Metrics]]] = {key: [] for key in winners}
    example: dict[_Key, Trial] = {}
    winning = {action for action, _ in winners}
    for trial in trials:
        if isinstance(trial.outcome, Measured) and trial.cached_from is None:
            action = exact_key(trial.action)
            if action in winning:
                context = exact_key(trial.context)
                for key in ((action, OVER_ALL), (action, context)):
                    if key in winners:
                        samples[key].extend((context, sample) for sample in trial.outcome.samples)
                        example[key] = trial
    return {
        key[1]: Setting(
            action=example[key].action,
            context=None if key[1] == OVER_ALL else example[key].context,
            first=rank.first,
            reward=rank.reward,
            samples=tuple(sample for _, sample in samples[key]),
            weights=_weights([context for context, _ in samples[key]], usual),
            failed=rank.failed,
        )
        for key, rank in winners.items()
    }


def _weights(contexts: list[bytes], usual: UsualReward) -> tuple[float, ...]:
    """How much each sample counts, by the context it was taken in."""
    if not usual.recurs:
        return (1.0,) * len(contexts)
    taken = Counter(contexts)
    return tuple(usual.share(context) / taken[context] for context in contexts)


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
