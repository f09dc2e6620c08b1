"""Following what an agent tells of its training while it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Update:
    """What one update of a policy gave.

    Attributes:
        trials: how many trials were closed by then.
        values: finite numbers by name.
    """

    trials: int
    values: dict[str, float]


class TrainingTail:
    """The updates in an experiment's ``policy/training.jsonl``, as they come; none where there is no such file.

    Only whole lines are read: one that is being written, or was torn and will be cut off by a resume, is waited for.
    A whole line that is no update is passed over, and so is one with fewer trials than the line before it: no curve
    goes back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rewind()

    def rewind(self) -> None:
        """Start over with the first update."""
        self._offset = 0
        self._last = 0

    def read(self) -> list[Update]:
        """The updates since the last call."""
        found: list[Update] = []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    update = _update(line)
                    if update is not None and update.trials >= self._last:
                        self._last = update.trials
                        found.append(update)
        except FileNotFoundError:
            return []
        return found


def _update(line: bytes) -> Update | None:
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or type(record.get("trials")) is not int or record["trials"] < 0:
        return None
    values = record.get("values")
    if not isinstance(values, dict):
        return None
    return Update(record["trials"], {name: float(value) for name, value in values.items() if _is_number(value)})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
