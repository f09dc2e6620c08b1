"""The journal of a live experiment: numbers reserved ahead, steps written in groups."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium import spaces
from numpy import ndarray

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError
from tunegym.tuning.model.episode import Episode
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.model.values import Context, printable
from tunegym.tuning.spaces import SpaceError, build, describe, differences, leaves
from tunegym.tuning.stores import reader, records
from tunegym.tuning.stores.appending import Appender, unwritable
from tunegym.tuning.stores.columns import SideFile, row_type
from tunegym.tuning.stores.live_group import MOST_ROWS, TERMINATED, TRUNCATED, Group, Row
from tunegym.tuning.stores.live_views import LiveViews
from tunegym.tuning.stores.live_writing import Facts, GroupWriter
from tunegym.tuning.stores.reader import Journal
from tunegym.tuning.stores.records import Head, Session

logger = logging.getLogger(__name__)

SIDES = {"action": "actions.bin", "observation": "observations.bin"}
"""Files of their own, for elements of many numbers."""

FLUSH_S = 0.5
"""Steps wait no longer than this, half of what a crash may cost."""


class LiveStore:
    """Writes what a live experiment does. One thread steps; another one writes what waits, twice a second.

    Numbers are used only after they were reserved in the journal, so none is ever used twice; those that a crash left
    reserved and not on record become ``lost``. ``declare`` must come before the first step.

    Args:
        folder: the experiment's results.
        head, session: as for any journal.
        recording: which steps are written down.

    Raises:
        StoreLockedError: somebody else writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(
        self,
        folder: Path,
        head: Head,
        session: Session,
        recording: Recording,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._budget = session.agent_steps
        self.recording = recording
        self._env_params = tuple(head.env_params)
        self._metrics = tuple(head.metrics)
        self._journal = Appender(folder, head, session, _scan, clock)
        self.head = self._journal.head
        self.past: Journal = self._journal.past
        self.lost = self.past.reserved - self.past.upto
        self.upto = self.past.upto
        self.reserved = self.past.reserved
        self.begun = self.past.episodes
        self.worst: float | None = self.past.worst
        self.largest = self.past.largest
        self._guard = threading.RLock()
        self._group: Group | None = None
        self._sides: dict[str, SideFile] = {}
        self._writer: GroupWriter | None = None
        self._has_reserved = False
        self._rows: list[Row] = []
        self._over: dict[int, Episode] = {}
        self._last_over: dict[int, int] = {}

    # before the first step ----------------------------------------------------------------------------

    def declare(
        self, actions: spaces.Space[Any], observations: spaces.Space[Any]
    ) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Say what the server's spaces are, and write the views anew.

        Returns:
            Both as they are on record, where a Dict's keys may be in another order, and so are recorded elements.

        Raises:
            StoreError: they are others than those on record, or can't be written down; says which.
        """
        try:
            described = {"action": describe(actions), "observation": describe(observations)}
        except SpaceError as error:
            raise StoreError(f"the server's spaces can't be recorded: {error}", hint="use other spaces") from error
        if self.past.spaces is None:
            self._journal.append({"record": "spaces", **described})
        else:
            actions, observations = self._same(actions, observations)
        if self.lost > 0:
            first, last = self.upto + 1, self.reserved
            self._journal.append({"record": "lost", "first": first, "last": last, "at": self._wall()})
            self.upto = last
            logger.warning(  # at once: whatever fails after this, no later session knows of it
                "the last session was cut off: at most %d step%s lost (numbers %d to %d), which are not used again",
                *(self.lost, " was" if self.lost == 1 else "s were", first, last),
            )
        try:
            # Of a small budget a crash must not cost much, either.
            rows = MOST_ROWS if self._budget is None else max(1, min(MOST_ROWS, self._budget // 100))
            self._group = group = Group(actions, observations, self._metrics, self._env_params, rows)
            spaces_of = {"action": (group.actions, actions), "observation": (group.observations, observations)}
            for name, (columns, space) in spaces_of.items():
                if not columns.inline:
                    rows = self.past.sides.get(name, 0)
                    self._sides[name] = SideFile(self._folder / SIDES[name], row_type(space).itemsize, rows)
            views = LiveViews(self._folder, group, self._env_params)
            views.write_past(self._journal.path, group, self.recording)
            self._writer = GroupWriter(group, self._journal, self._sides, views, self.upto, self._forget)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        self._journal.start(self._keep, FLUSH_S)
        return actions, observations

    def _same(
        self, actions: spaces.Space[Any], observations: spaces.Space[Any]
    ) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        known = self.past.spaces or {}
        recorded = build(known["action"]), build(known["observation"])
        lines = differences(recorded[0], actions, "action_space")
        lines += differences(recorded[1], observations, "observation_space")
        if lines:
            raise StoreError(
                f"{self._folder.name}: the server has other spaces than before: {'; '.join(lines)}",
                hint="start a new run, or put the server back as it was",
            )
        # The server's own ones, unless the keys of a Dict are in another order there.
        found = (actions, observations)
        return found if [*map(leaves, found)] == [*map(leaves, recorded)] else recorded

    # steps --------------------------------------------------------------------------------------------

    def reserve(self, upto: int) -> None:
        """Numbers up to this one may be used from now on."""
        self._journal.append({"record": "reserve", "upto": upto})
        self.reserved = upto
        self._has_reserved = True

    def add(
        self,
        number: int,
        episode: int,
        action: Any,
        observation: Any,
        reward: float,
        duration: float,
        terminated: bool,
        truncated: bool,
        context: Context,
        metrics: Mapping[str, float],
        unmeasured: tuple[str, str] | None = None,
    ) -> None:
        """Record a step, with its status and a reason if it has no measurement; on the disk within a second.

        Numbers come in their order. Whoever is interrupted in it calls ``settle``.
        """
        rows, group = self._rows, self._group
        assert group is not None
        if len(rows) >= group.most:  # they could not be written before
            self.flush()
        columns = group.actions
        if not columns.scalar or type(action) is not int:
            action = columns.pack(action)
        columns = group.observations
        if type(observation) is ndarray and observation.dtype is columns.array:  # quicker than pack
            packed = observation.tobytes()
        else:
            packed = columns.pack(observation)
        ended = 0
        if terminated or truncated:
            ended = TERMINATED * terminated + TRUNCATED * truncated
        # One call, and no lock: a row is there as a whole or not at all, and who writes takes what is there by then.
        row = (number, episode, action, packed, reward, duration, ended, context, metrics, unmeasured)
        rows.append(row)  # type: ignore[arg-type]  # a Row takes four times as long
        self.upto = number
        if len(rows) >= group.most:
            self.flush()

    def add_unmeasured(
        self,
        number: int,
        episode: int,
        action: Any,
        observation: Any,
        reward: float,
        duration: float,
        context: Context,
        status: str,
        reason: str,
    ) -> None:
        """Record a step that has no measurement, at once."""
        told = (status, printable(reason))
        self.add(number, episode, action, observation, reward, duration, False, False, context, {}, told)
        self.flush()

    def episode_over(self, episode: Episode) -> bool:
        """Record an episode's end; False if this was called before, for the same last one of a lane."""
        if self._last_over.get(episode.lane) == episode.number:
            return False
        with self._guard:
            self._over[episode.number] = episode
            self._last_over[episode.lane] = episode.number
        return True

    def settle(self) -> int:
        """The highest number that is used, after an interrupt anywhere."""
        with self._guard:
            waiting = self._rows[-1][0] if self._rows else 0
            written = self._writer.said if self._writer is not None else 0
            self.upto = max(self.upto, waiting, written)
        return self.upto

    def flush(self) -> None:
        """Write what waits."""
        writer = self._writer
        if writer is None:
            return
        with self._guard:
            writer.complete()
            # In this order: a number counts only after its step is there, an episode is over only after its last one.
            over = list(self._over.values())
            upto = self.upto
            rows = self._rows[:]
            if rows:
                upto = max(upto, rows[-1][0])
            writer.write(rows, over, Facts(upto, self.begun, self.worst, self.largest))

    def _forget(self, rows: Sequence[Row], over: Sequence[Episode]) -> None:
        """What is on record waits no longer."""
        if rows and self._rows and self._rows[0] is rows[0]:
            del self._rows[: len(rows)]
        for one in over:
            self._over.pop(one.number, None)

    # the session --------------------------------------------------------------------------------------

    def job_started(self, handle: JobHandle) -> None:
        """Write down the handle of a server's process, so that a later session can end what is left of it."""
        self._journal.append({"record": "job", "number": 0, "handle": handle})

    def leftovers(self) -> list[JobHandle]:
        """The handles of the server processes of the last session that started any."""
        return list(self.past.handles.get(0, ()))

    def forgive(self, seconds: float) -> None:
        """Time of this session that isn't spent on steps."""
        self._journal.forgive(seconds)

    def end(self, code: int, reason: str) -> None:
        """Write down that the experiment came to its end by itself."""
        self._settle()
        self._journal.append(records.end_record(code, reason, self._wall(), self._journal.since()))

    def close(self) -> None:
        """Write what waits, give back what was reserved and not used, and let go. Calling it twice is fine."""
        self._journal.close(self._finish)

    def _finish(self) -> None:
        try:
            self._settle()
        finally:
            with contextlib.ExitStack() as let_go:
                if self._writer is not None:
                    let_go.callback(self._writer.views.close)
                for side in self._sides.values():
                    let_go.callback(side.close)
                for side in self._sides.values():
                    side.sync()

    def _settle(self) -> None:
        self.settle()
        self.flush()
        if self.reserved > self.upto and self._has_reserved:  # what others reserved is not ours to give back
            self.reserve(self.upto)

    def _keep(self) -> None:
        """What waits is written, and what the journal names reaches the disk before it does."""
        self.flush()
        for side in self._sides.values():
            side.sync()

    def _wall(self) -> float:
        return self._journal.wall()


def _scan(path: Path) -> Journal:
    past = reader.scan(path)
    if past.head is not None and past.kind != "live":
        raise StoreError(f"{path} is not that of a live experiment", hint="start a new run")
    return past
