"""The rounds after a search: the baseline, each context's best setting and the over-all candidate, measured afresh.

In a round every arm of every context is measured once, in random order. Rounds that were measured count for good: a
search that was extended plans only what its arms still need. Everything follows from the trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tunegym.core.randomness import unit
from tunegym.tuning.inference.coordinates import Allowed, Floats
from tunegym.tuning.inference.observations import Observations, Question, Row
from tunegym.tuning.inference.process import one_thread
from tunegym.tuning.inference.surrogate import INFLATION, Surrogate, difference_variance
from tunegym.tuning.model.trial import CONFIRM, Trial
from tunegym.tuning.model.values import Action, Context

MOST_SHARE = 0.25
"""Of the budget, where the usual share has no room for three rounds of two arms."""
FEW_SHARE = 0.4
"""The most that two rounds may take of a small budget; else nothing is confirmed."""
WITHOUT_BASELINE = 0.1
ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 3, 2, 10
"""With two rounds, intervals cover 92 % on a kernel whose noise has outliers, with three 96 %. Ten tell a gain of 10 %
at 5 % noise in 97 % of runs."""
WORTH, DOUBT = 0.01, 2.0
"""A change that is worth less than this share, or less than so many of the model's standard deviations, is none. With
the noise of three pairs they left 2.0 of 8 knobs changed where 3.4 were, at the same gain: one knob of eight that
doubles the metric, gains of 10 % at 5 % noise, and of x1.5 to x50 at 35 %."""
LEAST_GAP = 0.05
"""Two finalists whose costs differ by less can't be told apart in so few rounds."""


def share_of(question: Question, share: float) -> float:
    """Return the share of a budget that the confirmation may take: less without a baseline."""
    return share if question.baseline is not None else min(share, WITHOUT_BASELINE)


def reserve(question: Question, budget: int, share: float) -> int:
    """Return how many trials of a budget the confirmation gets; 0 if it has no room."""
    share = share_of(question, share)
    pairs = 2 * len(question.contexts)
    trials = int(share * budget)
    if trials < ROUNDS * pairs and question.baseline is not None:
        trials = max(trials, int(MOST_SHARE * budget))
    if trials < FEWEST_ROUNDS * pairs and question.baseline is not None:
        fits = FEWEST_ROUNDS * pairs <= FEW_SHARE * budget
        trials = FEWEST_ROUNDS * pairs if fits else 0
    if trials < FEWEST_ROUNDS * 2:
        return 0
    least = ROUNDS * (pairs + len(question.contexts))
    whole = trials if trials >= least else trials // pairs * pairs
    return min(whole, MOST_ROUNDS * (pairs + len(question.contexts)))


