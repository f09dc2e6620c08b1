"""Live steps as columns: a group of steps is encoded once, for its journal record and for its CSV rows.

``Columns`` holds the elements of one space (actions or observations), ``Group`` all columns of some steps. Elements of
many numbers go to a side file (``actions.bin``, ``observations.bin``) instead of the journal and the CSV.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from gymnasium import spaces

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.model.values import Context, exact_key
from tunegym.tuning.spaces import Leaf, leaves
from tunegym.tuning.stores.reader import Lost, Steps
from tunegym.tuning.stores.records import Record
from tunegym.tuning.stores.views import line

INLINE = 32
"""An element of more numbers than this goes to a side file."""
SIDES = {"action": "actions.bin", "observation": "observations.bin"}
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


class Columns:
    """The elements of one group of steps. ``pack`` is cheap; ``fill`` makes columns of all of them at once.

    Attributes:
        leaves: the arrays and numbers that an element consists of.
        inline: whether an element is small enough for a journal and a CSV.
        row_bytes: the size of a packed element.
        array: the dtype of a space that is one array, which ``tobytes`` packs; None of any other.
        scalar: whether an element is one number, packed as it is.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.leaves: list[Leaf] = leaves(space)
        self.inline = sum(leaf.size for leaf in self.leaves) <= INLINE
        self._type = row_type(space)
        self.row_bytes = self._type.itemsize
        alone = len(self.leaves) == 1 and not self.leaves[0].path
        self.scalar = alone and not self.leaves[0].shape
        self.array = self.leaves[0].dtype if alone and not self.scalar else None
        self._buffers: list[np.ndarray] = [np.zeros((0, *leaf.shape), dtype=leaf.dtype) for leaf in self.leaves]
        self._packed = b""
        self._texts: list[bytes | None] = []  # the JSON that plain() made, for cells()

    def names(self, prefix: str) -> list[str]:
        """A column's name for each number of an element."""
        found = [name for leaf in self.leaves for name in leaf.names()]
        return [f"{prefix}.{name}" if name else prefix for name in found]

    def pack(self, element: Any) -> Any:
        """A copy of an element for ``fill``: its numbers without gaps, as in a side file."""
        if self.scalar:  # numbers can't be changed; an array of one can
            return element if isinstance(element, int | float | np.generic) else self.leaves[0].dtype.type(element)
        row = np.empty((), dtype=self._type)
        for leaf, name in zip(self.leaves, self._type.names or (), strict=True):
            row[name] = leaf.of(element)
        return row.tobytes()

    def fill(self, packed: Sequence[Any]) -> None:
        """Take in the elements of a group."""
        self._texts = []
        if self.scalar:
            self._buffers = [np.array(packed, dtype=self.leaves[0].dtype)]
            return
        if not self.leaves:
            return
        self._packed = b"".join(packed)
        rows = np.frombuffer(self._packed, dtype=self._type)
        self._buffers = [rows[name] for name in self._type.names or ()]

    def load(self, arrays: list[Any]) -> None:
        """Take in what ``plain`` gave, from a journal. Raises ``StoreError``."""
        self._texts = []
        self._buffers = [leaf_values(leaf, values) for leaf, values in zip(self.leaves, arrays, strict=True)]

    def plain(self) -> list[Any]:
        """For a record: an array for each leaf."""
        self._texts = [_text(buffer) for buffer in self._buffers]
        return [
            _exact(buffer) if text is None else orjson.Fragment(text)
            for buffer, text in zip(self._buffers, self._texts, strict=True)
        ]

    def cells(self) -> list[list[str]]:
        """For a CSV: for each leaf the text of each row, its numbers joined by commas."""
        texts, self._texts = self._texts or [None] * len(self._buffers), []
        return [
            _cells(buffer.reshape(len(buffer), -1)) if text is None or buffer.ndim > 2 else _split(text, buffer.ndim)
            for buffer, text in zip(self._buffers, texts, strict=True)
        ]

    def packed(self) -> bytes:
        """The elements as in a side file."""
        return self._packed


