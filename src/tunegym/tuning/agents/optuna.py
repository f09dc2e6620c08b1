"""Optuna's samplers as an agent: ask the study for a trial, run it, tell how it ended.

The study lives in memory. The journal is the truth: a resumed run builds the study from the recorded trials. A sampler
is reseeded for every trial from the trial's number, so that at one slot a resumed run proposes what the uninterrupted
one would have (except ``gp``, whose fits start where the last one ended). Samplers whose state is not in the trials
(``cmaes``, ``nsgaii``) are asked again for every recorded trial.

With env_params, ``tpe`` pools the contexts: see ``PooledProposer``.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import WARM_START, AgentConfig, BaseAgent, warm_start_problems
from tunegym.tuning.agents.history import count_cells
from tunegym.tuning.agents.pool import Pool
from tunegym.tuning.model.scenario import Experiment, Objective, aims
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Space
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState
    from optuna.trial import Trial as StudyTrial

logger = logging.getLogger(__name__)

PATIENCE = 3
"""This many trials of a run may repeat a measured or failed setting; after that only new settings are tried."""
AGAIN = 8
"""The sampler may propose this often for one trial before the agent looks for a new setting itself."""
ATTEMPTS = 100
"""Draws to find a new setting; after that the grid is searched, unless it is larger than ``LARGEST_GRID``."""
LARGEST_GRID = 100_000
MOST_LISTED = 10_000
"""A sampler that lists the values of a stepped range gets a continuous range if there are more values."""
FEWEST_SOURCES = 10
SEEDS = 2**32
GOOD_SHARE, MOST_GOOD = 0.1, 25
"""Share of trials, and the largest number, that count as good where contexts are pooled: as in Optuna."""
UNMEASURED = "measured"
"""The constraint that a trial without a measurement violates."""

SamplerName: TypeAlias = Literal["tpe", "gp", "cmaes", "nsgaii", "qmc", "random"]

PACKAGES = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}
"""Packages that a sampler needs besides Optuna."""
SEVERAL = ("tpe", "nsgaii")
"""Samplers that search the Pareto set of several objectives; the others get the reward."""
LIMITED = ("tpe", "gp", "nsgaii")
"""Samplers that can be told of constraints."""
STATEFUL = ("cmaes", "nsgaii")
"""Samplers with state that is not in the trials; a resume asks them again for every recorded trial."""
NUMBERED = ("random", "qmc")
"""Samplers that learn nothing: they draw by the trial's number."""
POOLING = ("tpe", *NUMBERED)
"""Samplers that handle env_params."""
OPTIONS = {
    "tpe": {"startup_trials": "n_startup_trials"},
    "gp": {"startup_trials": "n_startup_trials"},
    "cmaes": {"startup_trials": "n_startup_trials", "population": "popsize"},
    "nsgaii": {"population": "population_size"},
}
"""The agent's settings that a sampler takes, with Optuna's names."""


@dataclass(frozen=True, kw_only=True)
class OptunaConfig(AgentConfig):
    """Settings of ``optuna``; Optuna has defaults for those that are None."""

    sampler: SamplerName = "tpe"
    startup_trials: int | None = None
    population: int | None = None
    warm_start: str | None = None


