"""What an experiment's results say of themselves: values that the terminal, JSON and pages render.

No value here knows the kind of its experiment: a trial and a live step differ in the labels and in the unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tunegym.tuning.model.values import Action, Context


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The measured trial with the highest reward; the earliest of equals."""

    step: int
    reward: float
    action: Action
    context: Context


@dataclass(frozen=True, slots=True)
class RecentMean:
    """A mean over the newest ``over`` values, such as the returns of episodes."""

    value: float
    over: int


Shown: TypeAlias = int | float | str | BestSoFar | RecentMean


@dataclass(frozen=True, slots=True)
class Counts:
    """How far an experiment is.

    Attributes:
        unit: what is counted: ``trial`` or ``step``.
        done: closed trials, or steps taken, those of earlier sessions included.
        statuses: how many of them ended in each status.
        elapsed_s: time spent on them, earlier sessions included.
        open: decided and not closed yet.
        shown: what a progress line and the status table show besides, by label, in this order.
        details: plain data for ``--json`` besides the fields above.
        notes: sentences that belong below a table, without the experiment's name.
    """

    unit: str
    done: int
    statuses: Mapping[str, int]
    elapsed_s: float
    open: int = 0
    shown: Mapping[str, Shown] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment would do, before anything runs: in words, and as plain data for ``--json``."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]
