"""Regret at 50 and at 200 trials beside Optuna's, for every sampler, on tables and on functions."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.search.problems import problem
from benchmarks.search.searches import SAMPLERS, Search, Spent, bare, ours, prepare
from benchmarks.search.verdict import Verdict, regret_after, verdict

BUDGETS = (50, 200)
OURS, UNCACHED, BARE = "ours", "uncached", "bare"

RANGES = ("hpobench/vehicle", "hpobench/credit_g")
LISTS = ("hpolib/protein_structure", "hpolib/parkinsons_telemonitoring", "nas/cifar100", "nas/imagenet")
TABLES = (*RANGES, *LISTS)
FUNCTIONS = ("bbob/f1", "bbob/f8", "bbob/f10", "bbob/f15", "bbob/f21")
ALL_TABLES = (
    *(f"hpobench/{name}" for name in ("australian", "blood_transfusion", "car", "credit_g", "kc1", "phoneme")),
    *(f"hpobench/{name}" for name in ("segment", "vehicle")),
    *(f"hpolib/{name}" for name in ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure")),
    "hpolib/slice_localization",
    *(f"nas/{name}" for name in ("cifar10", "cifar100", "imagenet")),
)


@dataclass(frozen=True)
class Plan:
    """What is searched.

    Attributes:
        groups: problems by what a line is called.
        few: the same for ``gp``, whose every trial takes a tenth of a second.
    """

    groups: dict[str, Sequence[str]]
    few: dict[str, Sequence[str]]
    seeds: int

    def problems(self, sampler: str) -> dict[str, Sequence[str]]:
        """Of one sampler: ``cmaes`` moves through ranges only."""
        groups = self.few if sampler == "gp" else self.groups
        if sampler != "cmaes":
            return groups
        return {name: [one for one in group if not one.startswith(("hpolib", "nas"))] for name, group in groups.items()}


QUICK = Plan({"tables": ("hpobench/vehicle", "nas/imagenet"), "bbob": ("bbob/f1", "bbob/f15")}, {}, 3)
USUAL = Plan({"tables": TABLES, "bbob": FUNCTIONS}, {"bbob": ("bbob/f8",)}, 10)
FULL = Plan(
    {"tables": ALL_TABLES, "bbob": FUNCTIONS}, {"tables": ("hpobench/vehicle", "nas/imagenet"), "bbob": FUNCTIONS}, 10
)


@dataclass(frozen=True)
class Searched:
    """The searches of one problem with one sampler and seed: regrets by the number of trials, CPU times."""

    problem: str
    regrets: dict[str, dict[int, float]]
    spent: dict[str, Spent]


@dataclass(frozen=True)
class Compared:
    """One line: a sampler on a group of problems.

    Attributes:
        bound: whether we must not be worse; else the line is for information.
    """

    sampler: str
    group: str
    trials: int
    searches: int
    verdict: Verdict
    bound: bool = True

    @property
    def name(self) -> str:
        """What the line is called where there is room for one word of it."""
        return f"{self.sampler} on {self.group} at {self.trials}"

    @property
    def word(self) -> str:
        """The verdict, or what it would be."""
        return self.verdict.word if self.bound else f"({self.verdict.word.lower()})"


def compared(plan: Plan, samplers: Sequence[str] = SAMPLERS) -> Iterator[tuple[list[Compared], list[Searched]]]:
    """The lines of every sampler and group, with the searches behind them."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawning) as pool:
        for sampler in samplers:
            for group, problems in plan.problems(sampler).items():
                jobs = [(name, sampler, seed) for name in problems for seed in range(plan.seeds)]
                done = list(pool.map(searched, *zip(*jobs, strict=True)))
                yield list(_lines(sampler, group, done)), done


def searched(name: str, sampler: str, seed: int) -> Searched:
    """Search as often as there are ways to. What 50 trials find is the beginning of what 200 find."""
    prepare(sampler)
    most = max(BUDGETS)
    # Without noise a second measurement is the first one, whoever answers.
    noisy = not name.startswith("bbob")
    found: dict[str, Search] = {}
    for way in (BARE, OURS) if seed % 2 else (OURS, BARE):
        it = problem(name, seed)
        found[way] = bare(it, sampler, seed, most) if way == BARE else ours(it, sampler, seed, most)
    if noisy:
        found[UNCACHED] = ours(problem(name, seed), sampler, seed, most, cached=False)
    regrets = {
        way: {trials: regret_after(problem(name, seed), search.tried, trials) for trials in BUDGETS}
        for way, search in found.items()
    }
    return Searched(name, regrets, {way: search.spent for way, search in found.items()})


def _lines(sampler: str, group: str, done: list[Searched]) -> Iterator[Compared]:
    for way in (OURS, UNCACHED):
        if way not in done[0].regrets:
            continue
        name = group if way == OURS else f"{group}, no cache"
        for trials in BUDGETS:
            mine, theirs = _regrets(done, way, trials), _regrets(done, BARE, trials)
            yield Compared(sampler, name, trials, len(done), verdict(mine, theirs), bound=way == OURS)


def _regrets(done: list[Searched], way: str, trials: int) -> dict[str, list[float]]:
    regrets: dict[str, list[float]] = {}
    for one in done:
        regrets.setdefault(one.problem, []).append(one.regrets[way][trials])
    return regrets