class OptunaAgent(BaseAgent):
    """Proposes with one of Optuna's samplers."""

    Config: ClassVar[type[AgentConfig]] = OptunaConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        name: SamplerName = self.config.sampler
        self._stateful = name in STATEFUL
        self._draws = NumberedDraws(name, env.space, self.seed)
        self._study: StudyProposer | PooledProposer | None = None
        params = env.experiment.env_params.params
        if name not in NUMBERED:
            given = {theirs: getattr(self.config, ours) for ours, theirs in OPTIONS[name].items()}
            given = {theirs: value for theirs, value in given.items() if value is not None}
            if params:
                self._study = PooledProposer(given, env.space, params, self.seed)
            else:
                self._study = StudyProposer(name, given, env.space, env.objectives, self.seed)
        self._everything = count_cells(env.space, params)
        self._chosen: set[int] = set()
        self._tried: Counter[bytes] = Counter()
        self._wasted = 0
        self._served = False

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Optuna must be installed."""
        del space
        if importlib.util.find_spec("optuna") is None:
            what = "the agent optuna needs the package optuna"
            return Problem("agent", what, found='"optuna"', hint="pip install 'tunegym[optuna]'")
        return None

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse a sampler that can't work here, settings that it doesn't take, and a bad warm start."""
        config: OptunaConfig = experiment.agent_config
        found = [*_sampler_problems(config, experiment), *_setting_problems(config)]
        if config.warm_start is not None and config.sampler in NUMBERED:
            what, hint = f"the sampler {config.sampler} learns nothing", "remove warm_start, or choose another sampler"
            return [*found, Problem(WARM_START, what, f'"{config.warm_start}"', hint=hint)]
        return [*found, *warm_start_problems(config.warm_start, scenario_dir)]

    # proposals ----------------------------------------------------------------------------------------

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """The sampler's proposal, or a new setting if it repeats itself; None when everything was tried."""
        if self._served and self._everything is not None and len(self._tried) >= self._everything:
            self.ended = "every setting was tried"  # the cache would answer every further trial
            return None
        action = self._propose(observation.number, observation.context)
        self._chosen.add(observation.number)
        self._tried[exact_key(observation.context, action)] += 1
        return action

    def _propose(self, number: int, context: Context) -> dict[str, Scalar]:
        if number == 1 and self.config.start_action == "first":
            return self._replace(number, context, self.first_action())
        action = (self._study or self._draws).propose(number, context)
        if self._wasted < PATIENCE or exact_key(context, action) not in self._tried:
            return action
        for attempt in range(1, AGAIN):
            another = None if self._study is None else self._study.again(number, context, attempt)
            if another is None:
                break
            if exact_key(context, another) not in self._tried:
                return another
        return self._replace(number, context, self._untried(number, context) or action)

    def _replace(self, number: int, context: Context, action: dict[str, Scalar]) -> dict[str, Scalar]:
        if self._study is not None:
            self._study.replace(number, context, action)
        return action

    def _untried(self, number: int, context: Context) -> dict[str, Scalar] | None:
        """A setting that is new in the context, from the whole space; None if there is none."""
        space = self.env.space
        size = space.size
        if self._everything is not None and len(self._tried) >= self._everything:
            return None
        for attempt in range(ATTEMPTS):
            drawn = _drawn(space, self.seed, "elsewhere", number * ATTEMPTS + attempt)
            if exact_key(context, drawn) not in self._tried:
                return drawn
        if size is None or size > LARGEST_GRID:
            return None
        start = integer(self.seed, size, "optuna", "elsewhere", number)
        points = (space.point((start + index) % size) for index in range(size))
        return next((point for point in points if exact_key(context, point) not in self._tried), None)

    # feedback -----------------------------------------------------------------------------------------

    def update_policy(self, feedback: Feedback) -> None:
        """Tell the sampler how a trial ended, be it of this session or an earlier one."""
        context: Any = feedback.context
        number, key = feedback.trial_index, exact_key(context, feedback.action)
        if number in self._chosen:
            self._chosen.remove(number)
            if self._study is not None:
                self._study.tell(feedback)
        else:
            if self._study is not None and self._stateful:  # ask as the earlier session did; what ran is what counts
                if exact_key(context, self._propose(number, context)) != key:
                    self._study.replace(number, context, feedback.action)
                self._study.tell(feedback)
            elif self._study is not None:
                self._study.add(feedback)
            self._tried[key] += 1
        self._served = feedback.cached
        # Without a cache a setting may well be measured again; one that failed before is not worth another trial.
        failed_again = feedback.status != "measured" and self._tried[key] > 1
        self._wasted += feedback.cached or failed_again

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Tell another run's trials. They were not tried here: their settings may come up again."""
        told = []
        for one in trials:
            shown = Observation(one.number, one.context, one.metrics, one.measured)
            told.append(
                Feedback(
                    one.number, one.reward, shown, shown, one.action, done=False, status=one.status, context=one.context
                )
            )
        if self._study is not None:  # configuration refuses it otherwise
            self._study.warm_up(told)


