"""Live steps as columns: packed as they are taken, then written to the journal and to the CSV views.

``Elements`` packs the elements of one space (actions or observations). ``StepTable`` turns packed steps into ``Steps``,
the form in which a reader gives them back too, and any ``Steps`` into CSV rows. Elements of many numbers go to a side
file (``actions.bin``, ``observations.bin``) instead of the journal and the CSV.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
from gymnasium import spaces
from msgspec.structs import astuple

from tunegym.core.errors import StoreError
from tunegym.core.files import append_whole
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.model.values import Context, exact_key
from tunegym.tuning.spaces import Leaf, leaves
from tunegym.tuning.stores.records import Lost, Steps
from tunegym.tuning.stores.views import line

INLINE = 32
"""An element of more numbers than this goes to a side file."""
SIDES = {"action": "actions.bin", "observation": "observations.bin"}
MOST_ROWS = 1024
MOST_BYTES = 4 << 20
MEASURED = "measured"
EPISODE_COLUMNS = ("episode", "first_step", "last_step", "length", "return", "end", "lane")


class Step(msgspec.Struct, gc=False):
    """A step that waits to be written."""

    number: int
    episode: int
    action: Any  # packed when it is added
    observation: Any  # packed
    reward: float
    duration: float
    terminated: bool
    truncated: bool
    context: Context
    metrics: Mapping[str, float]
    unmeasured: tuple[str, str] | None = None  # status and reason, if it has no measurement
    version: int | None = None  # of the policy that chose the action


class Elements:
    """The elements of one space: its leaves are the arrays and numbers that an element consists of."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self.leaves: list[Leaf] = leaves(space)
        self.inline = sum(leaf.size for leaf in self.leaves) <= INLINE  # small enough for a journal and a CSV
        # of one row of a side file: a field for each leaf, by its name
        self.dtype = np.dtype([(leaf.name or "value", leaf.dtype, leaf.shape) for leaf in self.leaves])
        alone = len(self.leaves) == 1 and not self.leaves[0].path
        self.scalar = alone and not self.leaves[0].shape  # packed as it is
        self.array = self.leaves[0].dtype if alone and not self.scalar else None  # packed by ``tobytes``

    def names(self, prefix: str) -> list[str]:
        """A column's name for each number of an inline element."""
        names = [name for leaf in self.leaves for name in leaf.names()] if self.inline else []
        return [f"{prefix}.{name}" if name else prefix for name in names]

    def pack(self, element: Any) -> Any:
        """A copy of an element: a number, or bytes without gaps, as in a side file."""
        if type(element) is np.ndarray and element.dtype is self.array:  # much quicker than by leaves
            return element.tobytes()
        if self.scalar:  # numbers can't be changed; an array of one can
            return element if isinstance(element, int | float | np.generic) else self.leaves[0].dtype.type(element)
        row = np.empty((), dtype=self.dtype)
        for leaf, name in zip(self.leaves, self.dtype.names or (), strict=True):
            row[name] = leaf.of(element)
        return row.tobytes()

    def unpack(self, packed: Any) -> Any:
        """The element that was packed."""
        return self._elements(self.arrays([packed]), 1)[0]

    def arrays(self, packed: Sequence[Any]) -> list[np.ndarray]:
        """An array for each leaf, with a row for each packed element."""
        if self.scalar:
            return [np.array(packed, dtype=self.leaves[0].dtype)]
        rows = np.frombuffer(b"".join(packed), dtype=self.dtype) if self.leaves else np.zeros(0, self.dtype)
        return self._columns(rows)

    def texts(self, packed: Sequence[Any]) -> list[msgspec.Raw] | None:
        """For a journal and a CSV: the JSON of each leaf's rows; None if they go to a side file."""
        if not self.inline:
            return None
        columns = zip(self.leaves, self.arrays(packed), strict=True)
        return [msgspec.Raw(_json(leaf, column)) for leaf, column in columns]

    def cells(self, values: list[Any] | None) -> list[list[str]]:
        """For a CSV: for each leaf the text of each row, its numbers joined by commas."""
        if values is None:
            return []
        return [_cells(leaf, column) for leaf, column in zip(self.leaves, values, strict=True)]

    def inlined(self, values: list[Any]) -> list[np.ndarray]:
        """An array for each leaf from the values in a journal. Raises ``StoreError``."""
        return [leaf_values(leaf, column) for leaf, column in zip(self.leaves, values, strict=True)]

    def mapped(self, path: Path, rows: int) -> np.ndarray:
        """The first ``rows`` of a side file, as a read-only memory map. Raises ``StoreError``."""
        if not rows:
            return np.zeros(0, dtype=self.dtype)
        try:
            size = path.stat().st_size // self.dtype.itemsize
        except OSError as error:
            raise StoreError(f"{path} can't be read: {error.strerror}", hint="put the file back") from error
        if size < rows:
            fault = f"{path} is too short: the journal knows of {rows} rows, and it has {size}"
            raise StoreError(fault, hint="put the whole file back")
        return np.memmap(path, dtype=self.dtype, mode="r", shape=(rows,))

    def read(self, values: list[Any] | None, path: Path, row: int, count: int) -> list[Any]:
        """The elements of some steps: of ``values``, or if None ``count`` rows of a side file, from ``row`` on."""
        columns = self.inlined(values) if values is not None else self._columns(self.mapped(path, row + count)[row:])
        return self._elements(columns, count)

    def _elements(self, arrays: list[np.ndarray], count: int) -> list[Any]:
        columns = {leaf.path: column for leaf, column in zip(self.leaves, arrays, strict=True)}
        return [_element(self._space, columns, row) for row in range(count)]

    def _columns(self, rows: np.ndarray) -> list[np.ndarray]:
        # A field of a structured array is neither contiguous nor aligned, as orjson and agents need it.
        return [np.array(rows[name]) for name in self.dtype.names or ()]


