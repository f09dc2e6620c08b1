"""The store of a live experiment: numbers reserved ahead, steps written in groups.

A number is used only after the journal says that it is reserved, so none is used twice; reserved numbers of a session
that was cut off, or of steps that an interrupt ended, become ``lost``. Steps wait in memory for at most half a second.
Only the journal's keeper writes them, so an interrupt of the driving thread never leaves a group half written.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gymnasium import spaces

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.model.trial import Episode, JobHandle
from tunegym.tuning.spaces import SpaceError, describe, leaves, space_differences
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import (
    MEASURED,
    MOST_ROWS,
    SIDES,
    SideFile,
    Step,
    StepTable,
)
from tunegym.tuning.stores.journal import JournalFile, unwritable
from tunegym.tuning.stores.records import JobRecord, Lost, ReserveRecord, SessionRecord, SpacesRecord, Steps
from tunegym.tuning.stores.views import ENV, EPISODES, TRAJECTORY, CsvFiles

logger = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Steps wait no longer than this, half of what a crash may cost."""
MOST_WAITING = 4
"""The driving thread waits for the keeper when this many groups wait; with a small budget, when one does."""


class StepStore(JournalFile):
    """Writes down the steps of a live experiment. One thread steps; ``declare`` comes before the first step."""

    every_s = FLUSH_S

    def __init__(self, folder: Path, head: Head, session: SessionRecord, clock: Clock | None = None) -> None:
        super().__init__(folder, head, session, clock)
        self._folder = folder
        self._budget = session.agent_steps
        self.recording = head.live or Recording()
        past = self.past
        self.lost = past.reserved - past.upto  # steps of the last session
        self.upto = self._written = past.upto  # the highest used number
        self.reserved = past.reserved  # the highest number that may be used
        self.begun = past.episodes
        self.worst: float | None = past.worst
        self.largest = past.largest
        self._every = None if self.recording.kind == "episodes" else self.recording.every
        self._views: CsvFiles | None = None
        self._sides: dict[str, SideFile] = {}
        self._has_reserved = False
        self._steps: list[Step] = []
        self._over: list[Episode] = past.finish_episodes()

    # before the first step ----------------------------------------------------------------------------

    def declare(
        self, actions: spaces.Space[Any], observations: spaces.Space[Any]
    ) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Record the server's spaces, and write the views from their start.

        Returns:
            Both as recorded, where a Dict's keys may be in another order than the server's.

        Raises:
            StoreError: they differ from those on record, or can't be written down.
        """
        try:
            described = SpacesRecord(action=describe(actions), observation=describe(observations))
        except SpaceError as error:
            raise StoreError(f"the server's spaces can't be recorded: {error}", hint="use other spaces") from error
        if self.past.spaces is None:
            self.append(described)
        else:
            actions, observations = self._same((actions, observations))
        if self.lost > 0:
            logger.warning(
                "the last session was cut off: at most %d step%s lost (numbers %d to %d), which are not used again",
                self.lost,
                " was" if self.lost == 1 else "s were",
                self.upto + 1,
                self.reserved,
            )
            self._record_lost(self.reserved)
        try:
            self._open(actions, observations)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        self._start()
        return actions, observations

    def _same(self, given: tuple[spaces.Space[Any], spaces.Space[Any]]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        recorded = reader.spaces_of(self.path, self.past)
        assert recorded is not None
        lines = space_differences(recorded, given)
        if lines:
            raise StoreError(
                f"{self._folder.name}: the server has other spaces than before: {'; '.join(lines)}",
                hint="start a new run, or restore the server",
            )
        # The server's own ones, unless the keys of a Dict are in another order there.
        return given if [*map(leaves, given)] == [*map(leaves, recorded)] else recorded

    def _open(self, actions: spaces.Space[Any], observations: spaces.Space[Any]) -> None:
        # A crash must not cost much of a small budget either.
        most = MOST_ROWS if self._budget is None else max(1, min(MOST_ROWS, self._budget // 100))
        self._table = table = StepTable(actions, observations, self.head.metrics, list(self.head.env_params), most)
        self.pack, self.unpack = table.observations.pack, table.observations.unpack
        self._most_waiting = table.most * (MOST_WAITING if most == MOST_ROWS else 1)
        for name, elements in (("action", table.actions), ("observation", table.observations)):
            if not elements.inline:
                rows = self.past.sides.get(name, 0)
                self._sides[name] = SideFile(self._folder / SIDES[name], elements.dtype.itemsize, rows)
        self._views = CsvFiles(self._folder, (TRAJECTORY, ENV, EPISODES))
        self._views.append(*table.header())
        for record in reader.entries(self.path):
            if isinstance(record, Lost):
                self._show_lost(record)
            elif isinstance(record, Steps):
                self._views.append(*table.lines(record))
        self._views.publish()

    # steps --------------------------------------------------------------------------------------------

    def reserve(self, upto: int) -> None:
        """Numbers up to this one may be used from now on."""
        self.append(ReserveRecord(upto=upto))
        self.reserved = upto
        self._has_reserved = True

    def add(self, step: Step) -> None:
        """Record a step; at once, if it has no measurement. Numbers come in their order."""
        steps, table = self._steps, self._table
        if not table.actions.scalar or type(step.action) is not int:
            step.action = table.actions.pack(step.action)
        steps.append(step)
        self.upto = step.number
        if step.unmeasured is not None:
            self.flush()
        elif not len(steps) % table.most:
            if len(steps) >= self._most_waiting:
                self.flush()
            else:
                self.wake()

    def lose(self, last: int) -> int:
        """Record numbers up to ``last`` that have no record as lost, after an interrupt; returns how many there are."""
        self.flush()
        lost = last - self._written
        if lost > 0:
            self._show_lost(self._record_lost(last))
        return max(0, lost)

    def _record_lost(self, last: int) -> Lost:
        lost = Lost(at=self.wall(), first=self._written + 1, last=last)
        self.append(lost)
        self.upto = self._written = last
        return lost

    def _show_lost(self, lost: Lost) -> None:
        if self._every is not None and self._views is not None:
            self._views.append(*self._table.lost_lines(lost, self._every))

    def episode_over(self, episode: Episode) -> None:
        """Record an episode's end."""
        self._over.append(episode)

    def _work(self) -> None:
        """Write the waiting steps in groups; on the keeper, or when it has ended."""
        if self._views is None:
            return
        # In this order: a number counts only after its step is there, an episode is over only after its last one.
        over = self._over[:]
        upto = self.upto
        waiting = self._steps[:]
        most = self._table.most
        for start in range(0, max(len(waiting), 1), most):
            steps = waiting[start : start + most]
            if start + most >= len(waiting):
                self._write(steps, over, max(upto, steps[-1].number if steps else 0))
            else:
                self._write(steps, [], steps[-1].number)
            del self._steps[: len(steps)]
        del self._over[: len(over)]

    def _write(self, steps: list[Step], over: list[Episode], upto: int) -> None:
        if not steps and not over and upto <= self._written:
            return
        assert self._views is not None
        others = Counter(step.unmeasured[0] for step in steps if step.unmeasured is not None)
        group = Steps(
            at=self.wall(),
            since=self.since(),
            upto=upto,
            begun=self.begun,
            statuses={MEASURED: upto - self._written - others.total(), **others},
            worst=self.worst,
            largest=self.largest,
            over=over,
            **self._table.columns_of(steps, {name: side.rows for name, side in self._sides.items()}),
        )
        self.check()
        for name, side in self._sides.items() if steps else ():  # first: the journal names no row that isn't there
            side.append([step.action if name == "action" else step.observation for step in steps])
        self.append(group)
        self._written = upto
        self._views.append(*self._table.lines(group))

    # the session --------------------------------------------------------------------------------------

    def job_started(self, handle: JobHandle) -> None:
        """Write down the handle of a server's process, so that a later session can end it."""
        self.append(JobRecord(number=0, handle=dict(handle)))

    def leftovers(self) -> list[JobHandle]:
        """The handles of the server processes of the last session that started any."""
        return list(self.past.handles.get(0, ()))

    def end(self, code: int, reason: str) -> None:
        """Write down that the experiment came to its end by itself."""
        self.flush()
        self._give_back()
        super().end(code, reason)

    def _finish(self) -> None:
        try:
            self._work()
            self._give_back()
        finally:
            with ExitStack() as let_go:
                if self._views is not None:
                    let_go.callback(self._views.close)
                for side in self._sides.values():
                    let_go.callback(side.close)
                self._before_sync()

    def _give_back(self) -> None:
        if self.reserved > self._written and self._has_reserved:  # numbers of an earlier session are lost instead
            self.reserve(self._written)

    def _before_sync(self) -> None:
        for side in self._sides.values():
            side.sync()