# proposers --------------------------------------------------------------------------------------------


def _drawn(space: Space, seed: int, name: str, number: int) -> dict[str, Scalar]:
    """A random setting, which depends on seed, name and number alone."""
    return {knob: one.from_unit(unit(seed, "optuna", name, knob, number)) for knob, one in space.knobs.items()}


class NumberedDraws:
    """Draws by the trial's number alone, at random or from a Sobol sequence; learns nothing and needs no study.

    The draw of a trial is the same at any width and after any crash.
    """

    def __init__(self, name: SamplerName, space: Space, seed: int) -> None:
        self._name = name
        self._space = space
        self._seed = seed
        self._next = 1
        self._sequence: Any = None

    def propose(self, number: int, context: Context) -> dict[str, Scalar]:
        """The draw that belongs to the number: for ``qmc`` a point of a scrambled Sobol sequence, from 1."""
        del context
        if self._name == "random":
            return _drawn(self._space, self._seed, "random", number)
        if self._sequence is None or number < self._next:
            from scipy.stats import qmc

            generator = np.random.default_rng(integer(self._seed, SEEDS, "optuna", "qmc"))
            self._sequence = qmc.Sobol(len(self._space.knobs), scramble=True, rng=generator)
            self._next = 1
        if number > self._next:
            self._sequence.fast_forward(number - self._next)
        self._next = number + 1
        point = [min(float(one), 1.0 - 2.0**-53) for one in self._sequence.random(1)[0]]
        return {name: knob.from_unit(one) for (name, knob), one in zip(self._space.knobs.items(), point, strict=True)}


