"""Optuna's samplers by name, and what is particular about each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, NSGAIISampler
    from optuna.trial import FrozenTrial

FEWEST_SOURCES = 10
SEEDS = 2**32
"""A generator's seed is below this."""

SamplerName: TypeAlias = Literal["tpe", "gp", "cmaes", "nsgaii", "qmc", "random"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What an agent must know of a sampler.

    Attributes:
        packages: what must be installed beside Optuna.
        several: whether it searches for several objectives' Pareto set; else it gets the reward.
        limited: whether it can be told of constraints.
        rehearses: whether it keeps a state that is not in the trials: then the past must be gone through again
            step by step, and telling it the trials is not enough.
        dear: whether a proposal costs so much that none is thrown away lightly.
        lists: whether it lists the values of ranges that have steps.
        options: which of the agent's settings it takes, and what it calls them.
    """

    packages: tuple[str, ...] = ()
    several: bool = False
    limited: bool = False
    rehearses: bool = False
    dear: bool = False
    lists: bool = False
    options: tuple[tuple[str, str], ...] = ()


TRAITS: dict[SamplerName, Traits] = {
    "tpe": Traits(several=True, limited=True, options=(("startup_trials", "n_startup_trials"),)),
    "gp": Traits(
        ("torch", "scipy"), limited=True, dear=True, lists=True, options=(("startup_trials", "n_startup_trials"),)
    ),
    "cmaes": Traits(
        ("cmaes",), rehearses=True, options=(("startup_trials", "n_startup_trials"), ("population", "popsize"))
    ),
    "nsgaii": Traits(several=True, limited=True, rehearses=True, options=(("population", "population_size"),)),
    "qmc": Traits(("scipy",)),
    "random": Traits(),
}


class Sampler:
    """One of Optuna's samplers for a whole run, with a seed of its own for every trial.

    So the same trial gets the same draw after a crash. What the sampler would otherwise find out from the trials
    each time, the space that it searches, it is given.

    Args:
        name: which sampler.
        seed: of what belongs to the run and not to a trial.
        options: its own settings.
        space: the distributions of all knobs.
        width: how many values a measurement has.

    Attributes:
        optuna: the sampler itself.
    """

    def __init__(
        self, name: SamplerName, seed: int, options: dict[str, Any], space: dict[str, BaseDistribution], width: int
    ) -> None:
        from optuna import samplers
        from optuna.distributions import CategoricalDistribution

        kinds: dict[SamplerName, type[BaseSampler]] = {
            "tpe": samplers.TPESampler,
            "gp": samplers.GPSampler,
            "cmaes": samplers.CmaEsSampler,
            "nsgaii": _counting(samplers.NSGAIISampler),
        }
        own: dict[SamplerName, dict[str, Any]] = {
            "gp": {"warn_independent_sampling": False},
            "cmaes": {"warn_independent_sampling": False},
        }
        if name == "cmaes":
            space = {key: one for key, one in space.items() if not isinstance(one, CategoricalDistribution)}
        together = name != "tpe" or width == 1  # else each knob is sampled by itself
        self._name: SamplerName = name
        self._kind = _knowing(kinds[name], space if together else {})
        self._settings = {"seed": seed, **own.get(name, {}), **options}
        self.optuna: BaseSampler
        self._make()

    def _make(self, **more: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental": that is our choice, not our users'
            self.optuna = self._kind(**self._settings, **more)
        self._generators = list(_generators(self.optuna))

    def begin_from(self, trials: list[FrozenTrial]) -> None:
        """Begin where measured trials of another run, best first, lead; they are about to be told to the study."""
        if self._name == "cmaes" and trials:
            # It begins around the best tenth, and wants to have one.
            self._make(source_trials=trials * math.ceil(FEWEST_SOURCES / len(trials)))
        elif self._name == "nsgaii":
            for trial in trials[: getattr(self.optuna, "population_size", None)]:  # they are its first generation
                trial.system_attrs[f"{self._kind.__name__}:generation"] = 0
                self.optuna.count(trial)  # type: ignore[attr-defined]

    def reseed(self, seed: int) -> None:
        """From here on the draws are those of one trial."""
        for index, generator in enumerate(self._generators):
            generator.seed((seed + index) % SEEDS)


def _generators(sampler: BaseSampler) -> Iterator[np.random.RandomState]:
    """The generators that a sampler and those inside it draw from.

    Optuna can only seed them when a sampler is made, which costs more than many a proposal.
    """
    from optuna.samplers import BaseSampler

    for value in vars(sampler).values():
        if isinstance(value, BaseSampler):
            yield from _generators(value)
        elif isinstance(rng := getattr(value, "rng", None), np.random.RandomState):
            yield rng


def _counting(kind: type[NSGAIISampler]) -> Any:
    """The sampler, made to count its generation as it goes instead of over all trials at every proposal."""
    from optuna.trial import TrialState

    class Counting(kind):
        """Knows how many measured members its newest generation has."""

        newest = 0
        members = 0

        def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
            """The newest generation, or the next one if that is complete."""
            known = trial.system_attrs.get(self._get_generation_key())
            if known is not None:
                return known
            generation = self.newest + (self.members >= (self.population_size or 0))
            study._storage.set_trial_system_attr(trial._trial_id, self._get_generation_key(), generation)
            return generation

        def after_trial(
            self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
        ) -> None:
            """A measured trial is a member of its generation."""
            super().after_trial(study, trial, state, values)
            if state == TrialState.COMPLETE:
                self.count(trial)

        def count(self, trial: FrozenTrial) -> None:
            """Count a measured trial in."""
            generation = trial.system_attrs.get(self._get_generation_key(), -1)
            if generation > self.newest:
                self.newest, self.members = generation, 1
            elif generation == self.newest:
                self.members += 1

    return Counting


def _knowing(kind: type[BaseSampler], space: dict[str, BaseDistribution]) -> Any:
    class Knowing(kind):
        """Knows the space that it searches."""

        def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
            del study, trial
            return space

    return Knowing
