"""Predicates over tags: small expressions, sent as JSON and evaluated next to the ledger."""

from __future__ import annotations

import contextlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import TagError
from tunegym.dataplane.model import is_unicode, scalar_problem

Scalar: TypeAlias = bool | int | float | str
"""The type of a tag's value; None is allowed, too."""

Column: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The values of one tag, and a mask of the samples that have it."""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DEEPEST = 50
_VALUES = "compare it with a finite number of up to 64 bits, a text, True or False"


class Predicate(ABC):
    """Selects samples by their tags. Build one from ``Tag`` with comparisons, ``&``, ``|`` and ``~``.

    Attributes:
        depth: the nesting depth of ``&``, ``|`` and ``~``.
    """

    depth: int = 0

    def __and__(self, other: Predicate) -> Predicate:
        return Combined("and", (self, _checked(other)))

    def __or__(self, other: Predicate) -> Predicate:
        return Combined("or", (self, _checked(other)))

    def __invert__(self) -> Predicate:
        return Combined("not", (self,))

    def __bool__(self) -> bool:
        raise TypeError("a predicate has no truth value: combine predicates with &, | and ~, not with and, or and not")

    @abstractmethod
    def plain(self) -> list[Any]:
        """As JSON data."""

    @abstractmethod
    def mask(self, columns: Callable[[str], Column]) -> np.ndarray:
        """For each sample, whether it matches. A comparison with a missing tag never matches.

        Raises:
            IncomparableError: values that can't be compared.
        """


class IncomparableError(TagError):
    """The tags of the samples at ``places`` are of another kind than the others, or than a predicate compares with."""

    def __init__(self, message: str, places: np.ndarray) -> None:
        super().__init__(message, hint="give the tag one type in all samples, or clear these")
        self.places = places.tolist()


@contextlib.contextmanager
def naming(names: Callable[[list[int]], Iterable[str]]) -> Iterator[None]:
    """An ``IncomparableError`` inside becomes a ``TagError`` with the ids of its samples."""
    try:
        yield
    except IncomparableError as error:
        raise TagError(error.message, hint=error.hint, sample_ids=names(error.places)) from None


@dataclass(frozen=True)
class TagOrder:
    """The order of a claim by the value of a tag. Samples without it come last."""

    tag: str
    descending: bool

    def plain(self) -> list[Any]:
        """As JSON data."""
        return ["desc" if self.descending else "asc", self.tag]

    def ranks(self, column: Column) -> np.ndarray:
        """A number for each sample: the lowest come first. Raises ``IncomparableError`` for texts among numbers."""
        values, there = column
        ranks = np.full(len(values), len(values), dtype=np.int64)
        try:
            found = np.unique(values[there], return_inverse=True)[1]
        except TypeError:
            texts = np.array([isinstance(one, str) for one in values], dtype=bool)
            fewer = texts if 2 * texts.sum() <= there.sum() else ~texts
            what = f"tag {self.tag!r} has texts and numbers: no order"
            raise IncomparableError(what, np.flatnonzero(there & fewer)) from None
        ranks[there] = -found if self.descending else found
        return ranks


Order: TypeAlias = Literal["oldest", "newest"] | TagOrder
"""Which of the ready samples a claim gets first. The oldest became ready first, the newest were put last."""


@dataclass(frozen=True, eq=False)
class TagComparison(Predicate):
    """A tag compared with a value, or with several for ``in``."""

    tag: str
    sign: str
    value: Any

    def plain(self) -> list[Any]:
        """See ``Predicate``."""
        return [self.sign, self.tag, list(self.value) if self.sign == "in" else self.value]

    def mask(self, columns: Callable[[str], Column]) -> np.ndarray:
        """See ``Predicate``."""
        values, there = columns(self.tag)
        if self.sign == "in":
            found = np.zeros(len(values), dtype=bool)
            for one in self.value:
                found |= self._compared("==", values, there, one)
            return found
        return self._compared(self.sign, values, there, self.value)

    def _compared(self, sign: str, values: np.ndarray, there: np.ndarray, value: Any) -> np.ndarray:
        compare = _COMPARISONS[sign]
        if values.dtype != object:
            if isinstance(value, str):
                return self._other_kind(sign, values, there, value)
            # numpy rounds large integers and floats before it compares them.
            if abs(value) >= 2**53 and not (values.dtype == np.int64 and isinstance(value, int)):
                return self._compared(sign, values.astype(object), there, value)
            return np.asarray(compare(values, value), dtype=bool) & there
        same = np.array([isinstance(one, str) == isinstance(value, str) for one in values], dtype=bool)
        result = self._other_kind(sign, values, there & ~same, value)
        for at in np.flatnonzero(there & same):
            result[at] = compare(values[at], value)
        return result

    def _other_kind(self, sign: str, values: np.ndarray, there: np.ndarray, value: Any) -> np.ndarray:
        """A text and a number are unequal, and not ordered."""
        if sign not in ("==", "!=") and there.any():
            found = values[there][:1].tolist()[0]
            what = f"tag {self.tag!r}: {found!r} and {value!r} can't be compared by {self.sign}"
            raise IncomparableError(what, np.flatnonzero(there))
        return there.copy() if sign == "!=" else np.zeros(len(values), dtype=bool)

    def __str__(self) -> str:
        return f"Tag({self.tag!r}) {self.sign} {self.value!r}"


@dataclass(frozen=True, eq=False)
class Combined(Predicate):
    """``and`` and ``or`` of two, ``not`` of one. Raises ``TagError`` if it is nested too deeply."""

    word: str
    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max(part.depth for part in self.parts))
        if self.depth > _DEEPEST:
            raise _too_deep()

    def plain(self) -> list[Any]:
        """See ``Predicate``."""
        return [self.word, *(part.plain() for part in self.parts)]

    def mask(self, columns: Callable[[str], Column]) -> np.ndarray:
        """See ``Predicate``. ``~`` also matches samples without the tag."""
        masks = [part.mask(columns) for part in self.parts]
        if self.word == "not":
            return ~masks[0]
        return masks[0] & masks[1] if self.word == "and" else masks[0] | masks[1]

    def __str__(self) -> str:
        if self.word == "not":
            return f"~({self.parts[0]})"
        sign = {"and": "&", "or": "|"}[self.word]
        return f"({self.parts[0]}) {sign} ({self.parts[1]})"


def _comparer(sign: str) -> Callable[[Tag, Any], Predicate]:
    return lambda tag, value: TagComparison(tag.name, sign, _value(tag.name, value))


@dataclass(frozen=True, eq=False)
class Tag:
    """The name of a tag: ``Tag("weight_version") >= 3`` is a predicate."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not is_unicode(self.name):
            raise TagError(f"{self.name!r:.60} is not a tag name")

    def __bool__(self) -> bool:
        raise TypeError("a tag has no truth value: compare it, Tag(name) == True")

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return _comparer("==")(self, value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return _comparer("!=")(self, value)

    __lt__, __le__ = _comparer("<"), _comparer("<=")
    __gt__, __ge__ = _comparer(">"), _comparer(">=")
    __hash__ = None  # type: ignore[assignment]

    def asc(self) -> TagOrder:
        """The order of a claim: the lowest values first."""
        return TagOrder(self.name, descending=False)

    def desc(self) -> TagOrder:
        """The order of a claim: the highest values first."""
        return TagOrder(self.name, descending=True)

    def isin(self, values: Any) -> Predicate:
        """Matches any of these values."""
        if isinstance(values, str):
            raise TagError(f"tag {self.name!r}: isin takes several values, not the text {values!r:.60}")
        return TagComparison(self.name, "in", tuple(_value(self.name, one) for one in values))


def from_plain(plain: Any, depth: int = 0) -> Predicate:
    """The predicate of JSON data from an untrusted source. Raises ``TagError``."""
    if depth > _DEEPEST:
        raise _too_deep()
    if not isinstance(plain, list | tuple) or not plain:
        raise TagError(f"not a predicate: {plain!r:.100}")
    word, *rest = plain
    if word in ("and", "or", "not") and len(rest) == (1 if word == "not" else 2):
        return Combined(word, tuple(from_plain(one, depth + 1) for one in rest))
    if len(rest) == 2 and isinstance(rest[0], str) and rest[0]:
        if word == "in" and isinstance(rest[1], list | tuple):
            return Tag(rest[0]).isin(rest[1])
        if isinstance(word, str) and word in _COMPARISONS:
            return TagComparison(rest[0], word, _value(rest[0], rest[1]))
    raise TagError(f"not a predicate: {plain!r:.100}")


def _too_deep() -> TagError:
    return TagError(
        f"a predicate is nested deeper than {_DEEPEST} levels",
        hint="for many values of one tag, use Tag(name).isin(values)",
    )


def _value(name: str, value: Any) -> Scalar:
    plain = value.item() if isinstance(value, np.generic) else value
    problem = "None" if plain is None else scalar_problem(plain)
    if plain is None or problem is not None:
        raise TagError(f"tag {name!r} can't be compared with {problem}", hint=_VALUES)
    return plain


def _checked(other: object) -> Predicate:
    if not isinstance(other, Predicate):
        raise TypeError(f"expected a predicate, got {other!r:.60}; are brackets missing?")
    return other
