"""Heads of journals from plain data."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from tunegym.config.experiment import judged_by
from tunegym.tuning.model.head import Head


def head(**plain: Any) -> Head:
    """A head, as a journal's first line with these keys says it; judged as config would have it."""
    known = {"record": "head", "experiment": "e", "run": "token", "seed": 1, "agent": "random_search"}
    read = msgspec.convert({**known, **plain}, Head)
    judged = judged_by(read.reward, read.metrics, read.objectives, read.goals)
    return read if "judged" in plain else replace(read, judged=judged)
