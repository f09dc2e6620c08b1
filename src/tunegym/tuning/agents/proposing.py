"""What proposes on behalf of the ``optuna`` agent: a study, or the trial's number alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.distributions import distributions, to_action, to_params
from tunegym.tuning.agents.samplers import SEEDS, TRAITS, Sampler, SamplerName
from tunegym.tuning.agents.telling import Telling
from tunegym.tuning.model.objective import Objective
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Feedback
from tunegym.tuning.model.values import Action, Scalar

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as StudyTrial

    from tunegym.tuning.agents.study_memory import StudyMemory


logger = logging.getLogger(__name__)


class Proposer(Protocol):
    """Proposes actions by trial number, and is told how trials ended.

    For every trial ``propose``, perhaps ``replace``, then ``tell``; a trial that it never proposed is ``add``-ed.
    """

    def propose(self, number: int) -> dict[str, Scalar]:
        """The action for a trial."""
        ...

    def again(self, number: int, attempt: int) -> dict[str, Scalar] | None:
        """Another proposal for the same trial, from attempt 1 on; None if there is no other."""
        ...

    def replace(self, number: int, action: Action) -> None:
        """The trial runs with another action than it was proposed, or with one that was never proposed."""
        ...

    def tell(self, feedback: Feedback) -> None:
        """How a trial ended that was proposed or replaced."""
        ...

    def add(self, feedback: Feedback) -> None:
        """A trial of this run's past."""
        ...

    def warm(self, feedbacks: Sequence[Feedback]) -> None:
        """All trials of another run, before anything else."""
        ...


class ByNumber:
    """Draws by the trial's number alone: at random, or from a low-discrepancy sequence. Learns nothing.

    What Optuna's own ``random`` and ``qmc`` samplers draw, without a study: the draw of a trial is the same at any
    width and after any crash, and costs next to nothing.
    """

    def __init__(self, name: SamplerName, space: Space, seed: int) -> None:
        self._name = name
        self._space = space
        self._seed = seed
        self._next = 1
        self._sequence: Any = None

    def propose(self, number: int) -> dict[str, Scalar]:
        """The draw that belongs to the number."""
        knobs = self._space.knobs
        if self._name == "random":
            units = [unit(self._seed, "optuna", "random", name, number) for name in knobs]
        else:
            units = self._point(number)
        return {name: knob.from_unit(one) for (name, knob), one in zip(knobs.items(), units, strict=True)}

    def _point(self, number: int) -> list[float]:
        """Point ``number`` of a scrambled Sobol sequence, from 1."""
        if self._sequence is None or number < self._next:
            from scipy.stats import qmc

            generator = np.random.default_rng(integer(self._seed, SEEDS, "optuna", "qmc"))
            self._sequence = qmc.Sobol(len(self._space.knobs), scramble=True, rng=generator)
            self._next = 1
        if number > self._next:
            self._sequence.fast_forward(number - self._next)
        self._next = number + 1
        return [min(float(one), _BELOW_ONE) for one in self._sequence.random(1)[0]]

    def again(self, number: int, attempt: int) -> dict[str, Scalar] | None:
        """A number has one draw."""

    def replace(self, number: int, action: Action) -> None:
        """Changes nothing."""

    def tell(self, feedback: Feedback) -> None:
        """Changes nothing."""

    def add(self, feedback: Feedback) -> None:
        """Changes nothing."""

    def warm(self, feedbacks: Sequence[Feedback]) -> None:
        """Changes nothing; configuration refuses it."""


_BELOW_ONE = 1.0 - 2.0**-53


