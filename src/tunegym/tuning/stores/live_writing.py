"""From a group of steps to the disk, so that an interrupt at any point of it leaves nothing twice, and nothing out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tunegym.core.errors import StoreError
from tunegym.tuning.stores.appending import Appender, unwritable
from tunegym.tuning.stores.columns import SideFile
from tunegym.tuning.stores.live_group import MEASURED, Group
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
        recorded: whether everything but the views has it.
    """

    upto: int
    count: int
    line: bytes
    at: int
    packed: dict[str, tuple[int, bytes]]
    rows: tuple[str, str, str]
    sizes: Sequence[int]
    recorded: bool = False


class GroupWriter:
    """Writes groups, one after another. Whoever calls it keeps others out.

    An interrupt leaves a group pending; the next call completes it, before anything else.

    Args:
        journal: gets a record for each group.
        sides: files of their own for large elements; written first, so that the journal never names what isn't there.
        views: written last.
        upto: the highest number on record.
    """

    def __init__(self, journal: Appender[Any], sides: Mapping[str, SideFile], views: LiveViews, upto: int) -> None:
        self._journal = journal
        self._sides = sides
        self.views = views
        self._said = upto
        self._pending: _Pending | None = None

    def write(self, group: Group, facts: Facts) -> None:
        """Write a group, and empty it. Raises ``StoreError``: then it is as it was, unless only the views failed."""
        if self._pending is not None:
            self._complete(self._pending, group)
        if self.views.holed is not None:
            raise self.views.holed
        count = len(group.numbers)
        if not count and not group.over and facts.upto == self._said:
            return
        others = Counter(status for status, _ in group.unmeasured.values())
        record = group.record({name: side.rows for name, side in self._sides.items()})
        record |= {
            "upto": facts.upto,
            "begun": facts.begun,
            "at": self._journal.wall(),
            "since": self._journal.since(),
            "worst": facts.worst,
            "largest": facts.largest,
            "statuses": {MEASURED: facts.upto - self._said - others.total(), **others},
        }
        packed = {
            name: (side.rows, getattr(group, f"{name}s").packed(count))
            for name, side in (self._sides.items() if count else ())
        }
        rows = (*group.lines(), group.episode_lines())
        self._pending = _Pending(
            facts.upto,
            count,
            orjson.dumps(record, option=_OPTIONS),
            self._journal.size,
            packed,
            rows,
            self.views.sizes,
        )
        self._complete(self._pending, group)

    def _complete(self, pending: _Pending, group: Group) -> None:
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
                self._sides[name].rows = row + pending.count
            self._said = pending.upto
            group.clear()  # it is on record now, whatever becomes of the views
            pending.recorded = True
        self.views.append(*pending.rows, at=pending.sizes)
        self._pending = None
