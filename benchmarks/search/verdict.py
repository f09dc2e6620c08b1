"""Regret of two groups of searches: what they would recommend, and whether they differ by more than noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from benchmarks.search.problems import Problem
from benchmarks.search.searches import Tried

LEVEL = 0.99
"""Of the interval. There are two dozen lines: at 95 % half of all runs would show one that is off by chance."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Verdict:
    """How two groups of regrets compare.

    Attributes:
        ours, bare: median regrets over problems and seeds.
        ahead: how often a search of ours is the better one, ties counting half; 0.5 if the two are alike.
        low, high: the interval of it.
    """

    ours: float
    bare: float
    ahead: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        """Not worse than by chance."""
        return self.high >= 0.5

    @property
    def word(self) -> str:
        """OK, better or FAIL."""
        return "FAIL" if not self.ok else "OK, better" if self.low > 0.5 else "OK"


def regret_after(problem: Problem, tried: Tried, trials: int) -> float:
    """The true regret of the setting with the best mean so far."""
    seen: dict[tuple[object, ...], list[float]] = {}
    actions = {}
    for action, value in tried[:trials]:
        key = tuple(action.values())
        seen.setdefault(key, []).append(value)
        actions[key] = action
    best = (min if problem.goal == "min" else max)(seen, key=lambda key: fmean(seen[key]))
    return problem.regret(actions[best])


def verdict(ours: Mapping[str, Sequence[float]], bare: Mapping[str, Sequence[float]]) -> Verdict:
    """Compare regrets by problem. Problems keep their weight; the seeds of each are drawn again and again."""
    draw = np.random.default_rng(0)
    drawn = np.zeros(RESAMPLES)
    shares = []
    for problem, mine in ours.items():
        theirs = bare[problem]
        ahead = _ahead(mine, theirs)
        shares.append(float(ahead.mean()))
        rows = draw.multinomial(len(mine), [1 / len(mine)] * len(mine), RESAMPLES) / len(mine)
        columns = draw.multinomial(len(theirs), [1 / len(theirs)] * len(theirs), RESAMPLES) / len(theirs)
        drawn += np.einsum("ri,ij,rj->r", rows, ahead, columns) / len(ours)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Verdict(_median(ours), _median(bare), fmean(shares), float(low), float(high))


def _ahead(ours: Sequence[float], bare: Sequence[float]) -> np.ndarray:
    """1 where a search of ours (rows) beats one of theirs (columns), 0.5 where they are even."""
    mine, theirs = np.asarray(ours)[:, None], np.asarray(bare)[None, :]
    return (mine < theirs) + 0.5 * (mine == theirs)


def _median(regrets: Mapping[str, Sequence[float]]) -> float:
    return median(one for group in regrets.values() for one in group)
