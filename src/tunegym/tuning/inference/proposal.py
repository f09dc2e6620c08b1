"""What to measure next: random settings first, then what teaches most about the best setting of every context.

``Search`` is told trials in the journal's order and asked for a setting by number. The answer depends on the seed, the
number, and the trials that were told and are in flight. The fit behind it belongs to a fixed number of trials, so that
it may be computed while trials run, and again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.special import ndtr

from tunegym.core.randomness import integer
from tunegym.tuning.inference.confirmation import Nomination
from tunegym.tuning.inference.coordinates import Allowed, Flags, Floats, Indices
from tunegym.tuning.inference.observations import Observations, Question
from tunegym.tuning.inference.process import one_thread
from tunegym.tuning.inference.surrogate import Pending, Surrogate, Theta
from tunegym.tuning.model.space import Choice, Knob, Range
from tunegym.tuning.model.trial import REPEAT, SEARCH, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key

BASELINES = 2
"""Baseline trials of the search in each context: only repeats tell noise from a setting that stands out."""
REPEATS = 0.1
"""Share of a context's trials that measure a setting again; more cost the search, fewer leave the noise unknown."""
NOMINAL = 100
"""The trials of a search that only time bounds."""
RANDOM, NEIGHBOURS, LEADERS, SCREENED = 200, 40, 8, 100
"""Random candidates, candidates near each leader, leaders of each context, and candidates that are compared in full."""
GROWTH = 1.15
"""Hyperparameters are fitted again when there are this many times as many trials."""
SPARSE = 3
"""With several objectives, every third candidate is looked at: a joint draw costs the cube of their number."""
ATTEMPTS = 5
"""Draws for each random candidate that constraints may refuse."""
BAD = 5.0
"""Added to the cost, on the model's scale, of a setting that will probably fail in another context."""
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
NODES, WEIGHTS = NODES[WEIGHTS > 1e-7], WEIGHTS[WEIGHTS > 1e-7]

LAST = 2
"""Trials for each context at the end of a search that measure what would be confirmed."""

Drawn = Callable[[Context, int], Action]
"""The random setting that belongs to a trial's number."""


@dataclass(frozen=True)
class Proposal:
    """A setting to measure; its phase says whether it is new or measured again."""

    action: Action
    phase: str = SEARCH