def _element(space: spaces.Space[Any], columns: Mapping[Any, Any], row: int, path: tuple[str | int, ...] = ()) -> Any:
    """An element of ``space`` from row ``at`` of each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _element(part, columns, row, (*path, str(key))) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_element(part, columns, row, (*path, index)) for index, part in enumerate(space.spaces))
    return columns[path][row]


def leaf_values(leaf: Leaf, values: Any) -> np.ndarray:
    """A leaf's values, a row for each step; in a journal a null is a NaN. Raises ``StoreError``."""
    # Texts and nulls become floats. Integers must not: large ones would lose digits.
    try:
        wide = np.array(values, dtype=np.float64 if leaf.dtype.kind == "f" else leaf.dtype)
        return wide.astype(leaf.dtype).reshape((-1, *leaf.shape))
    except (OverflowError, TypeError, ValueError) as error:
        fault = f"the journal is damaged: its {leaf.name or 'values'} are not of {leaf.dtype} {leaf.shape}: {error}"
        raise StoreError(fault, hint="start a new run") from error


def _json(leaf: Leaf, column: np.ndarray) -> bytes:
    """The rows of a leaf. JSON has no infinity: with one among them, all numbers are strings.

    ``msgspec`` needs lists of Python's floats for this: twice the time, and digits that a float32 doesn't have.
    """
    rows = column.reshape(len(column), leaf.size) if leaf.shape else column
    text = orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
    return text if b"null" not in text else orjson.dumps(rows.astype(np.float64).astype(str).tolist())


def _cells(leaf: Leaf, values: Any) -> list[str]:
    json = bytes(values) if isinstance(values, msgspec.Raw) else _json(leaf, leaf_values(leaf, values))
    text = json.decode().replace('"', "")
    return text[2:-2].split("],[") if leaf.shape else text[1:-1].split(",")


