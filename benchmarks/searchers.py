"""Searches that ask and tell: ``bayes``, and the libraries beside it, on families whose truth is known."""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from benchmarks.families.family import Family
from tunegym.tuning.inference.answer import Analysis
from tunegym.tuning.inference.coordinates import ContextIndex, is_ordered
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.inference.proposal import Search
from tunegym.tuning.inference.surrogate import Theta
from tunegym.tuning.model.scenario import Judged
from tunegym.tuning.model.space import Choice, Knob
from tunegym.tuning.model.trial import SEARCH, Failed, Measured, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key

if TYPE_CHECKING:
    import optuna


class Searcher(Protocol):
    """A search over a family. Calls alternate: ``ask``, ``tell``, ``ask``, ``tell``, ..."""

    def ask(self, number: int, context: Context) -> Action:
        """The setting of trial ``number``, from 1, in a context."""
        ...

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        """The trial's measurement; None if it failed."""
        ...

    def recommend(self, context: Context) -> Action:
        """The setting that a user would take in a context."""
        ...


def search(searcher: Searcher, family: Family, seed: int, trials: int, first: int = 1) -> None:
    """Measure proposals for the numbers from ``first`` to ``trials``, in the contexts that a run draws for them."""
    params = family.env_params(seed)
    noise = np.random.default_rng([seed, 1])
    for number in range(first, trials + 1):
        context = params.context(number)
        action = searcher.ask(number, context)
        searcher.tell(number, context, action, family.measure(action, context, noise, number / family.trials))


def mean_regret(searcher: Searcher, family: Family) -> float:
    """The true regret of what is recommended, in the mean over contexts by their weights."""
    return math.fsum(
        weight * family.regret(searcher.recommend(context), context) for context, weight in family.contexts
    )


METRIC = "metric"


def question_of(family: Family, *, with_baseline: bool) -> Question:
    """What an experiment on a family asks."""
    return Question(
        space=family.space,
        params=family.env_params(0),
        judged=Judged(metric=METRIC, goal=family.goal),
        baseline=family.baseline if with_baseline else None,
    )


def closed_trial(number: int, context: Context, action: Action, metric: float | None, phase: str = SEARCH) -> Trial:
    """A trial as an experiment records it."""
    outcome = Failed("it failed") if metric is None else Measured(({METRIC: metric},))
    return Trial(number, context, action, outcome, reward=0.0, duration_s=0.0, phase=phase)


class Bayes:
    """The search of the agent ``bayes``, one trial at a time. ``budget`` is its number of trials."""

    def __init__(self, family: Family, seed: int, budget: int, *, with_baseline: bool = False) -> None:
        self.question = question_of(family, with_baseline=with_baseline)
        self.trials: list[Trial] = []
        self._space, self._seed = family.space, seed
        self._search = Search(self.question, budget, seed, allow, self._draw)
        self._fits: dict[int, Theta | None] = {}
        self._phases: dict[int, str] = {}

    def ask(self, number: int, context: Context) -> Action:
        proposal = self._search.propose(number, context, [], self._fit)
        assert proposal is not None
        self._phases[number] = proposal.phase
        return proposal.action

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        self.add(closed_trial(number, context, action, metric, self._phases.pop(number)))

    def add(self, trial: Trial) -> None:
        """Learn from a trial that was not asked for."""
        self.trials.append(trial)
        self._search.add(trial)

    def recommend(self, context: Context) -> Action:
        return self._answers[self.question.contexts.index(context)]

    @cached_property
    def _answers(self) -> list[Action]:
        """What the answer recommends in each context, after the last trial."""
        answer = Analysis(self.question, self.trials).answer()
        verdicts = answer.per_context or (answer.overall,)
        chosen = [verdict.chosen or answer.overall.chosen for verdict in verdicts]
        return [self._fallback if candidate is None else candidate.action for candidate in chosen]

    @property
    def _fallback(self) -> Action:
        """Any setting, where nothing worked."""
        return self.trials[0].action

    def _draw(self, context: Context, number: int) -> Action:
        del context
        return self._space.draw(self._seed, "bayes", number)

    def _fit(self, size: int) -> Theta | None:
        if size not in self._fits:
            self._fits[size] = self._search.fit(size)
        return self._fits[size]


def allow(action: Action, context: Context) -> bool:
    """Families have no constraints."""
    del action, context
    return True


