"""Placeholder of the agent ``bayes``: it searches at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.agents.search import RandomSearch
from tunegym.tuning.model.trial import Trial


@dataclass(frozen=True, kw_only=True)
class BayesConfig(AgentConfig):
    """Settings of ``bayes``."""

    warm_start: str | None = None


class Bayes(RandomSearch):
    """Searches at random."""

    Config: ClassVar[type[AgentConfig]] = BayesConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None}

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Learn nothing."""
