"""``python -m benchmarks.proposals``: CPU time of a proposal beside Optuna's; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.families.catalog import family as family_of
from benchmarks.families.family import Family
from benchmarks.output import row, write
from benchmarks.searchers import Bayes, Searcher, StudyPerContext, closed_trial
from tunegym.tuning.inference.coordinates import ContextIndex
from tunegym.tuning.model.values import Action, Context

BOUNDS = {100: 30.0, 300: 60.0, 1_000: 100.0}
"""Milliseconds of CPU by the number of trials that are known."""
FAMILIES = ("hpobench", "kernel", "ranges")
"""Eight contexts; failures, which need a second process; continuous knobs."""
PROPOSALS = 20
GP_PROPOSALS, MOST_GP = 3, 300
"""Optuna's GP takes a second for each proposal."""
WIDTHS = (10, 7, 9, 9, 9, 10, 9)


@dataclass(frozen=True)
class Line:
    """Milliseconds of CPU, the median of several proposals; None where it was not measured."""

    family: str
    trials: int
    proposal: float
    refit: float
    tpe: float
    gp: float | None

    @property
    def is_missed(self) -> bool:
        """Whether a proposal takes longer than it may."""
        return self.proposal > BOUNDS[self.trials]

    def show(self) -> None:
        """Print the line."""
        gp = "-" if self.gp is None else f"{self.gp:,.0f} ms"
        verdict = f"<= {BOUNDS[self.trials]:g} ms {'MISSED' if self.is_missed else 'OK'}"
        times = [f"{spent:,.1f} ms" for spent in (self.proposal, self.refit, self.tpe)]
        print(row(WIDTHS, self.family, f"{self.trials:,}", *times, gp, verdict), flush=True)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proposals", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="just this one; repeatable")
    parser.add_argument("--no-gp", action="store_true", help="leave out Optuna's GP")
    options = parser.parse_args()
    print(row(WIDTHS, "family", "trials", "proposal", "refit", "tpe", "gp", "bound"))
    lines: list[Line] = []
    with threadpool_limits(1):
        for name in options.family or FAMILIES:
            for trials in BOUNDS:
                lines.append(_measured(family_of(name), name, trials, not options.no_gp and trials <= MOST_GP))
                lines[-1].show()
    print(f"written to {write('proposals', [asdict(line) for line in lines], ('tunegym', 'optuna'))}")
    missed = [f"{line.family} after {line.trials:,} trials" for line in lines if line.is_missed]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _measured(family: Family, name: str, trials: int, with_gp: bool) -> Line:
    """Let each search know as many random trials, then ask it for more."""
    bayes = Bayes(family, 0, 2 * trials)
    for number, (context, action, metric) in enumerate(_random_trials(family, trials), start=1):
        bayes.add(closed_trial(number, context, action, metric))
    times = _proposal_times(bayes, family, trials, PROPOSALS)
    proposal = median(times)
    return Line(
        family=name,
        trials=trials,
        proposal=proposal,
        refit=max(times) - proposal,
        tpe=_study_ms(family, "tpe", trials, PROPOSALS),
        gp=_study_ms(family, "gp", trials, GP_PROPOSALS) if with_gp else None,
    )


def _study_ms(family: Family, sampler: str, trials: int, proposals: int) -> float:
    """The same of a study that knows as many trials, all of one context."""
    single = family.within(family.contexts[0][0])
    study = StudyPerContext(single, 0, sampler)
    for context, action, metric in _random_trials(single, trials):
        study.learn(context, action, metric)
    return median(_proposal_times(study, single, trials, proposals))


def _random_trials(family: Family, count: int) -> Iterator[tuple[Context, Action, float | None]]:
    """Random settings. Every fifth one in a context is measured again: a search that knows no repeats asks for them."""
    params, noise = family.env_params(0), np.random.default_rng(0)
    contexts = ContextIndex(params)
    by_context: list[list[Action]] = [[] for _ in contexts.contexts]
    for number in range(1, count + 1):
        context = params.context(number)
        before = by_context[contexts.index(context)]
        is_repeat = len(before) % 5 == 4
        before.append(before[-1] if is_repeat else family.space.draw(0, "random", number))
        yield context, before[-1], family.measure(before[-1], context, noise)


def _proposal_times(searcher: Searcher, family: Family, known: int, count: int) -> list[float]:
    """Milliseconds of CPU of each proposal; the longest one includes a fit."""
    params, noise = family.env_params(0), np.random.default_rng(1)
    times: list[float] = []
    for number in range(known + 1, known + count + 1):
        context = params.context(number)
        began = time.process_time()
        action = searcher.ask(number, context)
        times.append(1e3 * (time.process_time() - began))
        searcher.tell(number, context, action, family.measure(action, context, noise))
    return times


if __name__ == "__main__":
    sys.exit(main())
