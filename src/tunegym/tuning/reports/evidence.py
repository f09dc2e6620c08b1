"""What trials say about one setting among those that were tried beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunegym.tuning.model.objective import Objective, violation
from tunegym.tuning.model.outcome import Cancelled, Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Metrics, exact_key
from tunegym.tuning.reports.asking import pairs
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.certainty import SURE, RewardMetric
from tunegym.tuning.reports.ranking import Column, gather

_SLACK = 1e-9


@dataclass(frozen=True)
class Evidence:
    """The trials of one action.

    Attributes:
        setting: what was recorded about it, perhaps without a sample.
        failed: how many of its trials ran, or were refused, and gave no measurement; cancelled ones don't count.
    """

    setting: Setting
    failed: int

    @property
    def hopeless(self) -> bool:
        """Whether it was tried, and failed every time."""
        return not self.setting.samples and self.failed > 0


def evidence_of(action: Action, trials: Iterable[Trial], objectives: Sequence[Objective] = ()) -> Evidence:
    """What ``trials`` say about an action. As elsewhere, a cached trial is no further measurement."""
    key = exact_key(action)
    samples: list[Metrics] = []
    rewards: list[float] = []
    first = missed = cancelled = 0
    for trial in trials:
        if exact_key(trial.action) != key:
            continue
        if not isinstance(trial.outcome, Measured):
            missed += 1
            cancelled += isinstance(trial.outcome, Cancelled)
        elif trial.cached_from is None:
            samples.extend(trial.outcome.samples)
            rewards.append(trial.reward)
            first = min(first or trial.number, trial.number)
    exceeded = violation(objectives, Measured(tuple(samples)).mean()) if samples else 0.0
    reward = _mean(rewards) if rewards else math.nan
    weights = (1.0,) * len(samples)
    setting = Setting(action, None, first, reward, tuple(samples), weights, missed, exceeded)
    return Evidence(setting, missed - cancelled)


def better_measured(trials: Iterable[Trial], mine: Setting, best: Setting, metric: RewardMetric | None) -> str | None:
    """That the best of the trials was measured better than a setting by more than the spread; None if it wasn't.

    Where nothing was measured twice, so that nobody knows the spread, that it looks better.

    Args:
        trials: those that count; they are gone over twice.
        mine: one of their settings, with at least one sample.
        best: their best.
        metric: the metric that the reward is, if it is one.
    """
    if exact_key(mine.action) == exact_key(best.action):
        return None
    if best.violation + _SLACK < mine.violation:
        how = "exceeds the limits by less" if best.violation else "keeps the limits"
        return f"{pairs(best.action)} {how} there ({told(best, metric)})"
    noise = _Noise(trials, metric)
    gap = noise.advantage(best.action) - noise.advantage(mine.action)
    error = noise.standard_error(best.action, mine.action)
    if gap <= max(SURE * error if error is not None else 0.0, _SLACK * abs(mine.reward)):
        return None
    how = "was measured better there" if error is not None else "looks better there"
    if noise.one_context:
        return f"{pairs(best.action)} {how}: {told(best, metric)} against {told(mine, metric)}"
    return f"{pairs(best.action)} {how}, by {gap:.4g} of reward, each compared with what is usual in its contexts"


def told(setting: Setting, metric: RewardMetric | None) -> str:
    """``seconds 1.1 from 2 samples``; the reward where it is no metric."""
    mean = setting.metrics().get(metric.name) if metric is not None else None
    count = len(setting.samples)
    what = f"{metric.name} {mean:.4g}" if metric is not None and mean is not None else f"reward {setting.reward:.4g}"
    return f"{what} from {count} sample{'' if count == 1 else 's'}"


class _Noise:
    """How much the measurements of one setting differ.

    In a single context they are counted in samples where the reward is a metric, else in trials. Among several contexts
    a trial counts by how much better it was than usual in its own.
    """

    def __init__(self, trials: Iterable[Trial], metric: RewardMetric | None) -> None:
        cells = gather(trials)
        usual = Column(cells, 0).usual
        self.one_context = usual.contexts == 1
        by_sample = metric is not None and not metric.limited and self.one_context
        self._advantages: dict[bytes, list[float]] = {}
        self._values: dict[bytes, list[float]] = {}
        for trial in trials:
            if not isinstance(trial.outcome, Measured) or trial.cached_from is not None:
                continue
            key, better = exact_key(trial.action), trial.reward - usual(exact_key(trial.context))
            self._advantages.setdefault(key, []).append(better)
            values = self._values.setdefault(key, [])
            if by_sample and metric is not None:
                values.extend(sample[metric.name] for sample in trial.outcome.samples if metric.name in sample)
            else:
                values.append(better)

    def advantage(self, action: Action) -> float:
        """By how much better than usual in their contexts its measurements were, on average."""
        return _mean(self._advantages[exact_key(action)])

    def standard_error(self, *actions: Action) -> float | None:
        """Of a difference between these; None if nothing was measured twice."""
        errors: list[float] = []
        for action in actions:
            values = self._values[exact_key(action)]
            deviation = _deviation([values])
            if deviation is None:
                deviation = _deviation(self._values.values())
            if deviation is None:
                return None
            errors.append(deviation / math.sqrt(max(1, len(values))))
        return math.hypot(*errors)


def _deviation(groups: Iterable[Sequence[float]]) -> float | None:
    """The standard deviation within groups; None if none has two values."""
    away: list[float] = []
    freedom = 0
    for group in groups:
        if len(group) > 1:
            mean = _mean(group)
            away.extend(value - mean for value in group)
            freedom += len(group) - 1
    return math.hypot(*away) / math.sqrt(freedom) if freedom else None


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is no float, the mean still is
        return math.fsum(value / len(values) for value in values)