class Search:
    """Proposes settings, and learns from closed trials. ``budget`` is the number of the search's last trial."""

    def __init__(self, question: Question, budget: int | None, seed: int, allowed: Allowed, drawn: Drawn) -> None:
        self.question = question
        self.observations = Observations(question)
        self._closed: list[Trial] = []
        self._budget = budget or NOMINAL
        self._first = max(6, min(20, self._budget // 8))
        self._seed, self._allowed, self._drawn = seed, allowed, drawn
        self._points = self._all_points()

    def add(self, trial: Trial) -> None:
        """Learn from a closed trial."""
        self._closed.append(trial)
        self.observations.add(trial)

    @property
    def closed(self) -> int:
        """How many trials were told."""
        return len(self._closed)

    # the schedule of fits -----------------------------------------------------------------------------

    def fit_size(self, closed: int) -> int:
        """Return how many trials the fit rests on that a proposal after ``closed`` trials uses."""
        size, following = 0, self._first - 1
        while following < closed:
            size, following = following, int(np.ceil(GROWTH * following))
        return size

    def fit(self, size: int) -> Theta | None:
        """Return the hyperparameters after the first ``size`` closed trials; None if none of them was measured."""
        observations = Observations(self.question, self._closed[:size])
        return Surrogate(observations, seed=self._seed).theta if observations.measured() else None

    # proposals ----------------------------------------------------------------------------------------

    @one_thread
    def propose(
        self, number: int, context: Context, in_flight: Sequence[tuple[Action, Context]], fit: Fit
    ) -> Proposal | None:
        """Return what trial ``number`` measures under ``context``; None if every setting was.

        ``fit`` gives hyperparameters by ``fit_size``; where it gives none, they are fitted at once.
        """
        index = self.question.contexts.index(context)
        observations = self.observations
        pending = [(observations.setting(action), self.question.contexts.index(drawn)) for action, drawn in in_flight]
        draw = np.random.default_rng(integer(self._seed, 2**63, "bayes", number))
        tried = _Tried(observations, index, pending)
        if self._closed and tried.wants_baseline(self._budget):
            assert self.question.baseline is not None
            return Proposal(self.question.baseline, REPEAT if tried.knows_baseline else SEARCH)
        measured = observations.measured()
        if len(self._closed) < self._first or len(measured) < 4:
            return Proposal(self._drawn(context, number))
        again = tried.repeat()
        if again is not None:
            return Proposal(observations.actions[again], REPEAT)
        exact = observations.repeats().is_exact
        if exact and self._is_exhausted(pending):
            return None
        surrogate = Surrogate(observations, fit(self.fit_size(self.closed)), seed=self._seed)
        last = self._last(surrogate, number, index, tried)
        if last is not None:
            return Proposal(observations.actions[last])
        candidates = _Candidates(surrogate, index, pending, self._allowed, exact=exact)
        fresh = self._fresh(context, candidates.leaders[index], draw) or [self._drawn(context, number)]
        action = candidates.best(fresh, draw)
        known = observations.find(action)
        return Proposal(action, REPEAT if known in tried.worked and not exact else SEARCH)

    def _last(self, surrogate: Surrogate, number: int, context: int, tried: _Tried) -> int | None:
        """Return what would be confirmed in a context, near the end of the search, if it was never measured there.

        A setting without the changes that don't matter is a guess of the model until then.
        """
        if self._budget - number >= LAST * len(self.question.contexts):
            return None
        best = Nomination(surrogate, self.observations, 0, self._allowed).best([context])
        return None if best in tried.settings else best

    def _is_exhausted(self, pending: Pending) -> bool:
        """Return whether every setting of a small space was tried in every context."""
        if self._points is None:
            return False
        contexts = self.question.contexts.contexts
        possible = {
            (self.observations.find(action), index)
            for index, context in enumerate(contexts)
            for action in self._points
            if self._allowed(action, context)
        }
        return possible <= {*pending, *((row.setting, row.context) for row in self.observations.rows)}

    def _all_points(self) -> list[Action] | None:
        """Return every setting of a small space."""
        size = self.question.space.size
        if size is None or size > RANDOM + NEIGHBOURS * LEADERS:
            return None
        return [self.question.space.point(place) for place in range(size)]

    def _fresh(self, context: Context, leaders: Indices, draw: np.random.Generator) -> list[Action]:
        """Return candidates: every setting of a small space, else random ones and neighbours of leaders."""
        if self._points is not None:
            return [action for action in self._points if self._allowed(action, context)]
        near = [
            neighbour
            for leader in leaders
            for neighbour in self._neighbours(self.observations.actions[leader], draw)
            if self._allowed(neighbour, context)
        ]
        return self._random_actions(context, draw) + near

    def _random_actions(self, context: Context, draw: np.random.Generator) -> list[Action]:
        """Return random settings that the constraints allow."""
        knobs = self.question.space.knobs
        actions: list[Action] = []
        for units in draw.random((ATTEMPTS * RANDOM, len(knobs))):
            action = {name: knob.from_unit(unit) for (name, knob), unit in zip(knobs.items(), units, strict=True)}
            if self._allowed(action, context):
                actions.append(action)
            if len(actions) == RANDOM:
                break
        return actions

    def _neighbours(self, action: Action, draw: np.random.Generator) -> list[Action]:
        """Return settings that differ in one knob, or two, half of the time by a small step."""
        names = list(action)
        neighbours: list[Action] = []
        for _ in range(NEIGHBOURS):
            neighbour = dict(action)
            changed = draw.choice(len(names), size=min(len(names), 1 + (draw.random() < 0.4)), replace=False)
            for place in changed:
                name = names[place]
                neighbour[name] = _moved(self.question.space.knobs[name], action[name], draw)
            neighbours.append(neighbour)
        return neighbours


Fit = Callable[[int], Theta | None]


def _moved(knob: Knob, value: Scalar, draw: np.random.Generator) -> Scalar:
    """Return another value of a knob: half of the time a near one."""
    near = draw.random() < 0.5
    if isinstance(knob, Range):
        if near:
            return knob.at_position(knob.position(float(value)) + 0.1 * draw.standard_normal())
        return knob.from_unit(draw.random())
    return _moved_choice(knob, value, near, draw)


def _moved_choice(knob: Choice, value: Scalar, near: bool, draw: np.random.Generator) -> Scalar:
    index = knob.index(value) or 0
    if near:
        step = 1 if draw.random() < 0.5 else -1
        return knob.values[min(max(index + step, 0), knob.size - 1)]
    return knob.values[int(draw.integers(knob.size))]


class _Tried:
    """What was measured, and is in flight, in one context."""

    def __init__(self, observations: Observations, context: int, pending: Pending) -> None:
        self._observations, self._context = observations, context
        self._rows = [row for row in observations.rows if row.context == context]
        self._busy = [setting for setting, where in pending if where == context]
        self._measured = [row for row in self._rows if row.worked]
        self.worked = {row.setting for row in self._measured}
        self.settings = {row.setting for row in self._rows} | set(self._busy)
        self.knows_baseline = observations.baseline in self.worked

    def wants_baseline(self, budget: int) -> bool:
        """Return whether the baseline comes next: first of all, and once more after three trials."""
        baseline = self._observations.baseline
        if baseline is None:
            return False
        seen = sum(row.setting == baseline for row in self._rows) + self._busy.count(baseline)
        again = self._allows_repeats and len(self._rows) >= 3 * seen and len(self._observations.rows) < budget // 2
        return not seen or (seen < BASELINES and again)

    @property
    def _allows_repeats(self) -> bool:
        return not self._observations.repeats().is_exact

    def repeat(self) -> int | None:
        """Return the best setting that was measured once, as long as too few were measured again."""
        settings = [row.setting for row in self._measured]
        singles = [row for row in self._measured if settings.count(row.setting) == 1 and row.setting not in self._busy]
        repeats = len(settings) - len(set(settings)) + len(set(self._busy) & set(settings))
        enough = repeats >= max(3, REPEATS * len(settings)) or len(settings) < 3 * (repeats + 1)
        if not singles or enough or not self._allows_repeats:
            return None
        scale = self._observations.scale
        return min(singles, key=lambda row: scale.cost(scale.raw(row.trial))).setting


class _Candidates:
    """Candidates for a trial in one context, compared by what measuring them is worth."""

    def __init__(self, surrogate: Surrogate, context: int, pending: Pending, allowed: Allowed, *, exact: bool) -> None:
        self._surrogate, self._context, self._allowed = surrogate, context, allowed
        self._posterior = surrogate.with_pending(pending)
        self._observations = surrogate.observations
        busy = {setting for setting, where in pending if where == context}
        measured = {row.setting for row in self._observations.measured() if row.context == context}
        self._spent = busy | measured if exact else busy
        self.leaders = self._leading()

    def _leading(self) -> list[Indices]:
        """Return for every context the settings with the best posterior means, and the baseline."""
        observations = self._observations
        points = self._surrogate.points(observations.actions)
        fails = self._surrogate.works(points) < 0.5
        means = self._posterior.means(self._posterior.reach(points)) + 3.0 * fails
        best = [self._first_allowed(np.argsort(row, kind="stable"), context) for context, row in enumerate(means)]
        if observations.baseline is None:
            return best
        return [np.union1d(leaders, [observations.baseline]) for leaders in best]

    def _first_allowed(self, order: Indices, context: int) -> Indices:
        """Return the first settings of an order that the constraints allow in a context; if none is, the first."""
        allowed = (index for index in order if self._permits(index, context))
        first = np.array(list(islice(allowed, LEADERS)), dtype=np.intp)
        return first if len(first) else order[:LEADERS]

    def _permits(self, setting: int, context: int) -> bool:
        contexts = self._observations.question.contexts.contexts
        return self._allowed(self._observations.actions[setting], contexts[context])

    def best(self, fresh: Sequence[Action], draw: np.random.Generator) -> Action:
        """Return the candidate that is worth most."""
        everyone = np.unique(np.concatenate(self.leaders))
        pool = {exact_key(self._observations.actions[index]): self._observations.actions[index] for index in everyone}
        pool |= {exact_key(action): action for action in fresh}
        actions = list(pool.values())
        closed = self._spent | {leader for leader in everyone if not self._permits(leader, self._context)}
        open_ = np.array([self._observations.find(action) not in closed for action in actions])
        points = self._surrogate.points(actions)
        if self._surrogate.aims:
            sparse = np.flatnonzero(open_ if open_.any() else ~open_)[::SPARSE]
            return actions[sparse[self._sampled(points[sparse], draw)]]
        return actions[self._by_gradient(points, open_, len(everyone))]

    def _sampled(self, points: Floats, draw: np.random.Generator) -> int:
        """Return the best candidate of one draw from each aim's posterior, by random weights: all of a Pareto set."""
        context, surrogate = self._context, self._surrogate
        weights = draw.dirichlet(np.ones(len(surrogate.aims)))
        chance = surrogate.success(points, context)
        worst = np.full(len(points), -np.inf)
        for weight, posterior in zip(weights, surrogate.aims, strict=True):
            mean = posterior.means(posterior.reach(points))[context]
            covariance = posterior.covariance(points, context)
            function = draw.multivariate_normal(mean, covariance, method="eigh")
            worst = np.maximum(worst, weight * (function - function.min()))
        return int(np.argmin(worst + BAD * (1.0 - chance)))

    def _by_gradient(self, points: Floats, open_: Flags, leading: int) -> int:
        """Return the candidate with the greatest knowledge gradient.

        It says how much better the best posterior means of all contexts become by one more sample. The first
        ``leading`` points are the leaders.
        """
        posterior, context = self._posterior, self._context
        within = posterior.reach(points)
        means, cross = posterior.means(within), posterior.cross(within, context)
        seen = posterior.solve(cross)
        variance = np.maximum(posterior.prior(context) - (seen**2).sum(axis=0), 1e-10)
        chance = np.where(open_, self._surrogate.success(points, context), 0.0)
        places = [np.flatnonzero(np.isin(np.unique(np.concatenate(self.leaders)), own)) for own in self.leaders]
        target = means[context, places[context]].min()
        improvement = _expected_improvement(target - means[context], np.sqrt(variance))
        screened = np.argsort(-improvement * chance, kind="stable")[:SCREENED]
        chosen = np.union1d(screened, np.arange(leading))
        solved = posterior.solve_transposed(seen[:, chosen])
        root = np.sqrt(variance[chosen] + posterior.shape.noise[context])
        alike = posterior.kernel(points[:leading], points[chosen])
        fails = self._surrogate.works(points[chosen]) < 0.5
        gain, weights = np.zeros(len(chosen)), self._weights(means[:, :leading])
        for other, own in enumerate(places):
            between, same = posterior.shape.between[other, context], float(other == context)
            reach = posterior.cross(within[:, own], other).T @ solved
            moves = between * alike[own] + same - reach
            own_mean = means[other, chosen] + BAD * fails[other] * (1.0 - same)
            own_move = between + same - (posterior.cross(within[:, chosen], other) * solved).sum(axis=0)
            level = means[other, own]
            gain += weights[other] * _expected_fall(level, moves / root, own_mean, own_move / root)
        gain *= chance[chosen]
        if gain.max() > 1e-9:
            return int(chosen[np.argmax(gain)])
        unknown = variance[chosen] * chance[chosen]
        return int(chosen[np.argmax(unknown if unknown.any() else variance[chosen] * open_[chosen])])

    def _weights(self, means: Floats) -> Floats:
        """Return how much each context counts; of a robust goal, by the gains of the leader over all."""
        question = self._observations.question
        every = range(len(means))
        leader = int(np.argmin(question.contexts.weights @ means))
        return question.parts(-means[:, leader], every) * len(means)


def _expected_improvement(below: Floats, deviation: Floats) -> Floats:
    """Return by how much normal variables are expected to fall below a target, ``below`` under their means."""
    standard = below / deviation
    density = np.exp(-0.5 * standard * standard) / np.sqrt(2.0 * np.pi)
    return deviation * (standard * ndtr(standard) + density)


def _expected_fall(level: Floats, moves: Floats, own_mean: Floats, own_move: Floats) -> Floats:
    """Return by how much the lowest mean is expected to fall when each candidate is measured.

    ``level`` are the leaders' means and ``moves`` how far each sample moves them; the candidate's own come last.
    """
    lowest = (level[:, None, None] + moves[:, :, None] * NODES).min(axis=0)
    lowest = np.minimum(lowest, own_mean[:, None] + own_move[:, None] * NODES)
    return np.minimum(level.min(), own_mean) - lowest @ WEIGHTS
