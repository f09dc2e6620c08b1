"""Optuna's samplers as an agent, through Optuna's public ask and tell.

Each context has a study of its own, in memory. The journal is the truth: a resumed run builds the studies from the
recorded trials. Each ask has a fresh sampler, seeded by the trial's number, so that at one slot a resumed run proposes
what the uninterrupted one would have. Samplers that keep their state in the trials that they proposed (``cmaes``,
``nsgaii``, ``qmc``) are asked again for every recorded trial.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from threadpoolctl import threadpool_limits

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer
from tunegym.tuning.agents.base import WARM_START, AgentConfig, BaseAgent, warm_start_problems
from tunegym.tuning.model.scenario import Experiment, aims
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial as StudyTrial

SEEDS = 2**32
MOST_REFUSED = 8
"""After so many proposals for one trial that are refused or were tried, a setting is drawn instead."""
MOST_LISTED = 10_000
"""``gp`` lists the values of an integer range, so it gets a continuous one if there are more values."""

SamplerName: TypeAlias = Literal["tpe", "gp", "cmaes", "nsgaii", "qmc", "random"]

CLASSES = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
}
OPTIONS = {
    "tpe": {"startup_trials": "n_startup_trials"},
    "gp": {"startup_trials": "n_startup_trials"},
    "cmaes": {"startup_trials": "n_startup_trials", "population": "popsize"},
    "nsgaii": {"population": "population_size"},
}
"""The agent's settings that a sampler takes, with Optuna's names."""
PACKAGES = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}
"""Packages that a sampler needs besides Optuna."""
SEVERAL = ("tpe", "gp", "nsgaii")
"""Samplers that take several objectives and limits; the others get the reward."""
STATEFUL = ("cmaes", "nsgaii", "qmc")
"""Samplers that know only the trials that they proposed."""
WARM = ("tpe", "gp")
"""Samplers that learn from trials that they didn't propose."""


@dataclass(frozen=True, kw_only=True)
class OptunaConfig(AgentConfig):
    """Settings of ``optuna``; Optuna has defaults for those that are None."""

    sampler: SamplerName = "tpe"
    startup_trials: int | None = None
    population: int | None = None
    warm_start: str | None = None


