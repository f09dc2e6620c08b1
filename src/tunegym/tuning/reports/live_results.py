"""A live experiment's results as a user reads them back: steps, episodes, spaces, and where its policy is."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tunegym.core.errors import StoreError, TunegymError
from tunegym.tuning.agents import policies
from tunegym.tuning.model.episode import Episode
from tunegym.tuning.reports.results import ExperimentResults
from tunegym.tuning.stores import reader

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from gymnasium import spaces

MODEL = "model.zip"
"""In an experiment's ``policy/``: what Stable-Baselines3's own ``load`` takes."""


@dataclass(frozen=True)
class LiveResults(ExperimentResults):
    """One live experiment. Reading while a run writes is fine: one sees what was written so far.

    It has steps and episodes instead of trials, and a policy instead of settings: asked for ``trials`` or ``best``, it
    raises ``TunegymError`` rather than answer with nothing.
    """

    live: ClassVar[bool] = True

    @cached_property
    def past(self) -> reader.Journal:
        """The journal's bookkeeping, as of the first look at it."""
        return reader.scan(self.path)

    @cached_property
    def journal(self) -> reader.Journal:
        """What of the bookkeeping every experiment has."""
        past = self.past
        return reader.Journal(
            head=past.head,
            sessions=past.sessions,
            elapsed_s=past.elapsed_s,
            ended=past.ended,
            valid_size=past.valid_size,
            ends_with_newline=past.ends_with_newline,
        )

    # steps --------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many steps were taken, whether each was recorded or not."""
        return self.past.upto

    @property
    def statuses(self) -> Counter[str]:
        """Steps by status. ``cancelled`` are those that a session which was cut off has lost, or was stopped in."""
        return self.past.statuses

    @property
    def unrecorded(self) -> int:
        """How many steps at most were taken and are not on record; a resume counts these as lost."""
        return max(0, self.past.reserved - self.past.upto)

    def to_pandas(
        self, first: int | None = None, last: int | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row per recorded step: the columns of ``trajectory.csv``, then ``reason`` and ``row``.

        ``row`` is the step's place in ``observations()`` and ``actions()``; -1 for one that was lost. Only what is
        asked for is held in memory.

        Args:
            first: the number of the first step; None for the very first.
            last: the number of the last step; None for the very last.
            columns: their names; None for all.
        """
        _pandas()
        from tunegym.tuning.reports.live_table import step_table

        return step_table(self, first, last, columns)

    # episodes -----------------------------------------------------------------------------------------

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """Every episode that is over, in the order of ending, as of the first look at it."""
        return tuple(self.stream_episodes())

    def stream_episodes(self) -> Iterator[Episode]:
        """As ``episodes``, without holding them all."""
        if self.path.exists():
            yield from reader.episodes(self.path)

    @property
    def mean_return(self) -> float | None:
        """Of the newest episodes that the server itself ended, at most 100; None if there is none."""
        return reader.mean_return(self.past.returns)

    def episodes_to_pandas(self) -> pd.DataFrame:
        """One row per episode: the columns of ``episodes.csv``."""
        _pandas()
        from tunegym.tuning.reports.live_table import episode_table

        return episode_table(self)

    # spaces -------------------------------------------------------------------------------------------

    @property
    def action_space(self) -> spaces.Space[Any] | None:
        """The server's; None if it never answered."""
        return self._space("action")

    @property
    def observation_space(self) -> spaces.Space[Any] | None:
        """The server's own, without the context; None if it never answered."""
        return self._space("observation")

    def observations(self) -> np.ndarray:
        """What each recorded step ended with: a structured array, one field per part of ``observation_space``.

        A space that is one array itself has the field ``value``. Row i belongs to the i-th recorded step that was not
        lost: the column ``row`` of ``to_pandas()``. Those with a file of their own (``observations.bin``) are a
        read-only memory map; small ones come from the journal into memory.

        Raises:
            StoreError: the file is not there, or too short, or the journal is damaged.
        """
        return self._elements("observation")

    def actions(self) -> np.ndarray:
        """What was done in each recorded step, as ``observations`` has it (``actions.bin`` where they are large)."""
        return self._elements("action")

    def _space(self, kind: str) -> spaces.Space[Any] | None:
        return reader.space_of(self.path, self.past, kind)

    def _elements(self, kind: str) -> np.ndarray:
        from tunegym.tuning.reports.live_elements import elements

        space = self._space(kind)
        if space is None:
            raise StoreError(f"{self.name}: its server has not answered yet", hint="nothing was recorded")
        return elements(self, kind, space)

    # instead of settings ------------------------------------------------------------------------------

    @property
    def policy(self) -> Path | None:
        """The file that Stable-Baselines3's ``load`` takes; None if the agent has left none."""
        place = self.folder / policies.FOLDER / MODEL
        return place if place.is_file() else None

    @property
    def trials(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        """There are none."""
        raise self._no_trials()

    def __iter__(self) -> NoReturn:
        raise self._no_trials()

    @property
    def best(self) -> NoReturn:
        """There is none."""
        raise self._no_trials()

    @property
    def best_per_context(self) -> NoReturn:
        """There is none."""
        raise self._no_trials()

    @property
    def pareto(self) -> NoReturn:
        """There is none."""
        raise self._no_trials()

    def _no_trials(self) -> TunegymError:
        return TunegymError(
            f"{self.name} is a live experiment: it has steps and episodes, not trials and settings",
            hint="use episodes, to_pandas(), episodes_to_pandas() and policy",
        )


def _pandas() -> None:
    if importlib.util.find_spec("pandas") is None:
        raise TunegymError("to_pandas needs pandas", hint="pip install 'tunegym[pandas]'")
