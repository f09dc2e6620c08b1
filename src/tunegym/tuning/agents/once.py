"""A plain job as an agent: it has nothing to choose, and runs once."""

from __future__ import annotations

from typing import ClassVar

from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Scalar


class RunOnce(BaseAgent):
    """Drives an experiment without knobs."""

    finite: ClassVar[bool] = True

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """The empty action for the first trial, then the end."""
        return {} if observation.number == 1 else None
