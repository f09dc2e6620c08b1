"""Where the study of the ``optuna`` agent lives: in memory, for one study and one thread."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

STUDY = 0


class StudyTrial(FrozenTrial):
    """A trial of the study. Optuna copies what it hands out; here nobody changes it, so it hands out itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> StudyTrial:
        return self


class StudyMemory(BaseStorage):
    """Holds one study for one thread, and changes it in place.

    Optuna's own memory is made for many threads: it copies a trial at every change, which costs more than most
    proposals do. Nothing here outlives the process: the journal does, and the study is built anew from it.
    """

    def __init__(self) -> None:
        self._directions: list[StudyDirection] = []
        self._trials: list[FrozenTrial] = []
        self._attributes: dict[str, Any] = {}
        self._user_attributes: dict[str, Any] = {}
        self._waiting: list[int] = []

    # the study ----------------------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """The one study."""
        del study_name
        self._directions = list(directions)
        return STUDY

    def delete_study(self, study_id: int) -> None:
        """Forget everything."""
        self.__init__()

    def get_study_id_from_name(self, study_name: str) -> int:
        """There is but one."""
        return STUDY

    def get_study_name_from_id(self, study_id: int) -> str:
        """It needs no name."""
        return "tunegym"

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """One per value of a measurement."""
        return self._directions

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Something that a caller keeps with the study."""
        self._user_attributes[key] = value

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """What callers kept."""
        return self._user_attributes

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """What a sampler keeps beside the trials."""
        self._attributes[key] = value

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """What samplers kept."""
        return self._attributes

    def get_all_studies(self) -> list[Any]:
        """None that could be looked for: the one study belongs to its agent."""
        return []

    # its trials ---------------------------------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """A new one, or one of the past as it was; its number is its id."""
        number = len(self._trials)
        if template_trial is not None:
            trial = template_trial
            trial.number, trial._trial_id = number, number
            if trial.state == TrialState.WAITING:
                self._waiting.append(number)
        else:
            now = datetime.now()
            trial = StudyTrial(number, TrialState.RUNNING, None, now, None, {}, {}, {}, {}, {}, number)
        self._trials.append(trial)
        return number

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """A knob's value."""
        trial = self._trials[trial_id]
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """How it ended, or that a waiting one begins."""
        trial = self._trials[trial_id]
        self.check_trial_is_updatable(trial_id, trial.state)
        if state == TrialState.RUNNING:
            if trial.state != TrialState.WAITING:
                return False
            self._waiting.remove(trial_id)
        trial.state = state
        if values is not None:
            trial.values = list(values)
        if state.is_finished():
            trial.datetime_complete = datetime.now()
        return True

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Nobody of ours reports any."""
        self._trials[trial_id].intermediate_values[step] = intermediate_value

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Something that a caller keeps with a trial."""
        self._trials[trial_id].user_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """What a sampler keeps with a trial, and constraints."""
        self._trials[trial_id].system_attrs[key] = value

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        """The number itself."""
        return trial_number

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """The trial itself."""
        return self._trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials themselves, in a list of the caller's own."""
        del study_id, deepcopy
        if states is None:
            return list(self._trials)
        if states == (TrialState.WAITING,):
            return [self._trials[number] for number in self._waiting]
        return [trial for trial in self._trials if trial.state in states]
