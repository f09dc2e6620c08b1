"""The tree of errors. Each says what happened and, in ``hint``, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TunegymError(Exception):
    """Root of everything that tunegym raises on purpose.

    ``hint`` is the next thing a user should try; the command line prints it on a separate line.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        where: the key path, such as ``experiments.iperf.agent``; empty for the file as a whole.
        what: the problem in one sentence.
        found: what stands there, as the user wrote it; None when nothing does.
        allowed: what may stand there.
        hint: what to change.
        line: where the key stands in the file, counted from 1; None when that is not known.
    """

    where: str
    what: str
    found: str | None = None
    allowed: str | None = None
    hint: str | None = None
    line: int | None = None

    def render(self, file: str) -> str:
        """The problem as the lines that a user reads."""
        file = file if self.line is None else f"{file}:{self.line}"
        lines = [f"{file}: {self.where}: {self.what}" if self.where else f"{file}: {self.what}"]
        for name, text in (("found:   ", self.found), ("allowed: ", self.allowed), ("hint: ", self.hint)):
            if text is not None:
                lines.append(f"  {name}{text}")
        return "\n".join(lines)


class ConfigError(TunegymError):
    """A scenario that can't be run as it is written. Holds every problem found, most basic first."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.render(file) for problem in self.problems))


class StoreError(TunegymError):
    """The journal can't be read or written. The trials in it are safe; retry after removing the cause."""


class StoreLockedError(StoreError):
    """Another living process writes this experiment."""


class ActionError(TunegymError):
    """An action that doesn't fit the knobs: wrong keys, or a value that is not a candidate."""


class ObservationError(TunegymError):
    """An observation unlike the declared ones: other leaves, or another shape."""


class BudgetError(TunegymError):
    """A step past the experiment's budget."""


class ServerLostError(TunegymError):
    """A live experiment's server failed too often in a row, or came back as another one. The record is safe."""


class RunnerError(TunegymError):
    """The infrastructure that runs jobs is broken (not a job that failed: that is an outcome)."""


class UnresolvedReferenceError(TunegymError):
    """A ``module:name`` reference that can't be resolved."""
