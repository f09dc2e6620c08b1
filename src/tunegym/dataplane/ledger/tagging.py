"""The tags of all samples of a partition, by column, so that a predicate is one look at an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.ledger.spans import Span, array_of, every

_KINDS: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_}
_MOST_TEXTS = 4096
_MOST_NAMES = 256
_ALLOWED = frozenset({int, float, bool, str, type(None)})

Checked: TypeAlias = list[tuple[str, "list[int] | None", Any, Any]]
"""By tag: its name, at which samples (None: all), of which kind, and the values; one without a dimension is for all."""


def check_columns(tags: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Checked:
    """Tags of each sample, or the same for all, by column. Raises ``TagError`` for what is no tag."""
    if not tags:
        return []
    if isinstance(tags, Mapping):
        return [_same_for_all(_checked(name, None, [value])) for name, value in tags.items()]
    first = tags[0]
    if set(map(len, tags)) == {len(first)}:
        with suppress(KeyError):  # as many tags each, and the same ones
            return [_checked(name, None, [one[name] for one in tags]) for name in first]
    columns: Checked = []
    for name in dict.fromkeys(name for one in tags for name in one):
        having = [at for at, one in enumerate(tags) if name in one]
        columns.append(_checked(name, having, [tags[at][name] for at in having]))
    return columns


def _checked(name: str, having: list[int] | None, values: list[Any]) -> tuple[str, list[int] | None, Any, Any]:
    kinds = set(map(type, values))
    if not kinds <= _ALLOWED or not isinstance(name, str):
        wrong = next((kind.__name__ for kind in kinds - _ALLOWED), "named by something else than a text")
        raise TagError(f"tag {name!r} is {wrong}", hint="tags are numbers, texts, True, False and None")
    kind = _KINDS.get(next(iter(kinds)), object) if len(kinds) == 1 else object
    if kind is object:
        return name, having, object, values
    try:
        return name, having, kind, np.array(values, dtype=kind)
    except OverflowError:
        raise TagError(f"tag {name!r} is an integer beyond 64 bits") from None


def _same_for_all(checked: tuple[str, list[int] | None, Any, Any]) -> tuple[str, list[int] | None, Any, Any]:
    name, having, kind, values = checked
    return name, having, kind, np.array(values[0], dtype=kind)


class TagColumns:
    """A typed column for each tag; of mixed kinds, or texts, a column of objects."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._values: dict[str, np.ndarray] = {}
        self._there: dict[str, np.ndarray] = {}
        self._texts: dict[str, str] = {}

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        self._drop_empty()
        for columns in (self._values, self._there):
            for name, old in columns.items():
                fresh = np.zeros(rows, dtype=old.dtype)
                fresh[: len(old)] = old
                columns[name] = fresh
        self._rows = rows

    def _drop_empty(self) -> None:
        """Tags that no sample has any more take no room."""
        for name in [name for name, there in self._there.items() if not there.any()]:
            del self._values[name], self._there[name]

    def checked(self, tags: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Checked:
        """Tags of each sample, or the same for all, by column.

        Raises:
            TagError: for what is no tag, or if there would be too many names.
        """
        columns = check_columns(tags)
        fresh = {name for name, *_ in columns if name not in self._values}
        if fresh and len(self._values) + len(fresh) > _MOST_NAMES:
            self._drop_empty()
            fresh = {name for name, *_ in columns if name not in self._values}
            if len(self._values) + len(fresh) > _MOST_NAMES:
                raise TagError(
                    f"with {min(fresh)!r} there would be {len(self._values) + len(fresh)} names of tags, more than"
                    f" {_MOST_NAMES}",
                    hint="give a tag one name, and what differs as its value",
                )
        return columns

    def put(self, rows: Span, tags: Sequence[Mapping[str, Any]]) -> None:
        """Set these tags of these rows; others of theirs stay. Raises ``TagError``, and then nothing is set."""
        self.put_checked(rows, self.checked(tags))

    def put_checked(self, rows: Span, tags: Checked) -> None:
        """Set tags that were checked."""
        for name, having, kind, values in tags:
            self._set(name, rows if having is None else array_of(rows)[having], kind, values)

    def _set(self, name: str, rows: Span, kind: Any, values: Any) -> None:
        column = self._values.get(name)
        if column is None:
            column = self._values[name] = np.zeros(self._rows, dtype=kind)
            self._there[name] = np.zeros(self._rows, dtype=bool)
        elif column.dtype != kind and column.dtype != object:
            column = self._widened(name, column)
        if column.dtype == object:
            given = values.tolist() if isinstance(values, np.ndarray) else values
            if not isinstance(given, list):
                column[rows] = self._same(given) if type(given) is str else given
            else:
                each = np.empty(len(given), dtype=object)
                each[:] = [self._same(one) if type(one) is str else one for one in given]
                column[rows] = each
        else:
            column[rows] = values
        self._there[name][rows] = True

    def _same(self, text: str) -> str:
        """An equal text that is there already, so that many of a few take no room."""
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        return self._texts.setdefault(text, text)

    def _widened(self, name: str, column: np.ndarray) -> np.ndarray:
        """A column of another kind becomes one of objects, with Python's own values."""
        objects = np.zeros(len(column), dtype=object)
        there = np.flatnonzero(self._there[name])
        for row, value in zip(there.tolist(), column[there].tolist(), strict=True):
            objects[row] = value
        self._values[name] = objects
        return objects

    def forget(self, rows: Span) -> None:
        """The samples of these rows are gone."""
        for name, there in self._there.items():
            there[rows] = False
            if self._values[name].dtype == object:
                self._values[name][rows] = None

    def column(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of a tag at rows, and whether each has it (None counts as not having it)."""
        values = self._values.get(name)
        if values is None:
            return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        found, there = values[rows], self._there[name][rows]
        if found.dtype == object:
            there = there & np.array([one is not None for one in found], dtype=bool)
        return found, there

    def value(self, row: int, name: str) -> Any:
        """A tag of one row; None if it has none."""
        there = self._there.get(name)
        return self._values[name].item(row) if there is not None and there.item(row) else None

    def of(self, rows: Span) -> list[dict[str, Any]] | dict[str, Any] | None:
        """All tags of each row, or of all rows if those are the same; None if they have none."""
        found: list[tuple[str, np.ndarray, np.ndarray]] = []
        for name, there in self._there.items():
            here = there[rows]
            if np.count_nonzero(here):
                found.append((name, here, self._values[name][rows]))
        if not found:
            return None
        if all(every(here) for _, here, _ in found):
            if all(_are_one(values) for _, _, values in found):
                return {name: values.item(0) for name, _, values in found}
            names = [name for name, _, _ in found]
            columns = [values.tolist() for _, _, values in found]
            return [dict(zip(names, one)) for one in zip(*columns)]  # noqa: B905 - of one length each, and this is a hot loop
        tags: list[dict[str, Any]] = [{} for _ in range(len(found[0][1]))]
        for name, here, values in found:
            for at, (has, value) in enumerate(zip(here.tolist(), values.tolist(), strict=True)):
                if has:
                    tags[at][name] = value
        return tags

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Any, rows: int) -> list[list[Any]]:
        """All of it, of so many rows, as plain data and arrays."""
        columns = []
        for name, values in self._values.items():
            there = self._there[name][:rows]
            if not there.any():
                continue
            plain = values.dtype == object
            values = values[:rows][there].tolist() if plain else keep(values[:rows])
            columns.append([name, keep(there), plain, values])
        return columns

    def restore(self, state: Sequence[Sequence[Any]], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state; there must be room for its rows."""
        for name, has, plain, kept in state:
            there = np.zeros(self._rows, dtype=bool)
            there[: len(arrays[has])] = arrays[has]
            values = np.zeros(self._rows, dtype=object if plain else arrays[kept].dtype)
            if plain:
                for row, value in zip(np.flatnonzero(there).tolist(), kept, strict=True):
                    values[row] = self._same(value) if type(value) is str else value
            else:
                values[: len(arrays[kept])] = arrays[kept]
            self._values[name], self._there[name] = values, there


def _are_one(values: np.ndarray) -> bool:
    """Whether all are the very same: 1 is not True, and 0.0 is not -0.0."""
    if values.dtype == object:
        first = values[0]
        return all(one is first for one in values.tolist())
    if values.dtype == np.float64:
        values = values.view(np.int64)
    return every(values == values[0])
