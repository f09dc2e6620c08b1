"""From a group of steps to the disk, so that an interrupt at any point of it leaves nothing twice, and nothing out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tunegym.core.errors import StoreError
from tunegym.tuning.model.episode import Episode
from tunegym.tuning.stores.appending import Appender, unwritable
from tunegym.tuning.stores.columns import SideFile
from tunegym.tuning.stores.live_group import MEASURED, Group, Row
from tunegym.tuning.stores.live_views import LiveViews

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True, slots=True)
class Facts:
    """What a record says besides its steps.

    Attributes:
        upto: the highest number that is used.
        begun: how many episodes have begun.
        worst, largest: the scale of the rewards.
    """

    upto: int
    begun: int
    worst: float | None
    largest: float


@dataclass
class _Pending:
    """A group on its way to the disk: everything that is to be written, and where.

    Attributes:
        at: where its record begins.
        packed: rows for files of their own, and the row that they begin at.
        rows: for the views.
        sizes: of the views, before.
        steps, over: what it was made of.
        recorded: whether everything but the views has it.
    """

    upto: int
    line: bytes
    at: int
    packed: dict[str, tuple[int, bytes]]
    rows: tuple[str, str, str]
    sizes: Sequence[int]
    steps: Sequence[Row]
    over: Sequence[Episode]
    recorded: bool = False


class GroupWriter:
    """Writes groups, one after another. Whoever calls it keeps others out.

    An interrupt leaves a group pending; the next call completes it, before anything else.

    Args:
        group: makes columns of steps.
        journal: gets a record for each group.
        sides: files of their own for large elements; written first, so that the journal never names what isn't there.
        views: written last.
        upto: the highest number on record.
        recorded: called with what is on record, whatever becomes of the views; after an interrupt maybe twice.

    Attributes:
        said: the highest number that the journal knows of.
    """

    def __init__(
        self,
        group: Group,
        journal: Appender[Any],
        sides: Mapping[str, SideFile],
        views: LiveViews,
        upto: int,
        recorded: Callable[[Sequence[Row], Sequence[Episode]], None],
    ) -> None:
        self._group = group
        self._journal = journal
        self._sides = sides
        self.views = views
        self.said = upto
        self._recorded = recorded
        self._pending: _Pending | None = None

    def complete(self) -> None:
        """What an interrupt left on its way."""
        if self._pending is not None:
            self._complete(self._pending)

    def write(self, steps: Sequence[Row], over: Sequence[Episode], facts: Facts) -> None:
        """Write steps, and episodes that are over; ``complete`` comes first.

        Raises:
            StoreError: nothing is on record, unless only the views failed.
        """
        if self.views.holed is not None:
            raise self.views.holed
        if not steps and not over and facts.upto == self.said:
            return
        group = self._group
        group.fill(steps, over)
        others = Counter(status for status, _ in group.unmeasured.values())
        record = group.record({name: side.rows for name, side in self._sides.items()})
        record |= {
            "upto": facts.upto,
            "begun": facts.begun,
            "at": self._journal.wall(),
            "since": self._journal.since(),
            "worst": facts.worst,
            "largest": facts.largest,
            "statuses": {MEASURED: facts.upto - self.said - others.total(), **others},
        }
        packed = {
            name: (side.rows, getattr(group, f"{name}s").packed())
            for name, side in (self._sides.items() if steps else ())
        }
        rows = (*group.lines(), group.episode_lines())
        self._pending = _Pending(
            facts.upto,
            orjson.dumps(record, option=_OPTIONS),
            self._journal.size,
            packed,
            rows,
            self.views.sizes,
            steps,
            over,
        )
        self._complete(self._pending)

    def _complete(self, pending: _Pending) -> None:
        """Write what is pending, as far as it isn't. What can't be written is no longer pending: it still waits."""
        if not pending.recorded:
            try:
                for name, (row, data) in pending.packed.items():
                    self._sides[name].append(data, row)
                self._journal.append_once(pending.line, pending.at)
            except (OSError, StoreError) as error:
                self._pending = None
                for name in pending.packed:
                    self._sides[name].cut()
                raise unwritable(self._journal.path, error) if isinstance(error, OSError) else error from error
            for name, (row, _) in pending.packed.items():
                self._sides[name].rows = row + len(pending.steps)
            self.said = pending.upto
            self._recorded(pending.steps, pending.over)
            pending.recorded = True
        self.views.append(*pending.rows, at=pending.sizes)
        self._pending = None