class OptunaAgent(BaseAgent):
    """Proposes with one of Optuna's samplers. Use it for a sampler that you know.

    While the cache is on, a setting is tried once in each context: the cache would answer a repeated one. A proposal
    that was tried, or that a constraint refuses, is told as failed, and the sampler is asked again.
    """

    Config: ClassVar[type[AgentConfig]] = OptunaConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        import optuna

        self._optuna: Any = optuna
        self._name: SamplerName = self.config.sampler
        self._objectives = env.objectives if self._name in SEVERAL else ()
        self._aims = aims(self._objectives)
        self._distributions = {name: self._distribution(knob) for name, knob in env.space.knobs.items()}
        self._studies: dict[bytes, Study] = {}
        self._asked: dict[int, StudyTrial] = {}
        self._tried: set[bytes] = set()
        self._exhausted: set[bytes] = set()

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
        problems = [*_sampler_problems(config, experiment), *_setting_problems(config)]
        if config.warm_start is None or config.sampler in WARM:
            return [*problems, *warm_start_problems(config.warm_start, scenario_dir)]
        what = f"the sampler {config.sampler} learns nothing from trials of another run"
        allowed, hint = f"a sampler that does: {', '.join(WARM)}", "remove warm_start, or choose another sampler"
        return [*problems, Problem(WARM_START, what, f'"{config.warm_start}"', allowed, hint)]

    # proposals ----------------------------------------------------------------------------------------

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """The sampler's proposal, or a new setting if it repeats itself; None when everything was tried."""
        number, context = observation.number, observation.context
        if self.starts_first(observation):
            action = self.first_action()
            self._asked[number] = self._run(None, action, context)
            return action
        action = self._propose(number, context)
        if len(self._exhausted) == self.env.experiment.env_params.size:
            self.ended = "every setting was tried"
            return None
        return action

    def _propose(self, number: int, context: Context) -> dict[str, Scalar]:
        refused: list[StudyTrial] = []
        trial = self._ask(context, number, 0)
        while not self._is_new(self._action(trial), context) and len(refused) < MOST_REFUSED:
            refused.append(trial)  # it stays open for now, so that the sampler looks elsewhere
            trial = self._ask(context, number, len(refused))
        action = self._action(trial)
        if not self._is_new(action, context):
            action = self._draw(number, context) or action
        self._asked[number] = self._run(trial, action, context)
        for refused_trial in refused:
            self._fail(refused_trial)
        return action

    def _ask(self, context: Context, number: int, attempt: int) -> StudyTrial:
        study = self._study(context)
        # Small matrices are many times slower on several threads of a busy machine.
        with threadpool_limits(1) if self._name == "gp" else nullcontext(), _quiet():
            study.sampler = self._sampler(number, attempt)
            return study.ask(self._distributions)

    def _sampler(self, number: int, attempt: int) -> BaseSampler:
        settings = {theirs: getattr(self.config, ours) for ours, theirs in OPTIONS.get(self._name, {}).items()}
        options = {option: value for option, value in settings.items() if value is not None}
        names = (number, attempt)
        if self._name == "qmc":  # the seed is that of the whole sequence: the study counts its points
            names, options = (), {"scramble": True}
        seed = integer(self.seed, SEEDS, "optuna", self._name, *names)
        return getattr(self._optuna.samplers, CLASSES[self._name])(seed=seed, **options)

    def _is_new(self, action: Action, context: Context) -> bool:
        """Whether the constraints allow a setting, and the cache has no answer for it."""
        experiment = self.env.experiment
        is_tried = experiment.cache and exact_key(context, action) in self._tried
        return not is_tried and experiment.allows(action, context)

    def _draw(self, number: int, context: Context) -> dict[str, Scalar] | None:
        """A random new setting; a tried one where there is no new one, and None where none is allowed."""
        experiment = self.env.experiment
        draw = partial(experiment.draw_allowed, context, self.seed, "optuna", number)
        action = draw(lambda action: self._is_new(action, context))
        if action is None and experiment.is_enumerable and experiment.cache:
            self._exhausted.add(exact_key(context))
        return action or draw()

    def _run(self, proposed: StudyTrial | None, action: Action, context: Context) -> StudyTrial:
        """The study's trial of what runs, which may not be what the sampler proposed."""
        self._tried.add(exact_key(context, action))
        params = self._params(action)
        if proposed is not None and proposed.params == params:
            return proposed
        if proposed is not None:
            self._fail(proposed)
        study = self._study(context)
        study.enqueue_trial(params)
        return study.ask(self._distributions)

    # feedback -----------------------------------------------------------------------------------------

    def update_policy(self, feedback: Feedback) -> None:
        """Tell the study how a trial ended, be it of this session or an earlier one."""
        number, context = feedback.trial_index, feedback.context
        if number not in self._asked and self._name in STATEFUL:
            self._propose(number, context)
        self._tell(self._run(self._asked.pop(number, None), feedback.action, context), feedback.trial)

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Tell another run's trials. They were not tried here: their settings may come up again."""
        for trial in trials:
            self._tell(self._run(None, trial.action, trial.context), trial)
        self._tried.clear()

    def _tell(self, trial: StudyTrial, closed: Trial) -> None:
        """Tell values of which more is better. A penalty is no value: without a measurement there is none."""
        if closed.measured:
            metrics = closed.metrics
            for objective in self._objectives:
                if objective.limit is not None:
                    trial.set_constraint(objective.metric, objective.excess(metrics))
            trial.study.tell(trial, [aim.value(metrics) for aim in self._aims] or closed.reward)
        elif closed.status == "pruned":
            sign = -1.0 if self.env.experiment.judged.goal == "min" else 1.0
            for step, value in closed.reports:
                if step >= 0:  # Optuna's steps are
                    trial.report(sign * value, step)
            trial.study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._fail(trial)

    def _fail(self, trial: StudyTrial) -> None:
        trial.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    # Optuna's values ----------------------------------------------------------------------------------

    def _study(self, context: Context) -> Study:
        key = exact_key(context)
        if key not in self._studies:
            with _quiet():
                self._studies[key] = self._optuna.create_study(directions=["maximize"] * max(1, len(self._aims)))
        return self._studies[key]

    def _distribution(self, knob: Knob) -> BaseDistribution:
        """Values of a list or of a range with a step go by position: Optuna takes 1, 1.0 and true for the same."""
        distributions = self._optuna.distributions
        if isinstance(knob, Choice):
            return distributions.CategoricalDistribution(range(knob.size))
        low, high = (knob.low, knob.high) if knob.size is None else (0, knob.size - 1)
        is_float = knob.dtype == "float" and knob.size is None
        if is_float or (self._name == "gp" and high - low >= MOST_LISTED):
            return distributions.FloatDistribution(float(low), float(high), log=knob.log)
        return distributions.IntDistribution(int(low), int(high), log=knob.log)

    def _params(self, action: Action) -> dict[str, Any]:
        return {name: _param(knob, action[name]) for name, knob in self.env.space.knobs.items()}

    def _action(self, trial: StudyTrial) -> dict[str, Scalar]:
        params = trial.params
        return {name: _value(knob, params[name]) for name, knob in self.env.space.knobs.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide that a study is new, a sampler experimental, and a knob drawn at random: no concern of the user."""
    from optuna import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(verbosity)


def _param(knob: Knob, value: Any) -> Any:
    return value if knob.size is None else knob.index(value)


def _value(knob: Knob, param: Any) -> Scalar:
    if isinstance(knob, Range) and knob.step is None:
        return knob.snap(param)
    return knob.at(round(param))


# configuration ----------------------------------------------------------------------------------------


def _sampler_problems(config: OptunaConfig, experiment: Experiment) -> Iterator[Problem]:
    where, name = "agent_config.sampler", config.sampler
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            hint = f"pip install 'tunegym[{'gp' if name == 'gp' else 'optuna'}]'"
            yield Problem(where, f"the sampler {name} needs the package {package}", found=f'"{name}"', hint=hint)
    for param, drawn in experiment.env_params.params.items():
        if isinstance(drawn.domain, Range):
            what = "optuna has a study for each context, and a range never gives the same context twice"
            allowed, hint = "env_params that are lists", 'write agent = "bayes", or make it a list'
            yield Problem(f"env_params.{param}", what, drawn.domain.describe(), allowed, hint)
    if name == "cmaes" and all(isinstance(knob, Choice) for knob in experiment.space.knobs.values()):
        what, allowed = "cmaes moves through ranges, and every knob here is a list", '"cmaes" with at least one range'
        yield Problem(where, what, found=f'"{name}"', allowed=allowed, hint='write sampler = "tpe"')


def _setting_problems(config: OptunaConfig) -> Iterator[Problem]:
    options = OPTIONS.get(config.sampler, {})
    for setting, least in {"startup_trials": 1, "population": 2}.items():
        where, value = f"agent_config.{setting}", getattr(config, setting)
        if value is not None and setting not in options:
            what, allowed = f"the sampler {config.sampler} has no {setting}", ", ".join(options) or "none of these"
            yield Problem(where, what, str(value), allowed, f"remove {setting}, or choose another sampler")
        elif value is not None and value < least:
            allowed, hint = f"an integer of at least {least}", f"write {setting} = {least} or more"
            yield Problem(where, "the value is out of bounds", str(value), allowed, hint)
