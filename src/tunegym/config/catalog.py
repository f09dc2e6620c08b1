"""What configuration asks of whoever knows the concrete classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Catalog(Protocol):
    """The agents, workloads, runners, rewards, encodings and pruners that a scenario may name.

    Configuration assumes of an agent class: ``Config`` (a frozen dataclass over ``AgentConfig``),
    ``supports_variable_environment``, ``finite`` and the classmethod ``refuse(space) -> Problem | None``; it may
    have ``kinds``, by kind of experiment the reference of the class with a ``Config`` that drives it;
    of a workload class: ``reserved``, ``required`` and the classmethod
    ``check(experiment, scenario_dir) -> list[Problem]``; ``live`` if a server answers instead of jobs; of their
    problems: ``where`` is relative to the experiment; of a pruner class: ``Config`` (a frozen dataclass).
    """

    def at(self, folder: Path) -> Catalog:
        """The same, with references looked for in ``folder`` (the scenario's) first."""
        ...

    def names(self, kind: str) -> list[str]:
        """The names of one kind: ``agents``, ``workloads``, ``runners``, ``rewards``, ``encodings`` or ``pruners``."""
        ...

    def get(self, kind: str, name: str) -> Any:
        """The class behind a name or a ``package.module:Name`` reference.

        Raises:
            KeyError: there is no such name.
            UnresolvedReferenceError: the reference leads nowhere.
        """
        ...