class SideFile:
    """A file of rows of one size for large elements. Rows behind the journal's count are cut off at opening."""

    def __init__(self, path: Path, row_bytes: int, rows: int) -> None:
        self.rows = rows
        try:
            with contextlib.ExitStack() as undo:
                self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
                undo.callback(os.close, self._file)
                size = os.fstat(self._file).st_size // row_bytes
                if size < rows:
                    raise StoreError(
                        f"{path} is too short: the journal has {rows} rows, and it has {size}",
                        hint="restore the whole file, or start a new run",
                    )
                os.ftruncate(self._file, rows * row_bytes)
                undo.pop_all()
        except OSError as error:
            raise StoreError(f"{path} can't be written: {error.strerror}", hint="is it yours?") from error

    def append(self, packed: Sequence[bytes]) -> None:
        """Write rows, all or none. Raises ``OSError``."""
        append_whole(self._file, b"".join(packed))
        self.rows += len(packed)

    def sync(self) -> None:
        """Have the rows on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class StepTable:
    """The columns of an experiment's steps.

    Attributes:
        columns: their names, as in ``trajectory.csv``.
        most: the largest number of steps in a group, given their size.
    """

    def __init__(
        self,
        actions: spaces.Space[Any],
        observations: spaces.Space[Any],
        metrics: Sequence[str],
        env_params: Sequence[str],
        most: int = MOST_ROWS,
    ) -> None:
        self.actions, self.observations = Elements(actions), Elements(observations)
        each = self.actions.dtype.itemsize + self.observations.dtype.itemsize
        self.most = max(1, min(most, MOST_BYTES // max(each, 1)))
        self._metrics = tuple(metrics)
        self._env_params = tuple(env_params)
        self._drawn_columns = [f"context.{name}" for name in env_params]
        self.columns = [
            *("step", "status", "cached", "reward"),
            *self.actions.names("action"),
            *self._drawn_columns,
            *self.observations.names("observation"),
            *(f"metric.{name}" for name in metrics),
            *("duration_s", "episode", "terminated", "truncated"),
        ]

    def header(self) -> tuple[str, str, str]:
        """The first row of each CSV."""
        drawn = self._drawn_columns
        return line(self.columns), line(["step", *self._env_params]), line([*EPISODE_COLUMNS, *drawn])

    def columns_of(self, steps: Sequence[Step], sides: Mapping[str, int]) -> dict[str, Any]:
        """The columns of ``Steps``; ``sides`` are the rows at which side files continue."""
        rows = list(zip(*map(astuple, steps), strict=True)) or [()] * len(Step.__struct_fields__)
        column = dict(zip(Step.__struct_fields__, rows, strict=True))
        places = range(len(steps))
        return {
            "numbers": list(column["number"]),
            "episodes": list(column["episode"]),
            "rewards": list(column["reward"]),
            "durations": np.round(column["duration"], 6).tolist(),
            "terminated": list(compress(places, column["terminated"])),
            "truncated": list(compress(places, column["truncated"])),
            "actions": self.actions.texts(column["action"]),
            "observations": self.observations.texts(column["observation"]),
            "action_row": sides.get("action", 0),
            "observation_row": sides.get("observation", 0),
            "contexts": _runs(column["context"]) if self._env_params else [],
            "metrics": {name: [metrics.get(name) for metrics in column["metrics"]] for name in self._metrics},
            "unmeasured": {index: steps[index].unmeasured for index in compress(places, column["unmeasured"])},
            "weight_versions": [] if None in column["version"] else list(column["version"]),
        }

    def lines(self, steps: Steps) -> tuple[str, str, str]:
        """The rows of each CSV."""
        over = "".join(self._episode_line(episode) for episode in steps.over)
        if not steps.numbers:
            return "", "", over
        numbers = _split(steps.numbers)
        drawn = self._drawn(steps)
        statuses = [f"{MEASURED},false"] * len(numbers)  # cached is always false
        for index, (status, _) in steps.unmeasured.items():
            statuses[index] = f"{status},false"
        columns = [
            numbers,
            statuses,
            _split(steps.rewards),
            *self.actions.cells(steps.actions),
            *([drawn] if drawn else []),
            *self.observations.cells(steps.observations),
            *([_cell(value) for value in steps.metrics.get(name, ())] for name in self._metrics),
            _split(steps.durations),
            _tails(steps),
        ]
        return _joined(columns), _joined([numbers, drawn] if drawn else [numbers]), over

    def lost_lines(self, lost: Lost, every: int) -> tuple[str, str, str]:
        """The rows of lost numbers, of which only every ``every``-th would have had one."""
        empty = "," * (len(self.columns) - 3)
        numbers = [number for number in range(lost.first, lost.last + 1) if number % every == 0]
        rows = "".join(f"{number},cancelled,false{empty}\n" for number in numbers)
        return rows, "".join(f"{number}{',' * len(self._env_params)}\n" for number in numbers), ""

    def _drawn(self, steps: Steps) -> list[str]:
        """The cells of each step's context, joined."""
        if not self._env_params:
            return []
        seen: tuple[Context, str] | None = None
        cells: list[str] = []
        for context in steps.context_of():
            if seen is None or seen[0] is not context:
                seen = context, line([context.get(name, "") for name in self._env_params])[:-1]
            cells.append(seen[1])
        return cells

    def _episode_line(self, episode: Episode) -> str:
        cells = [episode.number, episode.first, episode.last, episode.length, episode.total, episode.end, episode.lane]
        return line([*cells, *(episode.context.get(name, "") for name in self._env_params)])


def _runs(contexts: Sequence[Context]) -> list[tuple[int, Context]]:
    """Contexts with the place from which each holds."""
    runs: list[tuple[int, Context]] = []
    last: Context | None = None
    for index, context in enumerate(contexts):
        if context is not last and (last is None or exact_key(context) != exact_key(last)):
            runs.append((index, context))
        last = context
    return runs


def _tails(steps: Steps) -> list[str]:
    """Episode, terminated and truncated."""
    texts = {episode: f"{episode},false,false" for episode in set(steps.episodes)}
    tails = list(map(texts.__getitem__, steps.episodes))
    for index in {*steps.terminated, *steps.truncated}:
        tails[index] = line([steps.episodes[index], index in steps.terminated, index in steps.truncated])[:-1]
    return tails


def _split(numbers: list[Any]) -> list[str]:
    """The text of each number; much quicker than one by one."""
    return orjson.dumps(numbers).decode()[1:-1].split(",")


def _joined(columns: list[list[str]]) -> str:
    return "\n".join(map(",".join, zip(*columns, strict=True))) + "\n"


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)
