"""Heads of journals from plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from tunegym.tuning.model.head import Head


def head(**plain: Any) -> Head:
    """A head, as a journal's first line with these keys says it."""
    known = {"record": "head", "experiment": "e", "run": "token", "seed": 1, "agent": "random_search"}
    return msgspec.convert({**known, **plain}, Head)
