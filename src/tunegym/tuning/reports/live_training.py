"""What an agent told of its training, by window of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from tunegym.tuning.reports.live_windows import Curve, Windows

MOST_CURVES = 24


def training_curves(path: Path, windows: Windows) -> list[dict[str, Any]]:
    """The means by window of each value in a ``training.jsonl``; none where there is no such file.

    A line that can't be read, such as the last one of a run that was killed, is passed over.
    """
    curves: dict[str, Curve] = {}
    try:
        with path.open("rb") as file:
            for line in file:
                for trials, name, value in _values(line):
                    if name not in curves and len(curves) >= MOST_CURVES:
                        continue
                    curves.setdefault(name, Curve(windows)).add(max(1, trials), value)
    except OSError:
        return []
    return [{"name": name, **curve.as_dict()} for name, curve in curves.items()]


def _values(line: bytes) -> list[tuple[int, str, float]]:
    try:
        found: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(found, Mapping) or type(found.get("trials")) is not int:
        return []
    values = found.get("values")
    if not isinstance(values, Mapping):
        return []
    return [
        (found["trials"], str(name), float(value))
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