@dataclass(frozen=True)
class Finalists:
    """The settings that are measured in rounds: by context, the reference first. ``overall`` is None if there is none.

    The reference is the baseline, or without one the runner-up.
    """

    overall: int | None
    arms: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Trials of a round."""
        return sum(map(len, self.arms))


class Nomination:
    """Chooses the finalists of a search.

    Args:
        surrogate: of the search.
        observations: all trials: what failed in a round is no finalist any more.
        trials: how many the rounds may have.
        allowed: whether the constraints allow a setting.
        own: a policy's choices by represented context.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        observations: Observations,
        trials: int,
        allowed: Allowed,
        own: Sequence[Action | None] = (),
    ) -> None:
        self._surrogate, self._allowed, self._trials = surrogate, allowed, trials
        self._observations, self._own = observations, own
        self._question = observations.question
        self._contexts = self._question.contexts
        self._baseline = observations.baseline

    @one_thread
    def finalists(self) -> Finalists:
        """Return the arms of every context."""
        every = range(len(self._contexts))
        overall = self.best(every)
        if self._baseline is None:
            return self._without_baseline(overall)
        arms: list[list[int]] = []
        for context in every:
            candidates = [self.best([context]), self._fits(overall, context)]
            arms.append([self._baseline, *dict.fromkeys(arm for arm in candidates if arm is not None)])
        rounds = 1 if self._observations.repeats().is_exact else ROUNDS
        if self._trials < rounds * sum(map(len, arms)):
            arms = [self._two(own, context) for context, own in enumerate(arms)]
        return Finalists(overall, tuple(tuple(own) if len(own) > 1 else () for own in arms))

    def best(self, contexts: Sequence[int]) -> int | None:
        """Return the best setting in some contexts, without the changes that don't matter; None for the baseline.

        It worked in one of them, and never failed or exceeded a limit there. A policy's choice comes before it.
        """
        choice = self._choice(contexts[0]) if len(contexts) == 1 else None
        if choice is not None:
            return self._unless_baseline(choice)
        settings = [setting for setting in self._usable(contexts) if setting != self._baseline]
        if not settings:
            return None
        best = settings[int(np.argmin(self._relative(settings, contexts)))]
        return self._unless_baseline(self._reduced(best, contexts))

    def _choice(self, context: int) -> int | None:
        """Return a policy's choice in a context, if it may run there and never failed."""
        action = self._own[context] if self._own else None
        if action is None or not self._allowed(action, self._contexts.contexts[context]):
            return None
        return self._fits(self._observations.setting(action), context)

    def _unless_baseline(self, setting: int) -> int | None:
        return None if setting == self._baseline else setting

    def _usable(self, contexts: Sequence[int]) -> list[int]:
        """Return the settings that worked in some contexts, never failed there and are allowed in all of them.

        Where each of them exceeds a limit, only the lesser evils are left.
        """
        rows = [row for row in self._observations.rows if row.context in contexts]
        failed = {row.setting for row in rows if not row.worked}
        worked = {row.setting for row in rows if row.worked and self._allows(row.setting, contexts)} - failed
        excess = dict.fromkeys(worked, 0.0)
        for row in rows:
            if row.setting in worked:
                excess[row.setting] = max(excess[row.setting], self._observations.violation(row))
        least = min(excess.values(), default=0.0)
        return sorted(setting for setting, violation in excess.items() if violation <= least)

    def _fits(self, setting: int | None, context: int) -> int | None:
        """Return a setting unless it failed in a context or is refused there."""
        if setting is None or self._observations.failed(setting, context):
            return None
        return setting if self._allows(setting, [context]) else None

    def _allows(self, setting: int, contexts: Sequence[int]) -> bool:
        action = self._observations.actions[setting]
        return all(self._allowed(action, self._contexts.contexts[context]) for context in contexts)

    def _relative(self, settings: Sequence[int], contexts: Sequence[int]) -> Floats:
        """Return costs over contexts, in each compared with the baseline where there is one."""
        costs = self._costs(settings)[list(contexts)]
        reference = np.zeros((len(contexts), 1))
        if self._baseline is not None:
            reference = self._costs([self._baseline])[list(contexts)]
        gains = reference - costs
        parts = np.array([self._question.parts(column, contexts) for column in gains.T])
        return -(parts * gains.T).sum(axis=1)

    def _costs(self, settings: Sequence[int]) -> Floats:
        """Return expected costs above the typical one, contexts by settings; a likely failure costs much."""
        points = self._surrogate.points([self._observations.actions[setting] for setting in settings])
        fails = self._surrogate.works(points) < 0.5
        return self._surrogate.means(points) + 3.0 * self._surrogate.standard.spread * fails

    # only the changes that matter ---------------------------------------------------------------------

    def _reduced(self, setting: int, contexts: Sequence[int]) -> int:
        """Take back changes from the baseline that are expected to be worth less than a pair's noise, least first."""
        if self._baseline is None:
            return setting
        baseline = self._observations.actions[self._baseline]
        current = dict(self._observations.actions[setting])
        weights = self._contexts.weights[list(contexts)] / self._contexts.weights[list(contexts)].sum()
        before = self._expected([current], contexts, weights)[0]
        noise = np.array([self._surrogate.noise(context) for context in contexts])
        pair = float(np.sqrt(2.0 * (weights**2 @ noise**2) / ROUNDS))
        threshold = max(pair, WORTH) if self._observations.scale.is_ratio else pair
        while current != baseline:
            reverted = [{**current, name: baseline[name]} for name in current if current[name] != baseline[name]]
            permitted = [action for action in reverted if self._permits(action, contexts)]
            if not permitted:
                break
            costs = self._expected(permitted, contexts, weights)
            least = int(np.argmin(costs))
            doubt = DOUBT * self._doubt(current, permitted[least], contexts, weights)
            if costs[least] - before > max(threshold, doubt):
                break
            current = permitted[least]
        return self._observations.setting(current)

    def _doubt(self, action: Action, other: Action, contexts: Sequence[int], weights: Floats) -> float:
        """Return the standard deviation of the difference that the model expects between two settings."""
        points = self._surrogate.points([action, other])
        covariances = [self._surrogate.cost.covariance(points, context) for context in contexts]
        variances = np.array([difference_variance(covariance, 0, 1) for covariance in covariances])
        return float(np.sqrt(weights**2 @ np.maximum(variances, 0.0))) * self._surrogate.standard.spread

    def _expected(self, actions: Sequence[Action], contexts: Sequence[int], weights: Floats) -> Floats:
        return weights @ self._surrogate.means(self._surrogate.points(actions))[list(contexts)]

    def _permits(self, action: Action, contexts: Sequence[int]) -> bool:
        """Return whether a setting may run, and never failed, in some contexts."""
        known = self._observations.find(action)
        if known is not None and any(self._observations.failed(known, context) for context in contexts):
            return False
        likely = self._surrogate.works(self._surrogate.points([action]))[list(contexts), 0].min() >= 0.5
        return bool(likely) and all(self._allowed(action, self._contexts.contexts[context]) for context in contexts)

    # few rounds ---------------------------------------------------------------------------------------

    def _two(self, arms: list[int], context: int) -> list[int]:
        """Return two of three arms: the over-all one, unless the context's own is likely to be worth more."""
        if len(arms) < 3:
            return arms
        points = self._surrogate.points([self._observations.actions[arm] for arm in arms[1:]])
        mean, covariance = self._surrogate.beliefs(points, context)
        gap = mean[1] - mean[0]
        variance = INFLATION * difference_variance(covariance, 0, 1)
        least = max(LEAST_GAP, np.sqrt(2.0) * self._surrogate.noise(context))
        keeps_overall = gap < least and gap < 0.84 * np.sqrt(variance)
        return [arms[0], arms[2] if keeps_overall else arms[1]]

    def _without_baseline(self, overall: int | None) -> Finalists:
        """Return the best and the runner-up: of each context if there is room, else over all."""
        size = len(self._contexts)
        each = self._trials // (2 * size) >= FEWEST_ROUNDS
        arms = [self._best_two(context) for context in range(size)] if each else []
        return Finalists(overall, tuple(arms))

    def _best_two(self, context: int) -> tuple[int, ...]:
        """Return the runner-up and the best of a context; a policy's choice is the best."""
        settings = self._usable([context])
        order = np.argsort(self._costs(settings)[context], kind="stable") if settings else []
        best = self.best([context])
        others = [settings[place] for place in order if settings[place] != best]
        return (others[0], best) if best is not None and others else ()


