"""Whoever shows a run while it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.model.trial import OpenTrial, Trial


class Watch(Protocol):
    """Somebody who shows a run while it goes. A ``Listener`` of every experiment's trials as well.

    A live experiment's steps are too many and too quick to be told of: who wants to know looks at its engine's tally.
    """

    def run_started(self, scenario: Scenario, folder: Path) -> None:
        """Results will be in ``folder``."""
        ...

    def experiment_started(self, experiment: Experiment, engine: TrialEngine | LiveEngine) -> None:
        """Its trials, or steps, follow."""
        ...

    def trial_opened(self, trial: OpenTrial) -> None:
        """A trial was decided."""
        ...

    def trial_closed(self, trial: Trial) -> None:
        """A trial ended."""
        ...

    def experiment_ended(self, experiment: Experiment) -> None:
        """No more trials of it follow in this session."""
        ...


class Silent:
    """Watches without a word."""

    def run_started(self, scenario: Scenario, folder: Path) -> None:
        """Nothing to show."""

    def experiment_started(self, experiment: Experiment, engine: TrialEngine | LiveEngine) -> None:
        """Nothing to show."""

    def trial_opened(self, trial: OpenTrial) -> None:
        """Nothing to show."""

    def trial_closed(self, trial: Trial) -> None:
        """Nothing to show."""

    def experiment_ended(self, experiment: Experiment) -> None:
        """Nothing to show."""
