"""The base of all agents that drive a live experiment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import BudgetError, Problem, ServerLostError
from tunegym.tuning.agents.live.config import LiveConfig
from tunegym.tuning.agents.sb3.failures import TrainingError
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.ports import LiveEnv


class UnfitError(Exception):
    """Spaces that the agent can't take. They are the server's, so nobody knows before it has answered."""


class LiveAgent(ABC):
    """Takes steps in all lanes until no further one may be taken, and resets a lane where its episode ends.

    ``run`` is the only way an agent is driven. A budget that is used up and a run that is stopped are its ordinary end.
    A server that is lost, spaces that don't fit and an algorithm that fails end it with code 1 and the reason in
    ``failure``: what was recorded is safe, and later experiments run. Anything else that is raised is a bug, or broken
    infrastructure.

    Attributes:
        Config: the frozen dataclass that ``agent_config`` is checked against.
        kinds: it drives live experiments; ``"live": None`` says that no other class does so for it.
        name: what the agent is called; its draws depend on it.
        failure: why ``run`` returned non-zero, in a sentence.
        failure_hint: what to do about that, if it is known.
    """

    Config: ClassVar[type[LiveConfig]] = LiveConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"live": None}
    name: ClassVar[str]
    failure: str | None = None
    failure_hint: str | None = None

    def __init__(self, env: LiveEnv, config: Any = None, seed: int = 0) -> None:
        self.env = env
        self.config: Any = config if config is not None else self.Config()
        own = self.config.random_seed
        self.seed: int = seed if own is None else own

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """What is wrong with a checked experiment for this agent; ``where`` is relative to the experiment."""
        del experiment, scenario_dir
        return []

    def run(self) -> int:
        """Drive the experiment to its end; 1 if that comes early."""
        if self.env.exhausted() is not None:
            return 0
        try:
            self._drive()
        except BudgetError:  # used up, or stopped, between two looks
            return 0
        except ServerLostError as error:
            self.failure, self.failure_hint = error.message, error.hint
            return 1
        except UnfitError as error:
            self.failure = str(error)
            return 1
        except TrainingError as error:
            self.failure = f"training failed after {self.env.taken} steps: {error}"
            return 1
        return 0

    @abstractmethod
    def _drive(self) -> None:
        """Take steps until ``exhausted`` says why not, or until ``BudgetError``."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Let go of what the agent holds. By default there is nothing."""

    def left(self) -> int | None:
        """How many steps the budget still has; None if it doesn't count them."""
        most = self.env.experiment.most_trials
        return None if most is None else max(0, most - self.env.taken)
