"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win, and settings that keep every limit come before those that don't. With several objectives
there is a set of winners, none of which is better than another in every respect: the Pareto set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunegym.core import toml
from tunegym.core.whole import write_whole
from tunegym.tuning.model.objective import Objective, aims, violation
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Context, Metrics, exact_key
from tunegym.tuning.reports.ranking import LARGEST, OVER_ALL, Cell, Column, Key, Standing, front, gather
from tunegym.tuning.reports.usual import UsualReward

BEST = "best.toml"
MOST_CONTEXTS = 50


@dataclass(frozen=True)
class Setting:
    """What was recorded about one action (in one context, or over all of them).

    Attributes:
        first: the number of the first trial that measured it; 0 if none did.
        reward: the mean reward of its measurements; over all, of its contexts by how often they were drawn. NaN
            without any.
        samples: every sample of metrics; empty only for what a policy chose and nobody measured.
        weights: how much each sample counts; over all, contexts count by how often they were drawn.
        failed: how many trials of it gave no measurement.
        violation: by how much its mean metrics exceed the objectives' limits, as a share of them; 0 if they don't.
    """

    action: Action
    context: Context | None
    first: int
    reward: float
    samples: tuple[Metrics, ...]
    weights: tuple[float, ...]
    failed: int = 0
    violation: float = 0.0

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
        found = {"trial": self.first, "reward": self.reward} if self.samples else {}
        document: dict[str, Any] = {
            **found,
            "measured": len(self.samples),
            "failed": self.failed,
            "settings": nested(self.action),
            "metrics": self.metrics(),
        }
        if self.violation:
            document["violation"] = self.violation
        if self.spread():
            document["spread"] = self.spread()
        if self.context is not None:
            document["context"] = nested(self.context)
        return document


