"""``python -m benchmarks.flip``: who learns which settings win under which conditions; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.flip import learners, task
from benchmarks.flip.learners import Learned
from benchmarks.output import row, write
from benchmarks.trial_overhead.scenarios import rooms

TRIALS = 1500
GOOD = 0.9
"""Of the optimum in each context: a run whose greedy policy gets there has learned the task."""
SHARE = 0.8
"""Of the runs that must."""
MOST_SINGLE = 0.7
WIDTHS = (36, 7, 12, 8, 8, 10, 10)

RUNS: dict[str, tuple[Callable[[int], Learned], bool]] = {
    "bayes, 300 trials": (learners.by_answer("bayes", 300), True),
    "ppo": (learners.by_agent("ppo", TRIALS), True),
    "ppo, episodes of 10": (learners.by_agent("ppo", TRIALS, episode_steps=10), True),
    "dqn": (learners.by_agent("dqn", TRIALS), True),
    "rllib_ppo, 3000 trials": (learners.by_agent("rllib_ppo", 2 * TRIALS), True),
    "rllib_ppo": (learners.by_agent("rllib_ppo", TRIALS), False),
    "rllib_dqn": (learners.by_agent("rllib_dqn", TRIALS), False),
    "a2c": (learners.by_agent("a2c", TRIALS), False),
    "ppo, 300 trials": (learners.by_agent("ppo", 300), False),
    "dqn, 300 trials": (learners.by_agent("dqn", 300), False),
    "answer of random_search": (learners.by_answer("random_search", TRIALS), False),
    "Stable-Baselines3's PPO as it comes": (learners.by_library(TRIALS), False),
}
"""By name: a run by its seed, and whether it is bounded."""


@dataclass(frozen=True)
class Line:
    """One learner over all seeds."""

    name: str
    runs: tuple[Learned, ...]
    cpu_s: float
    bounded: bool

    @property
    def good(self) -> int:
        """How many learned the task."""
        return sum(run.greedy >= GOOD for run in self.runs)

    @property
    def ok(self) -> bool | None:
        """Whether enough did; None where nothing is promised."""
        return self.good >= SHARE * len(self.runs) if self.bounded else None


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flip", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", action="append", choices=list(RUNS))
    asked = parser.parse_args()
    single = task.best_single_share()
    print(f"best single setting: {single:.2f} of the optimum (bound <= {MOST_SINGLE:g})")
    print(row(WIDTHS, "learner", "seeds", ">= 0.9 of it", "greedy", "worst", "last 100", "CPU s", "bound"))
    lines: list[Line] = []
    for name in asked.only or RUNS:
        run, bounded = RUNS[name]
        begun = time.process_time()
        with rooms():
            runs = tuple(run(seed) for seed in range(asked.seeds))
        lines.append(Line(name, runs, (time.process_time() - begun) / asked.seeds, bounded))
        print(_shown(lines[-1]), flush=True)
    missed = [line.name for line in lines if line.ok is False]
    if single > MOST_SINGLE:
        missed.append("the best single setting is too good")
    written = [{**asdict(line), "good": line.good, "ok": line.ok} for line in lines]
    path = write("flip", written, ("tunegym", "stable-baselines3", "ray", "torch"))
    print(f"written to {path}")
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _shown(line: Line) -> str:
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    return row(
        WIDTHS,
        line.name,
        str(len(line.runs)),
        f"{line.good} of {len(line.runs)}",
        f"{median(run.greedy for run in line.runs):.2f}",
        f"{min(run.greedy for run in line.runs):.2f}",
        f"{median(run.chosen for run in line.runs):.2f}",
        f"{line.cpu_s:.1f}",
        f">= {SHARE:g} of them {verdict}" if line.bounded else "",
    )


if __name__ == "__main__":
    sys.exit(main())
