"""Our CPU time beside that of Optuna alone, for the same number of trials with the same sampler."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean

from benchmarks.search.problems import problem
from benchmarks.search.regret import BARE, OURS, Searched
from benchmarks.search.searches import Spent, bare, ours, prepare

TRIALS = 200
FUNCTION = "bbob/f1"
BOUND = 1.10
OWN_S = 0.0015
"""Beside the bound: CPU seconds a trial that we may spend whatever the sampler costs."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one sampler's search.

    Attributes:
        loop_s: ours, from the first trial to the last.
        bare_s: ``create_study`` and ``study.optimize``.
        own_s: of the loop, what is not the sampler's: journal, CSV files, cache, the engine.
        start_s: ours before and after the loop, without reports: however many trials there are.
        reports_s: ``best.toml`` and ``report.html``.
    """

    sampler: str
    rounds: int
    loop_s: float
    bare_s: float
    own_s: float
    start_s: float
    reports_s: float

    @property
    def beside_s(self) -> float:
        """Optuna alone.

        The cost of a proposal of ``gp`` depends on the trials before it, and no two searches are alike: there it is
        what the sampler took in our own run.
        """
        return self.loop_s - self.own_s if self.sampler == "gp" else self.bare_s

    @property
    def ratio(self) -> float:
        """The whole run without its reports, beside Optuna alone."""
        return (self.loop_s + self.start_s) / self.beside_s

    @property
    def bound(self) -> float:
        """On the ratio: 1.10, and what ``OWN_S`` a trial adds to it."""
        return BOUND + OWN_S * TRIALS / self.beside_s

    @property
    def loop(self) -> float:
        """Without what comes once per run, however many trials there are."""
        return self.loop_s / self.bare_s

    @property
    def ok(self) -> bool:
        """Whether the bound holds."""
        return self.ratio <= self.bound


def costs(quick: bool, samplers: Sequence[str], searched: Mapping[str, Sequence[Searched]]) -> Iterator[Cost]:
    """One sampler after the other, each in a process of its own and nothing beside it.

    A search with ``gp`` takes 20 s: where there were some already, they are what is looked at.
    """
    spawning = multiprocessing.get_context("spawn")
    for sampler in samplers:
        if sampler == "gp" and (quick or "gp" in searched):
            if done := searched.get("gp"):
                yield on_average(sampler, done)
            continue
        rounds = {"gp": 2, "tpe": 9}.get(sampler, 25)
        with ProcessPoolExecutor(1, mp_context=spawning) as pool:
            yield pool.submit(at_least, sampler, 5 if quick else rounds).result()


def at_least(sampler: str, rounds: int) -> Cost:
    """Alternate the two, after a warm-up of each, and take the least of each number over the rounds.

    Every round does exactly the same, so what is above the least is what the machine added.
    """
    prepare(sampler)
    for search in (ours, bare):
        search(problem(FUNCTION, 0), sampler, 0, 20 if sampler == "gp" else TRIALS)
    mine: list[Spent] = []
    theirs: list[Spent] = []
    for _ in range(rounds):
        for search, found in ((ours, mine), (bare, theirs)):
            gc.collect()
            found.append(search(problem(FUNCTION, 0), sampler, 0, TRIALS).spent)
    return _cost(sampler, mine, theirs, min)


def on_average(sampler: str, done: Sequence[Searched]) -> Cost:
    """The mean over searches of which no two are alike."""
    mine, theirs = [one.spent[OURS] for one in done], [one.spent[BARE] for one in done]
    return _cost(sampler, mine, theirs, fmean)


def _cost(
    sampler: str, mine: Sequence[Spent], theirs: Sequence[Spent], typical: Callable[[Sequence[float]], float]
) -> Cost:
    return Cost(
        sampler,
        len(mine),
        typical([one.loop for one in mine]),
        typical([one.loop for one in theirs]),
        typical([one.loop - one.proposing for one in mine]),
        typical([one.start for one in mine]),
        typical([one.reports for one in mine]),
    )