@dataclass(frozen=True)
class Rounds:
    """The rounds that were measured, oldest first: the trial of each arm in each context."""

    rounds: tuple[dict[tuple[int, int], Row], ...]

    @classmethod
    def of(cls, observations: Observations) -> Rounds:
        """Return the rounds of a journal: a new one begins where an arm comes again, or after other trials."""
        rows = sorted(observations.rows, key=lambda row: row.trial.number)
        rounds: list[dict[tuple[int, int], Row]] = []
        before = None
        for row in rows:
            if row.trial.phase == CONFIRM:
                cell = row.setting, row.context
                if before != CONFIRM or cell in rounds[-1]:
                    rounds.append({})
                rounds[-1][cell] = row
            before = row.trial.phase
        return cls(tuple(rounds))

    def after(self, number: int) -> list[dict[tuple[int, int], Row]]:
        """Return the rounds that began after a trial."""
        return [cells for cells in self.rounds if min(row.trial.number for row in cells.values()) > number]

    def count(self, setting: int, context: int) -> int:
        """Return how often an arm was measured in a context."""
        return sum((setting, context) in measured for measured in self.rounds)

    def failed(self, setting: int) -> bool:
        """Return whether a setting failed in a round."""
        return any(not row.worked for measured in self.rounds for (arm, _), row in measured.items() if arm == setting)


class Confirmation:
    """Plans rounds until ``allowance`` trials are used; ``ended`` then says why there is none."""

    def __init__(
        self,
        question: Question,
        trials: Sequence[Trial],
        allowance: int,
        seed: int,
        allowed: Allowed,
        own: Sequence[Action | None] = (),
    ) -> None:
        ordered = sorted(trials, key=lambda trial: trial.number)
        last = max((trial.number for trial in ordered if trial.phase != CONFIRM), default=0)
        search = Observations(question, [trial for trial in ordered if trial.number <= last])
        self._question, self._allowance, self._seed = question, allowance, seed
        self._allowed, self._own, self._last = allowed, own, last
        self._surrogate = Surrogate(search, seed=seed) if search.measured() else None
        self._observations = Observations(question, [trial for trial in ordered if trial.number <= last])
        self.finalists = Finalists(None, ())
        self.ended = ""
        self.add(trial for trial in ordered if trial.number > last)

    def add(self, trials: Iterable[Trial]) -> None:
        """Take in closed trials. Another finalist takes the place of one that failed."""
        for trial in trials:
            self._observations.add(trial)
        if self._surrogate is not None:
            nomination = Nomination(self._surrogate, self._observations, self._allowance, self._allowed, self._own)
            self.finalists = nomination.finalists()

    def next_round(self) -> list[tuple[Action, Context]]:
        """Return what is missing of the current round in its random order; empty when there is none."""
        cells = [(arm, context) for context, arms in enumerate(self.finalists.arms) for arm in arms]
        if not cells:
            self.ended = "nothing looks better than your settings"
            return []
        rounds = Rounds.of(self._observations)
        now = rounds.after(self._last)
        missing = [cell for cell in cells if now and cell not in now[-1]]
        number = len(now)
        if not missing:
            self.ended = self._reason(rounds, cells, sum(map(len, now)))
            missing = [] if self.ended else cells
            number += 1
        order = sorted(missing, key=lambda cell: unit(self._seed, "confirm", number, *cell))
        actions, contexts = self._observations.actions, self._question.contexts.contexts
        return [(actions[arm], contexts[context]) for arm, context in order]

    def _reason(self, rounds: Rounds, cells: Sequence[tuple[int, int]], used: int) -> str:
        """Return why there is no further round."""
        fewest = min(rounds.count(*cell) for cell in cells)
        if fewest and self._observations.repeats(rounds=True).is_exact:
            return "the metric is deterministic"
        if fewest >= MOST_ROUNDS:
            return f"{MOST_ROUNDS} rounds were measured"
        return "its share of the trials is used up" if used + len(cells) > self._allowance else ""