class Observed:
    """What was measured of each setting, by context. The best mean is what users of the libraries take."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.contexts = ContextIndex(family.env_params(0))
        self._metrics: dict[tuple[int, bytes], list[float]] = {}
        self._actions: dict[bytes, Action] = {}

    def add(self, context: Context, action: Action, metric: float | None) -> None:
        """Take in a measurement."""
        key = exact_key(action)
        self._actions[key] = action
        if metric is not None:
            self._metrics.setdefault((self.contexts.index(context), key), []).append(metric)

    def best(self, context: Context) -> tuple[Action, float]:
        """The setting with the best mean in a context, and that mean; the baseline if nothing worked there."""
        means = {
            key: fmean(metrics)
            for (index, key), metrics in self._metrics.items()
            if index == self.contexts.index(context)
        }
        if not means:
            return self._family.baseline, math.nan
        key = (min if self._family.goal == "min" else max)(means, key=means.__getitem__)
        return self._actions[key], means[key]


class RandomSearch:
    """Uniform settings."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._draw = np.random.default_rng([seed, 2])
        self.observed = Observed(family)

    def ask(self, number: int, context: Context) -> Action:
        return {name: knob.from_unit(self._draw.random()) for name, knob in self._family.knobs.items()}

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        self.observed.add(context, action, metric)

    def recommend(self, context: Context) -> Action:
        return self.observed.best(context)[0]


# Optuna ------------------------------------------------------------------------------------------------


class OptunaKnob:
    """A knob as Optuna searches it: candidates with an order by their rank, others as categories."""

    def __init__(self, knob: Knob) -> None:
        from optuna import distributions

        self._candidates: tuple[Scalar, ...] = ()
        self.distribution: optuna.distributions.BaseDistribution
        if not isinstance(knob, Choice):
            kind: Any = distributions.IntDistribution if knob.dtype == "int" else distributions.FloatDistribution
            steps = {} if knob.step is None else {"step": knob.step}
            self.distribution = kind(knob.low, knob.high, log=knob.log, **steps)
        elif is_ordered(knob):
            self._candidates = tuple(sorted(knob.values, key=float))
            self.distribution = distributions.IntDistribution(0, knob.size - 1)
        else:
            self.distribution = distributions.CategoricalDistribution(knob.values)

    def native(self, value: Any) -> Scalar:
        """The knob's value for Optuna's."""
        return self._candidates[value] if self._candidates else value

    def internal(self, value: Scalar) -> Scalar:
        """Optuna's value for the knob's."""
        return self._candidates.index(value) if self._candidates else value


class StudyPerContext:
    """Optuna by itself, with its defaults: a study in each context."""

    def __init__(self, family: Family, seed: int, sampler: str) -> None:
        quiet_optuna()
        self._seed, self._sampler = seed, sampler
        self._direction: Literal["minimize", "maximize"] = "minimize" if family.goal == "min" else "maximize"
        self._knobs = {name: OptunaKnob(knob) for name, knob in family.knobs.items()}
        self._studies: dict[int, optuna.Study] = {}
        self._asked: dict[int, optuna.Trial] = {}
        self.observed = Observed(family)

    def ask(self, number: int, context: Context) -> Action:
        distributions = {name: knob.distribution for name, knob in self._knobs.items()}
        self._asked[number] = asked = self._study(context).ask(distributions)
        return {name: knob.native(asked.params[name]) for name, knob in self._knobs.items()}

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        from optuna.trial import TrialState

        state = TrialState.FAIL if metric is None else TrialState.COMPLETE
        self._study(context).tell(self._asked.pop(number), metric, state=state)
        self.observed.add(context, action, metric)

    def recommend(self, context: Context) -> Action:
        return self.observed.best(context)[0]

    def learn(self, context: Context, action: Action, metric: float | None) -> None:
        """Take in a trial that was not asked for."""
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=TrialState.FAIL if metric is None else TrialState.COMPLETE,
            value=metric,
            params={name: knob.internal(action[name]) for name, knob in self._knobs.items()},
            distributions={name: knob.distribution for name, knob in self._knobs.items()},
        )
        self._study(context).add_trial(trial)
        self.observed.add(context, action, metric)

    def _study(self, context: Context) -> optuna.Study:
        import optuna

        index = self.observed.contexts.index(context)
        if index not in self._studies:
            kinds = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
            sampler = kinds[self._sampler](seed=1000 * self._seed + index)
            self._studies[index] = optuna.create_study(direction=self._direction, sampler=sampler)
        return self._studies[index]


def quiet_optuna() -> None:
    """Silence Optuna, and give the small matrices of its GP one thread."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
