"""From sample ids to rows and back. Numbered ids (``rollout-17``) cost a few bytes each, others themselves and some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunegym.dataplane.ledger.named import Named, hashes_of
from tunegym.dataplane.ledger.numbering import CHUNK, UNKNOWN, Form, Numbered, Spent, form_of, numbers_of, spelled
from tunegym.dataplane.ledger.spans import Span, array_of, every, span_of

_MANY = 64
"""So many ids of one form, in a call or one after another, make that form numbered."""
_MOST_FORMS = 4096
_MOST_IDLE, _MOST_PACKED = 64, 1 << 14
"""How many chunks without any id that is there are kept as they were, and how many as bits."""
_REMEMBERED = 1 << 18
"""How many retired ids are remembered that are not numbered: the newest."""

Keep = Callable[[np.ndarray], int]
"""Takes an array into a snapshot, and says at which place."""


@dataclass(slots=True)
class Found:
    """Ids that were looked up.

    Attributes:
        rows: the row of each, ``UNKNOWN`` or ``RETIRED``.
        form, numbers: what the ids are, if all are of one form.
        hashes: of the ids, if they were needed.
    """

    rows: np.ndarray
    form: Form | None = None
    numbers: np.ndarray | None = None
    hashes: np.ndarray | None = None

    def distinct(self, ids: Sequence[str]) -> bool:
        """Whether no id is there twice."""
        if self.numbers is not None and every(self.numbers[1:] > self.numbers[:-1]):
            return True
        return len(set(ids)) == len(ids)


class IdIndex:
    """Which row an id has. An id is used once: when its sample is gone it is retired, not free again.

    Numbered ids are remembered for good, as long as few of their numbers are left out; of the others the newest
    ``_REMEMBERED``. Ids whose numbers are far apart are such others.
    """

    def __init__(self, rows: int) -> None:
        self._forms: dict[Form, Numbered] = {}
        self._by_place: list[Numbered] = []
        self._vacant: list[int] = []
        self._spent = Spent()
        self._others = Named(_REMEMBERED)
        self._run: tuple[Form | None, int] = (None, 0)
        self._rows = rows
        self._place = np.zeros(0, dtype=np.int16)
        self._number = np.zeros(0, dtype=np.int64)

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        self._rows = rows
        if self._by_place:
            self._make_room()

    def _make_room(self) -> None:
        """Numbered ids have a place, from 1 on, and a number; as long as there are none, this takes no room."""
        place, number = np.zeros(self._rows, dtype=np.int16), np.zeros(self._rows, dtype=np.int64)
        place[: len(self._place)], number[: len(self._number)] = self._place, self._number
        self._place, self._number = place, number

    def find(self, ids: Sequence[str]) -> Found:
        """Look ids up."""
        form, numbers = numbers_of(ids) or (None, None)
        known = self._forms.get(form) if form is not None else None
        if known is not None and numbers is not None:
            rows = known.rows(numbers)
            found = Found(rows, form, numbers)
            if self._others:
                unknown = np.flatnonzero(rows == UNKNOWN)
                if len(unknown):
                    found.hashes = hashes_of(ids)
                    rows[unknown] = self._others.find([ids[at] for at in unknown.tolist()], found.hashes[unknown])
            return found
        hashes = hashes_of(ids)
        rows = self._others.find(ids, hashes)
        if self._forms:
            for at in np.flatnonzero(rows == UNKNOWN).tolist():
                rows[at] = self._lone(ids[at])
        return Found(rows, form, numbers, hashes)

    def _lone(self, sample_id: str) -> int:
        """Perhaps a numbered one among ids of other forms."""
        parsed = form_of(sample_id)
        known = self._forms.get(parsed[0]) if parsed is not None else None
        return UNKNOWN if known is None or parsed is None else int(known.rows(np.array([parsed[1]]))[0])

    def put(self, ids: Sequence[str], rows: Span, found: Found) -> None:
        """Give new ids their rows; ``found`` is what looking up just these gave."""
        numbered = None
        if found.form is not None and found.numbers is not None:
            numbered = self._numbered(found.form, found.numbers)
        if numbered is not None:
            assert found.numbers is not None
            numbered.put(found.numbers, array_of(rows))
            self._place[rows] = numbered.place + 1
            self._number[rows] = found.numbers
            return
        if self._by_place:
            self._place[rows] = 0
        self._others.put(ids, hashes_of(ids) if found.hashes is None else found.hashes, rows, self._rows)

    def _numbered(self, form: Form, numbers: np.ndarray) -> Numbered | None:
        """The index of a form; None if too few ids are of it to be worth one, or these are too far apart."""
        numbered = self._forms.get(form)
        if numbered is not None:
            return numbered if numbered.fits(numbers) else None
        self._run = form, len(numbers) + (self._run[1] if self._run[0] == form else 0)
        place = self._vacant[-1] if self._vacant else len(self._by_place)
        if self._run[1] < _MANY or place >= _MOST_FORMS:
            return None
        numbered = Numbered(place, form, self._spent)
        if not numbered.fits(numbers):
            return None
        self._forms[form] = numbered
        if self._vacant:
            self._by_place[self._vacant.pop()] = numbered
        else:
            self._by_place.append(numbered)
        if len(self._place) < self._rows:
            self._make_room()
        return numbered

    def names(self, rows: Span) -> list[str]:
        """The ids of rows."""
        place = self._place_of(rows)
        if place == 0:
            return self._others.names(rows)
        if place is not None:
            return spelled(self._by_place[place - 1].form, self._number[rows])
        each = array_of(rows)
        names: list[Any] = [None] * len(each)
        places = self._place[each]
        for one in np.unique(places).tolist():
            at = np.flatnonzero(places == one)
            own = each[at]
            found = self._others.names(own) if not one else spelled(self._by_place[one - 1].form, self._number[own])
            for where, name in zip(at.tolist(), found, strict=True):
                names[where] = name
        return names

    def _place_of(self, rows: Span) -> int | None:
        """The one place of all these rows; None if they have several."""
        if not self._by_place:
            return 0
        places = self._place[rows]
        if not len(places):
            return 0
        return int(places[0]) if every(places == places[0]) else None

    def retire(self, rows: Span) -> None:
        """The samples of these rows are gone."""
        place = self._place_of(rows)
        if place is not None:
            self._retire(place, rows)
            return
        each = array_of(rows)
        places = self._place[each]
        for one in np.unique(places).tolist():
            self._retire(one, each[places == one])

    def _retire(self, place: int, rows: Span) -> None:
        if place:
            self._by_place[place - 1].retire(self._number[rows])
            self._tidy()
            return
        self._others.retire(rows)

    def _tidy(self) -> None:
        """Of chunks with nothing in them that is there, the oldest take less room, and none in the end."""
        idle, packed = self._spent.idle, self._spent.packed
        while len(idle) > _MOST_IDLE:
            place, chunk = next(iter(idle))
            self._by_place[place].pack(chunk)
        while len(packed) > _MOST_PACKED:
            place, chunk = next(iter(packed))
            numbered = self._by_place[place]
            self._others.remember(spelled(numbered.form, numbered.forget(chunk)))
            if not numbered:
                del self._forms[numbered.form]
                self._vacant.append(place)

    # snapshots ----------------------------------------------------------------------------------------

    def state(self, keep: Keep, rows: int) -> dict[str, Any]:
        """All of it, of so many rows, as plain data and arrays."""
        places, numbers = self._place[:rows], self._number[:rows]  # both empty if nothing is numbered
        others = self._others.all()
        return {
            "place": keep(places),
            "number": keep(numbers),
            "others": [texts(self._others.names(others), keep), keep(others)],
            "retired": texts(self._others.retired(), keep),
            "run": self._run,
            "forms": [
                {
                    "form": one.form,
                    "chunks": list(one.chunks),
                    "rows": keep(np.concatenate([*one.chunks.values(), np.zeros(0, dtype=np.int32)])),
                    "packed": list(one.packed),
                    "bits": keep(np.frombuffer(b"".join(one.packed.values()), dtype=np.uint8)),
                    "used_up": one.used_up,
                }
                for one in self._by_place
            ],
            "spent": [
                keep(np.array(list(some), dtype=np.int64).reshape(-1, 2))
                for some in (self._spent.idle, self._spent.packed)
            ],
        }

    def restore(self, state: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Take on a state; there must be room for its rows."""
        if state["forms"]:
            self._place, self._number = arrays[state["place"]], arrays[state["number"]]
            self._make_room()
        names, rows = read_texts(state["others"][0], arrays), arrays[state["others"][1]]
        if names:
            self._others.put(names, hashes_of(names), span_of(rows.astype(np.int32)), self._rows)
        self._others.remember(read_texts(state["retired"], arrays))
        form, count = state["run"]
        self._run = (None if form is None else _form(form)), count
        for place, plain in enumerate(state["forms"]):
            one = Numbered(place, _form(plain["form"]), self._spent, used_up=[list(run) for run in plain["used_up"]])
            for chunk, some in zip(plain["chunks"], arrays[plain["rows"]].reshape(-1, CHUNK), strict=True):
                one.take(chunk, some.copy())
            bits = arrays[plain["bits"]].reshape(-1, CHUNK // 8)
            one.packed = {chunk: some.tobytes() for chunk, some in zip(plain["packed"], bits, strict=True)}
            self._by_place.append(one)
            if one:
                self._forms[one.form] = one
            else:
                self._vacant.append(place)
        idle, packed = ([(place, chunk) for place, chunk in arrays[at].tolist()] for at in state["spent"])
        self._spent.idle.update(dict.fromkeys(idle))
        self._spent.packed.update(dict.fromkeys(packed))


def _form(plain: Sequence[Any]) -> Form:
    return plain[0], plain[1]


def texts(given: list[str], keep: Keep) -> list[int]:
    """Texts as two arrays."""
    data = "".join(given).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, given), dtype=np.int32, count=len(given))
    return [keep(np.frombuffer(data, dtype=np.uint8)), keep(lengths)]


def read_texts(kept: Sequence[int], arrays: Sequence[np.ndarray]) -> list[str]:
    """The texts again."""
    text = arrays[kept[0]].tobytes().decode("utf-8", "surrogatepass")
    ends = np.cumsum(arrays[kept[1]], dtype=np.int64).tolist()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
