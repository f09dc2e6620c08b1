"""The phases around an agent's search: the baseline, the noise check, settings to try first, and the confirmation.

Before the agent, the baseline is measured in every represented context, and one setting three times, which says how
noisy measurements are: the trials to keep for the confirmation follow from that. After it, ``Confirmation`` plans
blocks of trials until the answer is clear. Everything follows from the journal, so a resume continues where it was.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tunegym.core.randomness import unit
from tunegym.tuning.answers.finalists import Confirmation, reserve
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.scenario import Confirm, Experiment
from tunegym.tuning.model.trial import BASELINE, CONFIRM, NOISE, SEARCH, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

if TYPE_CHECKING:
    from tunegym.tuning.answers.recommendation import PolicyTable
    from tunegym.tuning.stores.trials import JournalStore

logger = logging.getLogger(__name__)

SAMPLES = 3
"""How often the noise check measures its setting."""
ATTEMPTS = 9
"""Settings that the noise check tries until one works: fewer than the failures that end a search."""
DRAWS = 100
"""Draws to find a setting that the constraints allow."""
NOMINAL = 100
"""The trials of a search that only time bounds, to compute the share of the confirmation."""


def planned_start(experiment: Experiment, seed: int) -> list[tuple[str, Action, Context | None]]:
    """What is measured before the search, if everything works: phase, setting and context; None for a drawn one."""
    baseline: list[tuple[str, Action, Context | None]] = [(BASELINE, *one) for one in baseline_trials(experiment)]
    context = check_context(experiment)
    action = next(check_actions(experiment, context, seed), None) if checks_noise(experiment) else None
    samples = [] if action is None else [(NOISE, action, context)] * (SAMPLES - bool(baseline))
    return [*baseline, *samples, *((SEARCH, one, None) for one in experiment.enqueue)]


def checks_noise(experiment: Experiment) -> bool:
    """Whether a setting is measured several times before the search."""
    return experiment.confirms or (replace(experiment, confirm=Confirm()).confirms and experiment.repeats == "auto")


def baseline_trials(experiment: Experiment) -> list[tuple[Action, Context]]:
    """The baseline in every represented context, the most frequent ones if that took more than half of the budget."""
    if experiment.baseline is None:
        return []
    found = experiment.env_params.represented()
    most = len(found) if experiment.budget.agent_steps is None else max(1, experiment.budget.agent_steps // 2)
    heaviest = {id(one) for one in sorted(found, key=lambda one: -one[1])[:most]}
    return [(experiment.baseline, one[0]) for one in found if id(one) in heaviest]


def check_context(experiment: Experiment) -> Context:
    """The context of the noise check: the most frequent one."""
    return max(experiment.env_params.represented(), key=lambda one: one[1])[0]


def check_actions(experiment: Experiment, context: Context, seed: int) -> Iterator[Action]:
    """The settings for the noise check, in this order: the baseline, one to try first, then drawn ones."""
    if experiment.baseline is not None:
        yield experiment.baseline
    yield from experiment.enqueue[:1]
    for number in range(DRAWS):
        action = {
            name: knob.from_unit(unit(seed, "noise_check", name, number))
            for name, knob in experiment.space.knobs.items()
        }
        parameters = experiment.parameters(action, context)
        if all(constraint.refuse(parameters) is None for constraint in experiment.constraints):
            yield action


class Phases:
    """Measures before and after the agent's search. One for each session of an experiment with knobs."""

    def __init__(self, engine: TrialEngine, store: JournalStore) -> None:
        self._engine = engine
        self._store = store
        self._head = store.head
        self._experiment = engine.experiment
        after = store.past.after_search
        self._over = after is not None and after.agent_steps == self._steps
        self._trials: list[Trial] = []

    @property
    def _steps(self) -> int | None:
        return self._experiment.budget.agent_steps

    # before the agent ---------------------------------------------------------------------------------

    def start(self) -> bool:
        """Measure what comes first, and give the agent the rest of the budget; False if its search is over."""
        experiment = self._experiment
        if experiment.baseline is None and not experiment.enqueue and not checks_noise(experiment):
            return True
        self._trials = sorted((trial for _, trial in self._store.recorded()), key=lambda trial: trial.number)
        if not self._last_search:
            done = {exact_key(trial.context) for trial in self._trials if trial.phase == BASELINE}
            missing = [one for one in baseline_trials(experiment) if exact_key(one[1]) not in done]
            self._run(missing, BASELINE)
            if checks_noise(experiment):
                self._check_noise()
        tried = sum(trial.phase == SEARCH for trial in self._trials)
        self._run([(action, None) for action in experiment.enqueue[tried:]], SEARCH)
        self._divide()
        self._engine.budget.pause()  # the agent may take its time to get ready
        return not self._over

    def _run(self, planned: Sequence[tuple[Action, Context | None]], phase: str) -> bool:
        closed = self._engine.run_all(planned, phase)
        self._trials += closed
        return len(closed) == len(planned)

    def _check_noise(self) -> None:
        context = check_context(self._experiment)
        for action in islice(check_actions(self._experiment, context, self._head.seed), ATTEMPTS):
            found = self._samples(action, context)
            while all(trial.measured for trial in found):
                # The first one alone: if it fails, another setting is next, at any width.
                wanted = SAMPLES - len(found) if found else 1
                if wanted <= 0 or not self._run([(action, context)] * wanted, NOISE):
                    return
                found = self._samples(action, context)

    def _samples(self, action: Action, context: Context) -> list[Trial]:
        key = exact_key(action, context)
        checked = (trial for trial in self._trials if trial.phase in (BASELINE, NOISE))
        return [trial for trial in checked if exact_key(trial.action, trial.context) == key]

    @property
    def _noise(self) -> list[Trial]:
        """The samples of the noise check."""
        context = check_context(self._experiment)
        actions = {exact_key(one.action): one.action for one in self._trials if one.phase in (BASELINE, NOISE)}
        found = ([one for one in self._samples(action, context) if one.measured] for action in actions.values())
        return max(found, key=len, default=[])

    @property
    def _last_search(self) -> int:
        return max((trial.number for trial in self._trials if trial.phase == SEARCH), default=0)

    @property
    def _spent(self) -> int:
        """The number at which an earlier, shorter search had ended with its confirmation; 0 if there was none."""
        searched = [trial.number for trial in self._trials if trial.phase == SEARCH] or [math.inf]
        later = [one.number for one in self._trials if one.phase in (CONFIRM, NOISE) and one.number > min(searched)]
        return max((number for number in later if number < max(searched) or not self._over), default=0)

    def _reserve(self, trials: int) -> int:
        """How many of so many trials the confirmation may have."""
        one = self._experiment
        contexts = len(one.env_params.represented())
        return reserve(self._noise, trials, one.confirm, contexts, one.baseline is not None, one.judged.metric)

    @property
    def _drifts(self) -> bool:
        """Whether a last sample of the noise check is worth it; the baseline's confirmation is one."""
        return self._experiment.baseline is None and len({trial.reward for trial in self._noise}) > 1

    def _divide(self) -> None:
        """Give the agent what the other phases leave of the budget."""
        engine, budget = self._engine, self._experiment.budget
        if self._experiment.confirms:
            trials = NOMINAL if self._steps is None else self._steps - self._spent
            kept = self._reserve(trials)
            engine.budget.kept = kept + self._drifts if self._steps is not None else 0
            engine.budget.kept_share = min(kept / trials, self._experiment.confirm.share) if trials > 0 else 0.0
        own = max(0, sum(trial.phase == SEARCH for trial in self._trials) - len(self._experiment.enqueue))
        engine.first = len(self._trials) - own + 1
        steps = None if self._steps is None else max(0, self._steps - engine.budget.kept - engine.first + 1)
        longest = None if budget.max_time_s is None else budget.max_time_s * (1.0 - engine.budget.kept_share)
        engine.experiment = replace(self._experiment, budget=replace(budget, agent_steps=steps, max_time_s=longest))

    # after the agent ----------------------------------------------------------------------------------

    def finish(self, policy: PolicyTable | None) -> str | None:
        """Confirm the finalists; why that ended, or None if there was nothing to confirm."""
        budget = self._engine.budget
        if not self._experiment.confirms:
            return None
        self._trials = sorted((trial for _, trial in self._store.recorded()), key=lambda trial: trial.number)
        last, spent = self._last_search, self._spent
        if not last or any(trial.phase == NOISE and trial.number > last for trial in self._trials):
            return None
        searched = sum(trial.phase == SEARCH and trial.number > spent for trial in self._trials)
        allowed = self._reserve(searched)
        if self._steps is not None:
            done = sum(trial.phase == CONFIRM and trial.number > last for trial in self._trials)
            left = self._steps - self._store.highest + done - self._drifts
            allowed = min(self._reserve(self._steps - spent), left)
        budget.kept, budget.kept_share, ended = 0, 0.0, None
        while allowed > 0:
            plan = Confirmation(self._head, self._trials, allowed, self._head.seed, policy)
            block = plan.next_block()
            if not block:
                ended = plan.ended
                break
            if not self._run(block, CONFIRM):
                return None
        if self._drifts:
            noise = self._noise[0]
            self._run([(noise.action, noise.context)], NOISE)
        if ended:
            logger.info("%s: confirmed, %s", self._experiment.name, ended)
        return ended