@dataclass(frozen=True)
class Best:
    """The best setting of an experiment, the best in each context where there are contexts to tell, and with
    several objectives the Pareto set, of which ``overall`` is the one with the highest reward.
    """  # noqa: D205

    overall: Setting | None
    per_context: tuple[Setting, ...] = ()
    pareto: tuple[Setting, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for TOML and JSON."""
        document: dict[str, Any] = {"best": self.overall.as_dict()} if self.overall is not None else {}
        if self.pareto:
            document["pareto"] = [setting.as_dict() for setting in self.pareto]
        if self.per_context:
            document["per_context"] = [setting.as_dict() for setting in self.per_context]
        return document


def best_of(trials: Iterable[Trial], objectives: Sequence[Objective] = ()) -> Best:
    """The best settings among ``trials``. What was not measured never wins.

    Goes over the trials twice and holds none of them, so that a run of any length can be asked; give it a
    sequence, or something that reads the journal anew each time.
    """
    if iter(trials) is trials:
        trials = list(trials)
    ranking = _Ranking(trials, objectives)
    overall = ranking.overall()
    pareto = ranking.pareto()
    winners = {(action, OVER_ALL) for action in pareto}
    winner = ranking.winner({action: overall[action] for action in pareto} if pareto else overall)
    if winner is not None:
        winners.add((winner, OVER_ALL))
    winners |= ranking.winners_per_context()
    settings = _settings(trials, ranking, winners)
    return Best(
        settings[winner, OVER_ALL] if winner is not None else None,
        tuple(sorted((one for one in settings.values() if one.context is not None), key=lambda one: one.first)),
        tuple(settings[action, OVER_ALL] for action in pareto),
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """How good an action is among those of its group: limits first, then the score, then who came first."""

    standing: Standing
    first: int
    failed: int
    violation: float

    @property
    def order(self) -> tuple[float, float, int]:
        return -self.violation, self.standing.score, -self.first


class _Ranking:
    """Every action that was measured, by reward and by each objective."""

    def __init__(self, trials: Iterable[Trial], objectives: Sequence[Objective]) -> None:
        self._objectives = tuple(objectives)
        self._names = [objective.metric for objective in objectives]
        self._cells = gather(trials, self._names)
        self._reward = Column(self._cells, 0)
        self._columns = [Column(self._cells, index) for index in range(1, len(self._names) + 1)]
        self._by_action: dict[bytes, list[Cell]] = {}
        for (action, _), cell in self._cells.items():
            self._by_action.setdefault(action, []).append(cell)

    @property
    def usual(self) -> UsualReward:
        return self._reward.usual

    def overall(self) -> dict[bytes, _Rank]:
        """Every measured action over all contexts."""
        measured = (action for action, cells in self._by_action.items() if any(cell.measured for cell in cells))
        return {action: self.rank((action, OVER_ALL)) for action in measured}

    def winner(self, ranks: Mapping[bytes, _Rank]) -> bytes | None:
        """The best of a group; the earliest of equals."""
        return max(ranks, key=lambda key: ranks[key].order, default=None)

    def rank(self, key: Key) -> _Rank:
        """The rank of an action, over all or in one context."""
        action, context = key
        if context == OVER_ALL:
            cells = self._by_action[action]
            reward, *means = [column.over_all(action) for column in (self._reward, *self._columns)]
        else:
            cells = [self._cells[key]]
            reward, *means = [column.within(context, cells[0]) for column in (self._reward, *self._columns)]
        first, failed = min(cell.first for cell in cells if cell.measured), sum(cell.failed for cell in cells)
        return _Rank(reward, first, failed, self._violation([one.mean for one in means]))

    def winners_per_context(self) -> set[Key]:
        """The best action in each context, where there are several contexts and not too many."""
        # A context drawn from a range never comes twice: there is nothing to tell per context then.
        if not self.usual.varies or self.usual.contexts > MOST_CONTEXTS:
            return set()
        groups: dict[bytes, dict[bytes, _Rank]] = {}
        for (action, context), cell in self._cells.items():
            if cell.measured:
                groups.setdefault(context, {})[action] = self.rank((action, context))
        return {(action, context) for context, ranks in groups.items() if (action := self.winner(ranks)) is not None}

    def pareto(self) -> list[bytes]:
        """The Pareto set over all contexts, best first by the first objective; empty with fewer than two."""
        goals = aims(self._objectives)
        if len(goals) < 2:
            return []
        ranks = self.overall()
        least = min((rank.violation for rank in ranks.values()), default=0.0)
        columns = [self._columns[self._names.index(goal.metric)] for goal in goals]
        return front(
            {
                action: [goal.sign * column.over_all(action).score for goal, column in zip(goals, columns, strict=True)]
                for action, rank in ranks.items()
                if rank.violation <= least
            }
        )

    def _violation(self, means: Sequence[float]) -> float:
        return violation(self._objectives, dict(zip(self._names, means, strict=True)))


def _settings(trials: Iterable[Trial], ranking: _Ranking, winners: set[Key]) -> dict[Key, Setting]:
    """The winners with their samples."""
    samples: dict[Key, list[tuple[bytes, Metrics]]] = {key: [] for key in winners}
    example: dict[Key, Trial] = {}
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
    return {key: _setting(key, ranking, samples[key], example[key]) for key in winners}


def _setting(key: Key, ranking: _Ranking, samples: list[tuple[bytes, Metrics]], example: Trial) -> Setting:
    rank = ranking.rank(key)
    return Setting(
        action=example.action,
        context=None if key[1] == OVER_ALL else example.context,
        first=rank.first,
        reward=rank.standing.mean if abs(rank.standing.mean) < LARGEST / 2 else example.reward,
        samples=tuple(sample for _, sample in samples),
        weights=_weights([context for context, _ in samples], ranking.usual),
        failed=rank.failed,
        violation=rank.violation,
    )


def _weights(contexts: list[bytes], usual: UsualReward) -> tuple[float, ...]:
    """How much each sample counts, by the context it was taken in."""
    if not usual.recurs:
        return (1.0,) * len(contexts)
    taken = Counter(contexts)
    return tuple(usual.share(context) / taken[context] for context in contexts)


def write_best(
    folder: Path, trials: Iterable[Trial], fixed: Mapping[str, Any], objectives: Sequence[Objective] = ()
) -> Best:
    """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
    best = best_of(trials, objectives)
    document = best.as_dict()
    for setting in [*([document["best"]] if "best" in document else []), *document.get("pareto", [])]:
        if fixed:
            setting["fixed"] = nested(fixed)
    write_whole(folder / BEST, toml.dumps(document))
    return best