def leaf_values(leaf: Leaf, values: Any) -> np.ndarray:
    """A leaf's values from a journal, a row for each step; a null is a NaN. Raises ``StoreError``."""
    # Texts and nulls become floats. Integers must not: large ones would lose digits.
    try:
        wide = np.array(values, dtype=np.float64 if leaf.dtype.kind == "f" else leaf.dtype)
        return wide.astype(leaf.dtype).reshape((-1, *leaf.shape))
    except (OverflowError, TypeError, ValueError) as error:
        what = f"the journal is damaged: its {leaf.name or 'values'} are not of {leaf.dtype} {leaf.shape}: {error}"
        raise StoreError(what, hint="start a new run") from error


def _text(array: np.ndarray) -> bytes | None:
    """The JSON of an array; None if there is none."""
    text = orjson.dumps(_whole(array), option=_NUMPY)
    return None if b"null" in text else text


def _whole(array: np.ndarray) -> np.ndarray:
    """Contiguous and aligned, which a field of a structured array need not be."""
    return np.require(array, requirements=["C", "A"])


def _split(text: bytes, rank: int = 1) -> list[str]:
    """The rows of an array's JSON."""
    return text.decode()[1:-1].split(",") if rank == 1 else text.decode()[2:-2].split("],[")


def _exact(array: np.ndarray) -> Any:
    """For JSON, which has no infinity: an array of texts."""
    return array.astype(np.float64).astype(str).tolist()


def row_type(space: spaces.Space[Any]) -> np.dtype[Any]:
    """The dtype of one row of a side file: a field for each leaf, by its name."""
    return np.dtype([(leaf.name or "value", leaf.dtype, leaf.shape) for leaf in leaves(space)])


def _cells(rows: np.ndarray) -> list[str]:
    if not len(rows):
        return []
    if rows.shape[1] == 0:
        return [""] * len(rows)
    text = orjson.dumps(_whole(rows), option=_NUMPY).decode()
    if "null" in text:  # what JSON makes of numbers that are not finite
        return [",".join(repr(number) for number in row) for row in rows.astype(np.float64).tolist()]
    return text[2:-2].split("],[")


class SideFile:
    """A file of rows of one size for large elements. Rows behind the journal's count are cut off at opening.

    Attributes:
        rows: the number of rows written.
    """

    def __init__(self, path: Path, row_bytes: int, rows: int) -> None:
        self._row_bytes = row_bytes
        self.rows = rows
        try:
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size < rows * row_bytes:
                found = size // row_bytes if row_bytes else 0
                raise StoreError(
                    f"{path} is too short: the journal has {rows} rows, and it has {found}",
                    hint="restore the whole file, or start a new run",
                )
            os.ftruncate(self._file, rows * row_bytes)
        except OSError as error:
            raise StoreError(f"{path} can't be written: {error.strerror}", hint="is it yours?") from error

    def append(self, data: bytes, rows: int) -> None:
        """Write rows, all or none. Raises ``OSError``."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            with contextlib.suppress(OSError):  # a resume would cut them off too
                os.ftruncate(self._file, self.rows * self._row_bytes)
            raise
        self.rows += rows

    def sync(self) -> None:
        """Have the rows on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


# groups -----------------------------------------------------------------------------------------------

MOST_ROWS = 1024
MOST_BYTES = 4 << 20
MEASURED = "measured"
TERMINATED, TRUNCATED = 1, 2


class Row(NamedTuple):
    """A step that waits to be written; a plain tuple of the same values does as well.

    Attributes:
        action, observation: as ``Columns.pack`` gives them.
        ended: 0, or the sum of TERMINATED and TRUNCATED.
        unmeasured: status and reason; None of a measured step.
    """

    number: int
    episode: int
    action: Any
    observation: Any
    reward: float
    duration: float
    ended: int
    context: Context
    metrics: Mapping[str, float]
    unmeasured: tuple[str, str] | None