class ByStudy:
    """Proposes with one of Optuna's samplers, over a study in memory."""

    def __init__(
        self, name: SamplerName, options: dict[str, Any], space: Space, objectives: Sequence[Objective], seed: int
    ) -> None:
        self._name: SamplerName = name
        self._space = space
        self._seed = seed
        self._distributions = distributions(space, lists=TRAITS[name].lists)
        self._telling = Telling(objectives, TRAITS[name])
        own = integer(seed, SEEDS, "optuna", name)
        self._sampler = Sampler(name, own, options, self._distributions, self._telling.width)
        self._memory, self._study = _new_study(self._telling.width, self._sampler)
        self._asked: dict[int, StudyTrial] = {}
        self._complaints: set[type[Exception]] = set()

    def propose(self, number: int) -> dict[str, Scalar]:
        """What the sampler proposes, with the seed that belongs to the number; a random draw if it can't."""
        return self._proposed(number, integer(self._seed, SEEDS, "optuna", self._name, number))

    def again(self, number: int, attempt: int) -> dict[str, Scalar] | None:
        """What it proposes with another seed; it forgets the proposal before. One that costs too much isn't asked."""
        if TRAITS[self._name].dear:
            return None
        self._telling.failed(self._study, self._asked.pop(number))
        return self._proposed(number, integer(self._seed, SEEDS, "optuna", self._name, f"again {attempt}", number))

    def _proposed(self, number: int, seed: int) -> dict[str, Scalar]:
        self._sampler.reseed(seed)
        trial = self._asked[number] = self._study.ask()
        try:
            with _one_thread(self._name), np.errstate(all="ignore"):
                return self._sampled(trial)
        except Exception as error:  # of its numerics, which some ranges are too large for: no reason to end a run
            return self._drawn(number, error)

    def _drawn(self, number: int, error: Exception) -> dict[str, Scalar]:
        if type(error) not in self._complaints:
            self._complaints.add(type(error))
            what = f"the sampler {self._name} failed at trial {number}: {type(error).__name__}: {error}"
            logger.warning("%s; where it does, settings are drawn at random", what)
        action = ByNumber("random", self._space, self._seed).propose(number)
        self.replace(number, action)
        return action

    def _sampled(self, trial: StudyTrial) -> dict[str, Scalar]:
        """What the sampler has for a new trial: as ``suggest_*`` would, which copies the trial at every knob."""
        frozen = self._memory.get_trial(trial.number)
        together = trial.relative_params
        for name, distribution in self._distributions.items():
            if name in together:
                frozen.params[name] = together[name]
            else:
                frozen.params[name] = self._sampler.optuna.sample_independent(self._study, frozen, name, distribution)
            frozen.distributions[name] = distribution
        # What is run, and told after a resume, is snapped to the step: 0.3, not 0.30000000000000004.
        action = to_action(self._space, frozen.params)
        frozen.params.update(to_params(self._space, action))
        return action

    def replace(self, number: int, action: Action) -> None:
        """The study forgets its proposal, and takes the action for one of its own."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            self._telling.failed(self._study, asked)
        self._study.enqueue_trial(to_params(self._space, action))
        self._asked[number] = self._study.ask(fixed_distributions=self._distributions)

    def tell(self, feedback: Feedback) -> None:
        """How a trial ended."""
        self._telling.tell(self._study, self._asked.pop(feedback.trial_index), feedback)

    def add(self, feedback: Feedback) -> None:
        """A trial of the past, without asking for it."""
        self._study.add_trial(self._frozen(feedback))

    def warm(self, feedbacks: Sequence[Feedback]) -> None:
        """Samplers that look at all trials are just told them; the others begin where the trials lead them."""
        trials = [self._frozen(feedback) for feedback in feedbacks]
        best = sorted(zip(feedbacks, trials, strict=True), key=lambda pair: pair[0].value, reverse=True)
        measured = [trial for feedback, trial in best if feedback.status == "measured"]
        self._sampler.begin_from(measured)
        self._study.sampler = self._sampler.optuna
        for trial in trials:
            self._study.add_trial(trial)

    def _frozen(self, feedback: Feedback) -> FrozenTrial:
        return self._telling.frozen(feedback, to_params(self._space, feedback.action), self._distributions)


def _new_study(width: int, sampler: Sampler) -> tuple[StudyMemory, Study]:
    import optuna

    from tunegym.tuning.agents.study_memory import StudyMemory

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line per trial is not for our users
    directions = [optuna.study.StudyDirection.MAXIMIZE] * width
    memory = StudyMemory()
    return memory, optuna.create_study(storage=memory, sampler=sampler.optuna, directions=directions)


@contextlib.contextmanager
def _one_thread(name: SamplerName) -> Iterator[None]:
    """Small matrices are many times slower on several threads of a busy machine."""
    if name != "gp":
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
