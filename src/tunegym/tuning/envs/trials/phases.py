"""The phases around an agent's search: the baseline and settings to try first before it, rounds of finalists after it.

The search leaves a share of the budget to the rounds. Everything follows from the journal, so a resume continues where
it was, and a longer search keeps the rounds that were measured.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.inference.confirmation import Confirmation, reserve, share_of
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import BASELINE, CONFIRM, REPEAT, SEARCH, Trial
from tunegym.tuning.model.values import Action, Context, exact_key

if TYPE_CHECKING:
    from tunegym.tuning.inference.recommendation import PolicyTable
    from tunegym.tuning.stores.trials import JournalStore

logger = logging.getLogger(__name__)


def planned_start(experiment: Experiment) -> list[tuple[str, Action, Context | None]]:
    """What is measured before the search: phase, setting and context; None for a drawn one."""
    baseline = [(BASELINE, action, context) for action, context in baseline_trials(experiment)]
    return [*baseline, *((SEARCH, action, None) for action in experiment.enqueue)]


def baseline_trials(experiment: Experiment) -> list[tuple[Action, Context]]:
    """The baseline in every represented context, the most frequent ones if that took more than half of the budget."""
    if experiment.baseline is None:
        return []
    represented = experiment.env_params.represented()
    budget = experiment.budget.agent_steps
    most = len(represented) if budget is None else max(1, budget // 2)
    heaviest = sorted(represented, key=lambda weighted: -weighted[1])[:most]
    return [(experiment.baseline, context) for context, weight in represented if (context, weight) in heaviest]


def confirming_trials(experiment: Experiment, budget: int) -> int:
    """How many trials of a budget the rounds get."""
    return reserve(Question.of(experiment), budget, experiment.confirm.share) if experiment.confirms else 0


class Phases:
    """Measures before and after the agent's search. One for each session of an experiment with knobs."""

    def __init__(self, engine: TrialEngine, store: JournalStore) -> None:
        self._engine, self._store = engine, store
        self._experiment = engine.experiment
        self._question = Question.of(engine.experiment)
        self._trials: list[Trial] = []
        after = store.past.after_search
        self._over = after is not None and after.agent_steps == self._steps

    @property
    def _steps(self) -> int | None:
        return self._experiment.budget.agent_steps

    # before the agent ---------------------------------------------------------------------------------

    def start(self) -> bool:
        """Measure what comes first, and give the agent the rest of the budget; False if its search is over."""
        self._read()
        if not self._last_search:
            done = {exact_key(trial.context) for trial in self._trials if trial.phase == BASELINE}
            planned = baseline_trials(self._experiment)
            self._run([trial for trial in planned if exact_key(trial[1]) not in done], BASELINE)
        tried = sum(trial.phase == SEARCH for trial in self._trials)
        self._run([(action, None) for action in self._experiment.enqueue[tried:]], SEARCH)
        self._divide()
        self._engine.budget.pause()  # the agent may take its time to get ready
        return not self._over

    def _read(self) -> None:
        self._trials = sorted((trial for _, trial in self._store.recorded()), key=lambda trial: trial.number)

    def _run(self, planned: Sequence[tuple[Action, Context | None]], phase: str) -> bool:
        closed = self._engine.run_all(planned, phase)
        self._trials += closed
        return len(closed) == len(planned)

    @property
    def _last_search(self) -> int:
        searched = (trial.number for trial in self._trials if trial.phase in (SEARCH, REPEAT))
        return max(searched, default=0)

    def _divide(self) -> None:
        """Give the agent what the other phases leave of the budget."""
        engine, budget = self._engine, self._experiment.budget
        if self._experiment.confirms:
            engine.budget.kept = 0 if self._steps is None else self._allowance(self._steps, self._rounds_before())
            engine.budget.kept_share = share_of(self._question, self._experiment.confirm.share)
        own = sum(trial.phase in (SEARCH, REPEAT) for trial in self._trials) - len(self._experiment.enqueue)
        engine.first = len(self._trials) - max(own, 0) + 1
        steps = None if self._steps is None else max(0, self._steps - engine.budget.kept - engine.first + 1)
        longest = None if budget.max_time_s is None else budget.max_time_s * (1.0 - engine.budget.kept_share)
        engine.experiment = replace(self._experiment, budget=replace(budget, agent_steps=steps, max_time_s=longest))

    def _rounds_before(self) -> list[int]:
        """Return the numbers of rounds' trials that an earlier, shorter search had."""
        last = self._last_search if self._over else self._store.highest + 1
        return [trial.number for trial in self._trials if trial.phase == CONFIRM and trial.number < last]

    def _allowance(self, budget: int, before: Sequence[int]) -> int:
        """Return how many trials of a budget are left to the rounds; an extension gets a share of its own."""
        whole = confirming_trials(self._experiment, budget) - len(before)
        return max(whole, confirming_trials(self._experiment, budget - max(before))) if before else whole

    # after the agent ----------------------------------------------------------------------------------

    def finish(self, policy: PolicyTable | None) -> str | None:
        """Measure the finalists in rounds; why that ended, or None if there was nothing to confirm."""
        experiment = self._experiment
        self._read()
        last = self._last_search
        if not experiment.confirms or not last:
            return None
        now = sum(trial.phase == CONFIRM and trial.number > last for trial in self._trials)
        self._over = True
        before = self._rounds_before()
        allowance = self._allowance(self._steps or last, before)
        if self._steps is not None:
            allowance = min(allowance, self._steps - self._store.highest + now)
        self._engine.budget.kept, self._engine.budget.kept_share = 0, 0.0
        if allowance <= 0:
            return None
        own = [] if policy is None else policy.actions(self._question.contexts)
        plan = Confirmation(
            question=self._question,
            trials=self._trials,
            allowance=allowance,
            seed=experiment.env_params.seed,
            allowed=experiment.allows,
            own=own,
        )
        while planned := plan.next_round():
            closed = self._engine.run_all(planned, CONFIRM)
            if len(closed) < len(planned):
                return None
            plan.add(closed)
        logger.info("%s: confirmed: %s", experiment.name, plan.ended)
        return plan.ended
