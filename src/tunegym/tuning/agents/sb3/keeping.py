"""What a policy agent keeps beside the journal: checkpoints, the policy as a table, training curves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tunegym.tuning.agents import policies

if TYPE_CHECKING:
    from tunegym.tuning.agents.sb3.checkpoints import Checkpoint

logger = logging.getLogger(__name__)

LONGEST_REASON = 240


class Restorable(Protocol):
    """What a checkpoint is given back to."""

    def restore(self, state: dict[str, Any]) -> None:
        """Be again what the checkpoint's ``state`` says; raises whatever it likes if it doesn't fit."""
        ...


class PolicyFiles:
    """The files of one agent in its experiment's results. What can't be written is warned of: trials come first.

    Args:
        folder: the experiment's results.
        agent: the agent's name.
        unit: what one of its trials is called.
    """

    def __init__(self, folder: Path, agent: str, unit: str = "trial") -> None:
        self._folder = folder
        self._agent = agent
        self._unit = unit

    def last(self) -> Checkpoint | None:
        """The agent's last checkpoint; None, with a warning, if it can't be read."""
        from tunegym.tuning.agents.sb3.checkpoints import CheckpointError, load

        try:
            checkpoint = load(self._folder)
        except CheckpointError as error:
            logger.warning("the policy starts anew: %s", error)
            return None
        return checkpoint if checkpoint is not None and checkpoint.agent == self._agent else None

    def save(self, checkpoint: Checkpoint) -> None:
        """A checkpoint, in place of the last one."""
        from tunegym.tuning.agents.sb3.checkpoints import save

        with _kept("a checkpoint"):
            save(self._folder, checkpoint)

    def save_table(self, table: policies.PolicyTable) -> None:
        """What the policy chooses."""
        if table.choices:
            with _kept("the policy"):
                policies.save(self._folder, table)

    def save_model(self, model: Any) -> None:
        """The library's own file."""
        from tunegym.tuning.agents.sb3.checkpoints import save_model

        with _kept("the model"):
            save_model(self._folder, model)

    def tell(self, closed: int, values: Mapping[str, float]) -> None:
        """What an update said about itself, after so many closed trials."""
        with _kept("the training's curves"):
            policies.add_training(self._folder, closed, values)

    def say_where(self, closed: int, saved: int, remembered: int | None) -> None:
        """Tell a resumed run's user what the policy knows.

        Args:
            closed: how many trials are on record.
            saved: how many the checkpoint has seen; 0 if there is none.
            remembered: how many can still be learned from; None if only fresh choices can be.
        """
        where = f"from its checkpoint after {self._count(saved)}" if saved else "without a checkpoint"
        rest = ""
        if remembered is not None:
            rest = f"; in its replay buffer: {self._count(remembered)} of the record"
        elif closed > saved:
            later = self._count(closed - saved, " later" if saved else "")
            rest = f"; {later} on record can't teach it anything, as it learns from fresh choices only"
        logger.info("%s goes on %s%s", self._agent, where, rest)

    def _count(self, count: int, more: str = "") -> str:
        return f"{count}{more} {self._unit}{'' if count == 1 else 's'}"


def restore(learner: Restorable, checkpoint: Checkpoint) -> bool:
    """Make a learner what the checkpoint says; False, with a warning, if it can't be: it is then of no more use."""
    try:
        learner.restore(checkpoint.state)
    except Exception as error:  # whatever a file can hold
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
        logger.warning("the policy starts anew: its checkpoint doesn't fit: %s", reason)
        return False
    return True


@contextlib.contextmanager
def _kept(what: str) -> Iterator[None]:
    """What can't be kept is no reason to lose trials."""
    try:
        yield
    except OSError as error:
        logger.warning("%s could not be written: %s", what, error.strerror or error)