class StudyProposer:
    """Proposes with a sampler over a study in memory.

    For every trial call ``propose``, perhaps ``again`` or ``replace``, then ``tell``; ``add`` a trial that was not
    proposed here.

    A surrogate is told of a failure, not of a value: failed, timed-out and infeasible trials are ``PRUNED`` and violate
    a constraint without bounds, so that ``tpe`` ranks them behind all others. It would learn nothing from ``FAIL``,
    which only cancelled trials are. Larger is better in every value.
    """

    def __init__(
        self, name: SamplerName, options: dict[str, Any], space: Space, objectives: Sequence[Objective], seed: int
    ) -> None:
        import optuna

        self._name: SamplerName = name
        self._states = optuna.trial.TrialState
        self._options = options
        self._space = space
        self._seed = seed
        self._distributions = {key: _distribution(knob, lists=name == "gp") for key, knob in space.knobs.items()}
        goals = aims(objectives)
        # A sampler that takes no limits, or not this many objectives, gets the reward, in which all of them count.
        able = name in LIMITED and (name in SEVERAL or len(goals) == 1)
        self._aims = goals if able else ()
        self._limits = [(one, one.limit) for one in objectives if able and one.limit is not None]
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # only while it would announce its new study
        try:
            self._study = optuna.create_study(
                directions=[optuna.study.StudyDirection.MAXIMIZE] * max(1, len(self._aims))
            )
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._set_sampler()
        self._asked: dict[int, StudyTrial] = {}
        self._warned: set[type[Exception]] = set()

    def _set_sampler(self, **more: Any) -> None:
        from optuna import samplers

        kind = getattr(
            samplers, {"tpe": "TPE", "gp": "GP", "cmaes": "CmaEs", "nsgaii": "NSGAII"}[self._name] + "Sampler"
        )
        quiet = {"warn_independent_sampling": False} if self._name in ("gp", "cmaes") else {}
        seed = integer(self._seed, SEEDS, "optuna", self._name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental": our choice, not the user's
            self._study.sampler = kind(seed=seed, **quiet, **self._options, **more)

    def propose(self, number: int, context: Context) -> dict[str, Scalar]:
        """The sampler's proposal with the seed that belongs to the number; a random draw if the sampler fails."""
        del context
        return self._ask(number, integer(self._seed, SEEDS, "optuna", self._name, number))

    def again(self, number: int, context: Context, attempt: int) -> dict[str, Scalar] | None:
        """Another proposal for the same trial, from attempt 1 on; None if that is too expensive."""
        del context
        if self._name == "gp":
            return None
        self._drop(number)
        return self._ask(number, integer(self._seed, SEEDS, "optuna", self._name, f"again {attempt}", number))

    def _ask(self, number: int, seed: int) -> dict[str, Scalar]:
        for index, generator in enumerate(_generators(self._study.sampler)):
            generator.seed((seed + index) % SEEDS)
        known = len(self._study.get_trials(deepcopy=False))
        try:
            # Small matrices are many times slower on several threads of a busy machine.
            with threadpool_limits(1) if self._name == "gp" else nullcontext(), np.errstate(all="ignore"):
                trial = self._study.ask(self._distributions)
        except Exception as error:  # numerics of the sampler, for which some ranges are too large: no reason to stop
            self._study.tell(known, state=self._states.FAIL)
            _warn(self._warned, self._name, number, error)
            action = _drawn(self._space, self._seed, "random", number)
            self.replace(number, {}, action)
            return action
        self._asked[number] = trial
        params = trial.params
        action = _action(self._space, params)
        # What runs, and what a resume tells, is snapped to the step: 0.3, not 0.30000000000000004.
        for name, value in _params(self._space, action).items():
            if value != params[name]:
                distribution = self._distributions[name]
                internal = distribution.to_internal_repr(value)
                trial.storage.set_trial_param(trial._trial_id, name, internal, distribution)
        return action

    def replace(self, number: int, context: Context, action: Action) -> None:
        """The trial runs with another action than the proposed one, or without a proposal."""
        del context
        if number in self._asked:
            self._drop(number)
        self._study.enqueue_trial(_params(self._space, action))
        self._asked[number] = self._study.ask(self._distributions)

    def _drop(self, number: int) -> None:
        self._study.tell(self._asked.pop(number), state=self._states.FAIL)

    def tell(self, feedback: Feedback) -> None:
        """How a proposed trial ended."""
        trial = self._asked.pop(feedback.trial_index)
        state, values, constraints = self._result(feedback)
        for key, value in constraints.items():
            trial.set_constraint(key, value)
        self._study.tell(trial, values, state=state)

    def add(self, feedback: Feedback) -> None:
        """A trial of this run's past."""
        self._study.add_trial(self._frozen(feedback))

    def warm_up(self, feedbacks: Sequence[Feedback]) -> None:
        """All trials of another run: ``cmaes`` starts around the best, ``nsgaii`` with them as its first generation."""
        trials = [self._frozen(feedback) for feedback in feedbacks]
        best = sorted(zip(feedbacks, trials, strict=True), key=lambda pair: pair[0].value, reverse=True)
        measured = [trial for feedback, trial in best if feedback.status == "measured"]
        if self._name == "cmaes" and measured:
            # It starts around the best tenth, so there must be ten.
            self._set_sampler(source_trials=measured * math.ceil(FEWEST_SOURCES / len(measured)))
        elif self._name == "nsgaii":
            sampler: Any = self._study.sampler
            for trial in measured[: sampler.population_size]:
                trial.system_attrs[sampler._get_generation_key()] = 0
        self._study.add_trials(trials)

    def _frozen(self, feedback: Feedback) -> FrozenTrial:
        from optuna.trial import create_trial

        state, values, constraints = self._result(feedback)
        params = _params(self._space, feedback.action)
        trial = create_trial(state=state, values=values, params=params, distributions=self._distributions)
        for key, value in constraints.items():
            trial.set_constraint(key, value)
        return trial

    def _result(self, feedback: Feedback) -> tuple[TrialState, list[float] | None, dict[str, float]]:
        """State, values and constraints of a closed trial."""
        states = self._states
        if feedback.status == "measured":
            metrics = feedback.observation.metrics
            values = [one.value(metrics) for one in self._aims] or [feedback.value]
            exceeded = {one.metric: one.sign * (limit - metrics[one.metric]) for one, limit in self._limits}
            return states.COMPLETE, values, exceeded
        told = self._name in LIMITED and feedback.status not in ("cancelled", "pruned")
        state = states.FAIL if feedback.status == "cancelled" else states.PRUNED
        return state, None, {UNMEASURED: math.inf} if told else {}


class PooledProposer:
    """Optuna's multivariate TPE over the trials of all contexts, for the context that acts.

    A proposal rests on the trials in the acting context and on a drawn part of the others: the more a trial counts, the
    more often it is drawn. Weights would not do: Optuna's kernels are as narrow as their number is large, however
    little each weighs. The better trials are the upper tenth, by rank within their own contexts. Settings are drawn at
    random until all trials together weigh as much as the start-up trials in the acting context would. Failed, refused
    and pruned trials rank behind all measured ones of their context, and running ones count as bad, so that parallel
    trials differ. The estimators are Optuna's; the trials stay in arrays, so that a proposal costs no more than one of
    Optuna's own. Several objectives and limits count by the reward.
    """

    def __init__(self, options: dict[str, Any], space: Space, params: Mapping[str, EnvParam], seed: int) -> None:
        from optuna.samplers import TPESampler

        self._space = space
        self._seed = seed
        self._sampler: Any = TPESampler(**options)
        self._distributions = {name: _distribution(knob, lists=False) for name, knob in space.knobs.items()}
        self._free = {name: one for name, one in self._distributions.items() if not one.single()}
        self._pool = Pool(params, space, len(self._free))
        self._running: dict[int, tuple[Context, np.ndarray]] = {}
        self._warned: set[type[Exception]] = set()

    def propose(self, number: int, context: Context) -> dict[str, Scalar]:
        """A proposal with the seed that belongs to the number; a random draw at the start, or if the sampler fails."""
        return self._ask(number, context, number)

    def again(self, number: int, context: Context, attempt: int) -> dict[str, Scalar]:
        """Another proposal for the same trial, from attempt 1 on."""
        self._running.pop(number)
        return self._ask(number, context, f"again {attempt}", number)

    def replace(self, number: int, context: Context, action: Action) -> None:
        """The trial runs with another action than the proposed one, or without a proposal."""
        self._running[number] = context, self._row(action)

    def tell(self, feedback: Feedback) -> None:
        """How a proposed trial ended."""
        self._running.pop(feedback.trial_index)
        self.add(feedback)

    def add(self, feedback: Feedback) -> None:
        """A trial of this run's past."""
        if feedback.status != "cancelled" and not feedback.cached:
            context: Any = feedback.context
            value = feedback.value if feedback.status == "measured" else -math.inf
            self._pool.add(context, feedback.action, self._row(feedback.action), value)

    def warm_up(self, feedbacks: Sequence[Feedback]) -> None:
        """All trials of another run."""
        for feedback in feedbacks:
            self.add(feedback)

    def _ask(self, number: int, context: Context, *names: str | int) -> dict[str, Scalar]:
        action = _drawn(self._space, self._seed, "random", number)
        weights = self._pool.weights(context)
        if weights.sum() >= self._sampler._n_startup_trials and self._free:
            generator = np.random.RandomState(integer(self._seed, SEEDS, "optuna", "pooled", *names))
            try:
                with np.errstate(all="ignore"):
                    found = self._sample(weights, generator)
                drawn = {name: self._free[name].to_external_repr(value) for name, value in found.items()}
                action = _action(self._space, {**_params(self._space, action), **drawn})
            except Exception as error:  # numerics of the sampler, as above
                _warn(self._warned, "tpe", number, error)
        self.replace(number, context, action)
        return action

    def _sample(self, weights: np.ndarray, generator: np.random.RandomState) -> dict[str, float]:
        pool, sampler = self._pool, self._sampler
        kept = generator.random_sample(len(weights)) < weights
        rows = pool.rows[kept]
        order = np.argsort(-pool.ranks()[kept], kind="stable")
        good, bad = np.split(order, [min(math.ceil(GOOD_SHARE * len(order)), MOST_GOOD)])
        running = [row for _, row in self._running.values()]
        below = self._estimate(rows[np.sort(good)])
        above = self._estimate(np.vstack([rows[np.sort(bad)], *running]))
        samples = below.sample(generator, sampler._n_ei_candidates)
        best = int(np.argmax(sampler._compute_acquisition_func(samples, below, above)))
        return {name: column[best].item() for name, column in samples.items()}

    def _estimate(self, rows: np.ndarray) -> Any:
        columns = dict(zip(self._free, rows.T, strict=True))
        return self._sampler._parzen_estimator_cls(columns, self._free, self._sampler._parzen_estimator_parameters)

    def _row(self, action: Action) -> np.ndarray:
        params = _params(self._space, action)
        return np.array([one.to_internal_repr(params[name]) for name, one in self._free.items()])


def _params(space: Space, action: Action) -> dict[str, Any]:
    """An action in Optuna's values."""
    return {
        name: knob.index(action[name]) if isinstance(knob, Choice) else action[name]
        for name, knob in space.knobs.items()
    }


def _action(space: Space, params: Mapping[str, Any]) -> dict[str, Scalar]:
    return {
        name: knob.at(params[name]) if isinstance(knob, Choice) else knob.snap(params[name])
        for name, knob in space.knobs.items()
    }


def _warn(warned: set[type[Exception]], sampler: str, number: int, error: Exception) -> None:
    if type(error) not in warned:
        warned.add(type(error))
        what = f"the sampler {sampler} failed at trial {number}: {type(error).__name__}: {error}"
        logger.warning("%s; it gets a random setting instead, and so does every trial where it fails", what)


def _distribution(knob: Knob, lists: bool) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(knob, Choice):
        # By position: Optuna compares choices with ==, for which 1, 1.0 and true are the same.
        return CategoricalDistribution(range(knob.size))
    step = knob.step or (1 if knob.dtype == "int" else None)
    if lists and step is not None and (knob.high - knob.low) / step > MOST_LISTED:
        return FloatDistribution(float(knob.low), float(knob.high), log=knob.log)
    if knob.dtype == "int":
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log, step=int(knob.step or 1))
    return FloatDistribution(float(knob.low), float(knob.high), log=knob.log, step=knob.step)