class Group:
    """Steps that are written together, as columns; ``fill`` or ``load`` comes first.

    Attributes:
        most: the largest number of steps in a group, given their size.

    Args:
        actions, observations: the server's spaces.
        metrics: the names of the recorded metrics.
        env_params: the names of a context's parameters.
        most: the largest number of steps, whatever their size.
    """

    def __init__(
        self,
        actions: spaces.Space[Any],
        observations: spaces.Space[Any],
        metrics: Sequence[str],
        env_params: Sequence[str],
        most: int = MOST_ROWS,
    ) -> None:
        self.actions, self.observations = Columns(actions), Columns(observations)
        each = self.actions.row_bytes + self.observations.row_bytes
        self.most = max(1, min(most, MOST_BYTES // max(each, 1)))
        self._metrics = tuple(metrics)
        self._env_params = tuple(env_params)
        self.fill(())

    def fill(self, rows: Sequence[Row], over: Sequence[Episode] = ()) -> None:
        """Take in steps and finished episodes."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(Row._fields)
        self.numbers, self.episodes, actions, observations, self.rewards, self.durations, *others = columns
        ended, self.contexts, self.values, unmeasured = others
        ends = list(compress(range(len(rows)), ended))
        self.terminated = [at for at in ends if ended[at] & TERMINATED]
        self.truncated = [at for at in ends if ended[at] & TRUNCATED]
        self.unmeasured = {at: unmeasured[at] for at in compress(range(len(rows)), unmeasured)}
        self.over = over
        self._texts: dict[str, bytes] = {}
        self.actions.fill(actions)
        self.observations.fill(observations)

    def header(self) -> tuple[str, str]:
        """The first row of both CSVs."""
        columns = [
            *("step", "status", "cached", "reward"),
            *(self.actions.names("action") if self.actions.inline else ()),
            *(f"context.{name}" for name in self._env_params),
            *(self.observations.names("observation") if self.observations.inline else ()),
            *(f"metric.{name}" for name in self._metrics),
            *("duration_s", "episode", "terminated", "truncated"),
        ]
        return line(columns), line(["step", *self._env_params])

    def episode_header(self) -> str:
        """The first row of ``episodes.csv``."""
        return line([*EPISODE_COLUMNS, *(f"context.{name}" for name in self._env_params)])

    def record(self, sides: Mapping[str, int]) -> Record:
        """The group's part of a ``steps`` record; ``sides`` are the rows at which side files continue."""
        count = len(self.numbers)
        record: Record = {"record": "steps", "count": count}
        if count:
            first = self.numbers[0]
            contiguous = self.numbers[-1] - first == count - 1
            record |= {"first": first} if contiguous else {"numbers": self.numbers}
            record |= {
                "episode": self.episodes,
                "reward": orjson.Fragment(self._text("reward")),
                "duration_s": orjson.Fragment(self._text("duration_s")),
                "terminated": self.terminated,
                "truncated": self.truncated,
            }
            for name, columns in (("action", self.actions), ("observation", self.observations)):
                record[name] = {"row": sides[name]} if name in sides else columns.plain()
            if self._env_params:
                record["context"] = _runs(self.contexts)
            if self._metrics:
                record["metrics"] = {name: [one.get(name) for one in self.values] for name in self._metrics}
            if self.unmeasured:
                record["unmeasured"] = [[at, *told] for at, told in self.unmeasured.items()]
        if self.over:
            record["episodes"] = [
                [one.number, one.lane, one.first, one.last, one.length, one.total, one.end, one.context]
                for one in self.over
            ]
        return record

    def lines(self) -> tuple[str, str]:
        """The rows of both CSVs, from the same columns."""
        count = len(self.numbers)
        if not count:
            return "", ""
        steps = _split(orjson.dumps(self.numbers))
        drawn = self._drawn()
        parts = [steps, self._statuses(count), _split(self._text("reward"))]
        parts += self.actions.cells() if self.actions.inline else []
        parts += [drawn] if drawn else []
        parts += self.observations.cells() if self.observations.inline else []
        parts += [[_cell(one.get(name)) for one in self.values] for name in self._metrics]
        parts += [_split(self._text("duration_s")), self._tails()]
        rows = _rows(parts, count)
        env = "\n".join(map(",".join, zip(steps, drawn, strict=True)) if drawn else steps)
        return rows, f"{env}\n"

    def _text(self, column: Literal["reward", "duration_s"]) -> bytes:
        """A column's JSON, made once for the record and the CSV."""
        text = self._texts.get(column)
        if text is None:
            values = self.rewards if column == "reward" else np.round(self.durations, 6)
            self._texts[column] = text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        return text

    def _statuses(self, count: int) -> list[str]:
        """Status and cached, which is always false."""
        statuses = ["measured,false"] * count
        for at, (status, _) in self.unmeasured.items():
            statuses[at] = f"{status},false"
        return statuses

    def _tails(self) -> list[str]:
        """Episode, terminated and truncated."""
        texts = {episode: f"{episode},false,false" for episode in set(self.episodes)}
        tails = list(map(texts.__getitem__, self.episodes))
        for at in {*self.terminated, *self.truncated}:
            flags = ("true" if at in ends else "false" for ends in (self.terminated, self.truncated))
            tails[at] = f"{self.episodes[at]},{','.join(flags)}"
        return tails

    def episode_lines(self) -> str:
        """A row of ``episodes.csv`` for each finished episode."""
        return "".join(episode_line(one, self._env_params) for one in self.over)

    def _drawn(self) -> list[str]:
        """The cells of each step's context, joined."""
        if not self._env_params:
            return []
        seen: tuple[Context, str] | None = None
        cells: list[str] = []
        for context in self.contexts:
            if seen is None or seen[0] is not context:
                seen = context, line([context.get(name, "") for name in self._env_params])[:-1]
            cells.append(seen[1])
        return cells

    def lost_lines(self, lost: Lost, every: int) -> tuple[str, str]:
        """The rows in both CSVs of lost numbers, of which only every ``every``-th would have had one."""
        empty = "," * (self.header()[0].count(",") - 2)
        numbers = [number for number in range(lost.first, lost.last + 1) if number % every == 0]
        rows = "".join(f"{number},cancelled,false{empty}\n" for number in numbers)
        return rows, "".join(f"{number}{',' * len(self._env_params)}\n" for number in numbers)

    def load(self, steps: Steps) -> None:
        """Take in recorded steps; they give the same rows again."""
        count = len(steps.numbers)
        self.over = steps.over
        self._texts = {}
        self.numbers, self.episodes = steps.numbers, steps.episodes
        self.rewards, self.durations = steps.rewards, steps.durations
        self.terminated, self.truncated = steps.terminated, steps.truncated
        self.contexts = steps.context_of()
        self.unmeasured = dict(steps.unmeasured)
        self.values = [
            {name: value for name, column in steps.metrics.items() if (value := column[at]) is not None}
            for at in range(count if self._metrics else 0)
        ]
        for columns, arrays in ((self.actions, steps.actions), (self.observations, steps.observations)):
            if arrays is not None and count:
                columns.load(arrays)


EPISODE_COLUMNS = ("episode", "first_step", "last_step", "length", "return", "end", "lane")


def episode_line(episode: Episode, env_params: Sequence[str]) -> str:
    """An episode's row in ``episodes.csv``."""
    one = episode
    cells = f"{one.number},{one.first},{one.last},{one.length},{one.total!r},{one.end},{one.lane}"
    if not env_params:
        return f"{cells}\n"
    return f"{cells},{line([one.context.get(name, '') for name in env_params])}"


def _runs(contexts: Sequence[Context]) -> list[list[Any]]:
    """Contexts with the place from which each holds."""
    runs: list[list[Any]] = []
    last: Context | None = None
    for at, context in enumerate(contexts):
        if context is not last and (last is None or exact_key(context) != exact_key(last)):
            runs.append([at, context])
        last = context
    return runs


def _rows(columns: list[list[str]], count: int) -> str:
    """Rows of cells, joined at once."""
    width = 2 * len(columns)
    pieces = [","] * (width * count)
    for at, cells in enumerate(columns):
        pieces[2 * at :: width] = cells
    pieces[width - 1 :: width] = ["\n"] * count
    return "".join(pieces)


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)
