"""How much each knob matters: the share of the reward's variance that it explains by itself.

Omega squared of a one-way analysis of variance, over a knob's values or over a few equally full bins of them. It is
corrected for chance: a knob without effect comes out around 0 however many values it has. What two knobs do only
together is the share of their combinations beyond the shares of each.

Rewards of different contexts are not compared: knobs explain what is left after the context is removed. The share of an
env_param is that of the rewards as they are.

An agent that learns moves its knobs together, towards good values. Then each of them explains the effect of all, and
the shares add up to far more than the whole: a note says so instead of the shares.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunegym.tuning.model.trial import CONFIRM, Trial
from tunegym.tuning.model.values import exact_key

FEWEST = 10
"""Fewer measured trials than this say nothing about a knob."""
PER_GROUP = 5
"""How many trials a number needs on average to be its own group; numbers with fewer are put in bins."""
PER_NAME = 2
"""The same for names, which have no order to cut: those with fewer say nothing."""
MOST_BINS = 8
MOST_PAIRED = 6
"""Of the most important knobs, so many are looked at in pairs."""
MOST_PAIRS = 3
MOST_TOGETHER = 1.2
"""Shares that add up to more can't be told apart: those of knobs that vary by themselves add up to 1 at most,"""
CHANCE = 0.05
"""but for chance, which adds about this much for every knob."""


def importance(trials: Sequence[Trial], names: Mapping[str, str]) -> dict[str, Any]:
    """The share of each knob and env_param, the largest first.

    Args:
        trials: any; only those that were measured, and not served from the cache, count. Confirmations don't: they
            repeat a few settings.
        names: address -> ``knob`` or ``env_param``.

    Returns:
        ``trials`` (how many counted), ``note`` (why nothing can be said, else None), ``shares``: a list of ``name``,
        ``kind``, ``share`` (None where its values come too seldom), and ``pairs``, the most important ones: a list of
        ``names``, ``share`` (of both) and ``together`` (what they explain only together).
    """
    counted = [one for one in trials if one.measured and one.cached_from is None and one.phase != CONFIRM]
    told: dict[str, Any] = {"trials": len(counted), "note": None, "shares": [], "pairs": []}
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
    left = _without_context(counted, rewards)
    shares: list[dict[str, Any]] = []
    for name, kind in names.items():
        values = [trial.action[name] if name in trial.action else trial.context.get(name) for trial in counted]
        explained = rewards if kind == "env_param" else left
        share = _omega_squared(groups, explained) if (groups := _groups(values)) is not None else None
        shares.append({"name": name, "kind": kind, "share": share})
    together = sum(one["share"] or 0.0 for one in shares if one["kind"] == "knob")
    if together > MOST_TOGETHER + CHANCE * len(shares):
        told["note"] = (
            "the knobs were moved together, as an agent that learns does, so what each does by itself can't be told "
            f"apart (their shares would add up to {together:.0%}); run random_search or the sampler qmc to find out"
        )
        return told
    told["shares"] = sorted(shares, key=lambda one: -1.0 if one["share"] is None else one["share"], reverse=True)
    knobs = {one["name"]: one["share"] for one in told["shares"] if one["kind"] == "knob" and one["share"] is not None}
    told["pairs"] = _pairs(counted, left, knobs)
    return told


def _without_context(trials: Sequence[Trial], rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rewards as distances from their context's mean in units of its spread.

    Where contexts hardly come again, the effect of each env_param is removed.
    """
    contexts = [exact_key(trial.context) for trial in trials]
    left = rewards.copy()
    if len(trials) >= PER_NAME * len(set(contexts)):
        _, groups = np.unique(contexts, return_inverse=True)
        left -= _group_means(groups, left)
        spread = np.sqrt(_group_means(groups, left * left))
        return left / np.where(spread > 0, spread, 1.0)
    for name in trials[0].context:
        groups = _groups([trial.context.get(name) for trial in trials])
        left -= 0.0 if groups is None else _group_means(groups, left)
    return left


def _group_means(groups: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each value's group."""
    _, groups = np.unique(groups, return_inverse=True)
    return (np.bincount(groups, values) / np.bincount(groups))[groups]


def _pairs(trials: Sequence[Trial], rewards: NDArray[np.float64], shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """The pairs of knobs that explain most; none whose combinations come too seldom."""
    bins = math.isqrt(len(trials) // PER_GROUP)
    columns: dict[str, NDArray[np.intp]] = {}
    for name in list(shares)[:MOST_PAIRED]:
        found = _groups([trial.action[name] for trial in trials], min(bins, MOST_BINS))
        if found is not None and 2 <= len(np.unique(found)) <= max(bins, 2):
            columns[name] = found
    pairs: list[dict[str, Any]] = []
    for one, other in combinations(columns, 2):
        share = _omega_squared(columns[one] * (columns[other].max() + 1) + columns[other], rewards)
        alone = _omega_squared(columns[one], rewards) + _omega_squared(columns[other], rewards)
        pairs.append({"names": [one, other], "share": share, "together": max(0.0, share - alone)})
    return sorted(pairs, key=lambda pair: pair["share"], reverse=True)[:MOST_PAIRS]


def _groups(values: Sequence[Any], most: int | None = None) -> NDArray[np.intp] | None:
    """Which group each trial is in: its exact value where values come again, else an equally full bin of them.

    With ``most``, numbers are binned into at most so many groups.
    """
    seen: dict[Hashable, int] = {}
    exact = np.array([seen.setdefault((type(value), value), len(seen)) for value in values])
    names = not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) >= (PER_NAME if names else PER_GROUP) * len(seen) and (names or most is None or len(seen) <= most):
        return exact
    if names:
        return None
    bins = most or min(MOST_BINS, len(values) // PER_GROUP)
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
    if total == 0.0:
        return 0.0  # there is nothing to explain
    between = float((counts * (means - rewards.mean()) ** 2).sum())
    within = max(total - between, 0.0) / (len(rewards) - len(counts))
    return min(1.0, max(0.0, (between - (len(counts) - 1) * within) / (total + within)))