def _generators(sampler: BaseSampler) -> Iterator[np.random.RandomState]:
    """The generators of a sampler and of those inside it. A new sampler would have to read all trials again."""
    from optuna.samplers import BaseSampler

    for value in vars(sampler).values():
        if isinstance(value, BaseSampler):
            yield from _generators(value)
        elif isinstance(rng := getattr(value, "rng", None), np.random.RandomState):
            yield rng


# configuration ----------------------------------------------------------------------------------------


def _sampler_problems(config: OptunaConfig, experiment: Experiment) -> Iterator[Problem]:
    where, name = "agent_config.sampler", config.sampler
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            hint = f"pip install 'tunegym[{'gp' if name == 'gp' else 'optuna'}]'"
            yield Problem(where, f"the sampler {name} needs the package {package}", found=f'"{name}"', hint=hint)
    if experiment.env_params and name not in POOLING:
        what = f"the sampler {name} can't learn from several contexts at once"
        allowed, hint = f"one of {', '.join(POOLING)}", 'write sampler = "tpe", or remove env_params'
        yield Problem(where, what, found=f'"{name}"', allowed=allowed, hint=hint)
    if name == "cmaes" and all(isinstance(knob, Choice) for knob in experiment.space.knobs.values()):
        what, allowed = "cmaes moves through ranges, and every knob here is a list", '"cmaes" with at least one range'
        yield Problem(where, what, found='"cmaes"', allowed=allowed, hint='write sampler = "tpe"')


def _setting_problems(config: OptunaConfig) -> Iterator[Problem]:
    takes = OPTIONS.get(config.sampler, {})
    for setting, least in {"startup_trials": 1, "population": 2}.items():
        where, value = f"agent_config.{setting}", getattr(config, setting)
        if value is not None and setting not in takes:
            what, allowed = f"the sampler {config.sampler} has no {setting}", ", ".join(takes) or "none of these"
            yield Problem(where, what, str(value), allowed, f"remove {setting}, or choose another sampler")
        elif value is not None and value < least:
            allowed, hint = f"an integer of at least {least}", f"write {setting} = {least} or more"
            yield Problem(where, "the value is out of bounds", str(value), allowed, hint)
