"""What Optuna is told of a trial: values, limits, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunegym.tuning.agents.samplers import Traits
from tunegym.tuning.model.objective import Objective, aims
from tunegym.tuning.model.trial import Feedback

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState
    from optuna.trial import Trial as StudyTrial

REFUSED = "constraints"
"""The constraint that an infeasible trial violates."""


class Telling:
    """Turns feedback into Optuna's terms.

    A surrogate is told of a failure, not of a value: failed, timed-out and cancelled trials are ``FAIL``. What a
    constraint refused is told as violating one, and a pruned trial as ``PRUNED``, which ranks behind all measured
    ones. Larger is better in every value.

    Args:
        objectives: the experiment's.
        traits: the sampler's.
    """

    def __init__(self, objectives: Sequence[Objective], traits: Traits) -> None:
        goals = aims(objectives)
        # One that can't be told of several objectives, or of limits, gets the reward, in which all of them count.
        able = traits.limited and (traits.several or len(goals) == 1)
        self._aims = goals if able else ()
        self._limits = [one for one in objectives if one.limit is not None] if able else []
        self._constrained = traits.limited

    @property
    def width(self) -> int:
        """How many values a measurement has."""
        return max(1, len(self._aims))

    def tell(self, study: Study, trial: StudyTrial, feedback: Feedback) -> None:
        """Tell how a trial ended that the study had asked for."""
        state, values, constraints = self._terms(feedback)
        for key, value in constraints.items():
            trial.set_constraint(key, value)
        study.tell(trial, values, state=state)

    def failed(self, study: Study, trial: StudyTrial) -> None:
        """Drop a trial that will not be run."""
        from optuna.trial import TrialState

        study.tell(trial, state=TrialState.FAIL)

    def frozen(
        self, feedback: Feedback, params: dict[str, Any], distributions: Mapping[str, BaseDistribution]
    ) -> FrozenTrial:
        """A trial of the past, to be added to the study."""
        from optuna.trial import create_trial

        state, values, constraints = self._terms(feedback)
        trial = create_trial(state=state, values=values, params=params, distributions=dict(distributions))
        for key, value in constraints.items():
            trial.set_constraint(key, value)
        return trial

    def _terms(self, feedback: Feedback) -> tuple[TrialState, list[float] | None, dict[str, float]]:
        from optuna.trial import TrialState

        if feedback.status == "measured":
            metrics = feedback.observation.metrics
            values = [one.value(metrics) for one in self._aims] or [feedback.value]
            return TrialState.COMPLETE, values, self._kept(metrics)
        if feedback.status == "infeasible" and self._constrained:
            return TrialState.PRUNED, None, {REFUSED: 1.0}
        if feedback.status == "pruned":
            return TrialState.PRUNED, None, {}
        return TrialState.FAIL, None, {}

    def _kept(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How far each limit is exceeded, or below zero by how far it is kept."""
        return {
            one.metric: one.sign * (one.limit - metrics[one.metric]) for one in self._limits if one.limit is not None
        }
