"""How much each knob matters: the share of the reward's variance that it explains by itself.

Omega squared of a one-way analysis of variance, over a knob's values or over a few equally full bins of them. It is
corrected for chance: a knob without effect comes out around 0 however many values it has. Effects that knobs have only
together are not seen.

An agent that learns moves its knobs together, towards good values. Then each of them explains the effect of all, and
the shares add up to far more than the whole: a note says so instead of the shares.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunegym.tuning.model.trial import Trial

FEWEST = 10
"""Fewer measured trials than this say nothing about a knob."""
PER_GROUP = 5
"""How many trials a number needs on average to be its own group; numbers with fewer are put in bins."""
PER_NAME = 2
"""The same for names, which have no order to cut: those with fewer say nothing."""
MOST_BINS = 8
MOST_TOGETHER = 1.2
"""Shares that add up to more can't be told apart: those of knobs that vary by themselves add up to 1 at most,"""
CHANCE = 0.05
"""but for chance, which adds about this much for every knob."""


def importance(trials: Sequence[Trial], names: Mapping[str, str]) -> dict[str, Any]:
    """The share of each knob and env_param, the largest first.

    Args:
        trials: any; only those that were measured, and not served from the cache, count.
        names: address -> ``knob`` or ``env_param``.

    Returns:
        ``trials`` (how many counted), ``note`` (why nothing can be said, else None) and ``shares``: a list of
        ``name``, ``kind``, ``share`` (None where its values come too seldom).
    """
    counted = [trial for trial in trials if trial.measured and trial.cached_from is None]
    told: dict[str, Any] = {"trials": len(counted), "note": None, "shares": []}
    if len(counted) < FEWEST:
        trials_are = "trial is" if len(counted) == 1 else "trials are"
        told["note"] = f"{len(counted)} measured {trials_are} too few: {FEWEST} are needed"
        return told
    rewards = np.array([trial.reward for trial in counted])
    scale = np.abs(rewards).max()
    rewards = rewards / (scale or 1.0)  # squares of large rewards must not overflow
    if rewards.min() == rewards.max():
        told["note"] = "every reward is the same"
        return told
    shares = []
    for name, kind in names.items():
        values = [trial.action[name] if name in trial.action else trial.context.get(name) for trial in counted]
        share = _omega_squared(groups, rewards) if (groups := _groups(values)) is not None else None
        shares.append({"name": name, "kind": kind, "share": share})
    together = sum(one["share"] or 0.0 for one in shares)
    if together > MOST_TOGETHER + CHANCE * len(shares):
        told["note"] = (
            "the knobs were moved together, as an agent that learns does, so what each does by itself can't be told "
            f"apart (their shares would add up to {together:.0%}); run random_search or the sampler qmc to find out"
        )
        return told
    told["shares"] = sorted(shares, key=lambda one: -1.0 if one["share"] is None else one["share"], reverse=True)
    return told


def _groups(values: Sequence[Any]) -> NDArray[np.intp] | None:
    """Which group each trial is in: its exact value where values come again, else an equally full bin of them."""
    seen: dict[Hashable, int] = {}
    exact = np.array([seen.setdefault((type(value), value), len(seen)) for value in values])
    names = not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) >= (PER_NAME if names else PER_GROUP) * len(seen):
        return exact
    if names:
        return None
    bins = min(MOST_BINS, len(values) // PER_GROUP)
    numbers = np.array(values, dtype=float)
    order = np.sort(numbers)
    return np.searchsorted(order, numbers) * bins // len(numbers)  # equal values share a bin


def _omega_squared(groups: NDArray[np.intp], rewards: NDArray[np.float64]) -> float:
    _, groups = np.unique(groups, return_inverse=True)
    counts = np.bincount(groups)
    if len(counts) < 2:
        return 0.0  # it never varied: it explains nothing
    means = np.bincount(groups, rewards) / counts
    total = float(((rewards - rewards.mean()) ** 2).sum())
    between = float((counts * (means - rewards.mean()) ** 2).sum())
    within = max(total - between, 0.0) / (len(rewards) - len(counts))
    return min(1.0, max(0.0, (between - (len(counts) - 1) * within) / (total + within)))
