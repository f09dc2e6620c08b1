"""One search, by us and by Optuna alone: what was tried, and the CPU time that it took."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import tunegym
from benchmarks.search.problems import Action, Knobs, Problem
from benchmarks.trial_overhead.scenarios import folder
from tunegym.app import run as app_run
from tunegym.app.run import Watch
from tunegym.tuning.agents.optuna import NumberedDraws, StudyProposer
from tunegym.tuning.model.trial import Trial

if TYPE_CHECKING:
    import optuna

SAMPLERS = ("tpe", "gp", "cmaes", "nsgaii", "qmc", "random")

Tried = list[tuple[Action, float]]


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a search.

    Attributes:
        loop: from the first trial to the last; of Optuna ``create_study`` and ``study.optimize``.
        proposing: of the loop, what the sampler took to propose and to be told.
        start: what comes before and after the loop: checking the scenario, folders, locks, fingerprints.
        reports: of the files that are written at the end of a run, for which Optuna has no counterpart.
    """

    loop: float
    proposing: float = 0.0
    start: float = 0.0
    reports: float = 0.0


@dataclass(frozen=True)
class Search:
    """What a search tried, in its order, and what it cost."""

    tried: Tried
    spent: Spent


class Measuring:
    """What both search: it counts its calls, so that both see the same noise."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._calls = 0

    def begin(self, problem: Problem) -> None:
        """A new search."""
        self._problem, self._calls = problem, 0

    def __call__(self, action: Action) -> float:
        assert self._problem is not None
        self._calls += 1
        return self._problem.measure(action, self._calls)


measuring = Measuring()

CALLABLE = f"""
from {__name__} import measuring

def measure(**knobs):
    return {{"value": measuring(knobs)}}
"""


class _Tried(Watch):
    def __init__(self) -> None:
        self.tried: Tried = []

    def trial_closed(self, trial: Trial) -> None:
        self.tried.append((trial.action, trial.metrics["value"]))


def ours(problem: Problem, sampler: str, seed: int, trials: int, cached: bool = True) -> Search:
    """The whole of ``tunegym.run``: scenario, journal, CSV files, cache.

    With ``cached`` a setting that comes up again is answered with its first measurement, as is our default; without,
    it is measured again, as Optuna does.
    """
    measuring.begin(problem)
    watch = _Tried()
    scenario = _scenario(problem, sampler, seed, trials, cached)
    output = folder()
    proposing, loop, reports = Sum(), Sum(), Sum()
    with (
        timed(proposing, (StudyProposer, "propose"), (StudyProposer, "tell"), (NumberedDraws, "propose")),
        timed(loop, (app_run, "_run_agent")),
        timed(reports, (app_run, "report_run")),
    ):
        begun = time.process_time()
        code = tunegym.run(scenario, output=output, watch=watch)
        spent = time.process_time() - begun
    if code != 0 or len(watch.tried) != trials:
        raise RuntimeError(f"{problem.name} with {sampler}: {len(watch.tried)} trials, exit code {code}")
    start = spent - loop.seconds - reports.seconds
    return Search(watch.tried, Spent(loop.seconds, proposing.seconds, start, reports.seconds))


@cache
def _home() -> str:
    """The scenario's folder, with the callable; one for all searches of a process."""
    place = folder()
    (place / "bench_search.py").write_text(CALLABLE, encoding="utf-8")
    return str(place)


def _scenario(problem: Problem, sampler: str, seed: int, trials: int, cached: bool) -> dict[str, Any]:
    return {
        "name": "search",
        "seed": seed,
        "scenario_dir": _home(),
        "experiments": [
            {
                "name": "search",
                "workload": "python",
                "isolate": False,
                "agent": "optuna",
                "agent_config": {"sampler": sampler},
                "agent_steps": trials,
                "confirm": "off",
                "cache": "on" if cached else "off",
                "agent_metrics": ["value"],
                "objectives": [{"metric": "value", "goal": problem.goal}],
                "cmd_args": {"callable": "bench_search:measure", **problem.knobs},
            }
        ],
    }


def bare(problem: Problem, sampler: str, seed: int, trials: int) -> Search:
    """``study.optimize`` with Optuna's own memory and defaults."""
    import optuna

    measuring.begin(problem)
    tried: Tried = []

    def objective(trial: optuna.Trial) -> float:
        action = _suggested(trial, problem.knobs)
        value = measuring(action)
        tried.append((action, value))
        return value

    begun = time.process_time()
    direction = "minimize" if problem.goal == "min" else "maximize"
    study = optuna.create_study(direction=direction, sampler=_sampler(sampler, seed))
    study.optimize(objective, n_trials=trials)
    return Search(tried, Spent(time.process_time() - begun))


def _suggested(trial: optuna.Trial, knobs: Knobs) -> dict[str, Any]:
    action: dict[str, Any] = {}
    for name, knob in knobs.items():
        if isinstance(knob, list):
            action[name] = trial.suggest_categorical(name, knob)
        elif isinstance(knob["low"], int):
            action[name] = trial.suggest_int(name, knob["low"], knob["high"])
        else:
            action[name] = trial.suggest_float(name, knob["low"], knob["high"])
    return action


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers

    made: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": partial(samplers.TPESampler, seed=seed),
        "gp": partial(samplers.GPSampler, seed=seed),
        "cmaes": partial(samplers.CmaEsSampler, seed=seed),
        "nsgaii": partial(samplers.NSGAIISampler, seed=seed),
        "qmc": partial(samplers.QMCSampler, scramble=True, seed=seed),  # as ours is
        "random": partial(samplers.RandomSampler, seed=seed),
    }
    return made[name]()


def prepare(sampler: str) -> None:
    """Quiet libraries, and for both one thread for the small matrices of ``gp``."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if sampler == "gp":
        import torch

        torch.set_num_threads(1)


@dataclass
class Sum:
    """A sum of CPU seconds."""

    seconds: float = 0.0


@contextmanager
def timed(total: Sum, *places: tuple[Any, str]) -> Iterator[None]:
    """Sum up the CPU time of functions for a while."""
    before = [(place, name, getattr(place, name)) for place, name in places]
    for place, name, function in before:
        setattr(place, name, _adding(total, function))
    try:
        yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def _adding(total: Sum, function: Callable[..., Any]) -> Callable[..., Any]:
    def adding(*arguments: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            total.seconds += time.process_time() - begun

    return adding
