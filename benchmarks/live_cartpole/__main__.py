"""``python -m benchmarks.live_cartpole``: whether agents learn through a scenario what they learn without one.

Exit 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from math import isnan, nan
from statistics import median
from typing import Any

from benchmarks.live_cartpole.learners import DQN, PPO, RLLIB_PPO, Learned, by_library, by_scenario
from benchmarks.output import row, write
from benchmarks.trial_overhead.scenarios import rooms

SHARE = 0.95
"""Of the bare library's median greedy return, at least."""
WIDTHS = (10, 8, 7, 42, 8, 42, 8, 7, 12, 8, 6)

RUNS: dict[str, tuple[Mapping[str, Any], int, float, int]] = {
    "ppo": (PPO, 100_000, 475.0, 3),
    "dqn": (DQN, 50_000, 0.0, 10),
    "rllib_ppo": (RLLIB_PPO, 100_000, 400.0, 3),
}
"""By agent: its settings, its steps, the least median greedy return, and the seeds.

About half of all runs of DQN end with a policy far below 500, with tunegym and without: three seeds tell nothing.
"""


@dataclass(frozen=True)
class Line:
    """One agent over all seeds, both ways."""

    agent: str
    steps: int
    least: float
    ours: tuple[Learned, ...]
    bare: tuple[Learned, ...]

    @property
    def ratio(self) -> float:
        """Of the medians; nan where the library isn't run by itself."""
        return _greedy(self.ours) / _greedy(self.bare)

    @property
    def wall(self) -> float:
        """The median of each seed's own ratio of wall times."""
        return _median(one.wall_s / other.wall_s for one, other in zip(self.ours, self.bare, strict=False))

    @property
    def cpu(self) -> float:
        """The same of CPU times, on which others on the machine have less influence."""
        return _median(one.cpu_s / other.cpu_s for one, other in zip(self.ours, self.bare, strict=False))

    @property
    def ok(self) -> bool:
        """Whether enough was learned."""
        return not self.ratio < SHARE and _greedy(self.ours) >= self.least


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_cartpole", description=__doc__)
    parser.add_argument("--seeds", type=int, help="3 for ppo and 10 for dqn unless given")
    parser.add_argument("--only", action="append", choices=list(RUNS))
    asked = parser.parse_args()
    import_module("stable_baselines3")  # its import takes seconds of neither side
    print(
        row(
            WIDTHS,
            "agent",
            "steps",
            "seeds",
            "ours",
            "median",
            "bare",
            "median",
            "ratio",
            "wall s",
            "of bare",
            "CPU",
            "bound",
        )
    )
    lines: list[Line] = []
    for agent in asked.only or RUNS:
        settings, steps, least, seeds = RUNS[agent]
        ours, bare = [], []
        for seed in range(asked.seeds or seeds):
            with rooms():
                ours.append(by_scenario(agent, settings, steps, seed))
                if not agent.startswith("rllib"):
                    bare.append(by_library(agent, settings, steps, seed))
        lines.append(Line(agent, steps, least, tuple(ours), tuple(bare)))
        print(_shown(lines[-1]), flush=True)
    written = [
        {**asdict(line), "ratio": line.ratio, "wall": line.wall, "cpu": line.cpu, "ok": line.ok} for line in lines
    ]
    path = write("live_cartpole", written, ("tunegym", "stable-baselines3", "ray", "torch", "gymnasium"))
    print(f"written to {path}")
    missed = [line.agent for line in lines if not line.ok]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _median(values: Iterable[float]) -> float:
    there = list(values)
    return median(there) if there else nan


def _number(value: float, digits: int = 2) -> str:
    return "-" if isnan(value) else f"{value:.{digits}f}"


def _greedy(runs: tuple[Learned, ...]) -> float:
    return _median(run.greedy for run in runs)


def _shown(line: Line) -> str:
    bounds = [f">= {SHARE:g} of bare"] if line.bare else []
    bound = ", ".join([*bounds, *([f">= {line.least:g}"] if line.least else [])])
    return row(
        WIDTHS,
        line.agent,
        str(line.steps),
        str(len(line.ours)),
        *(
            cell
            for runs in (line.ours, line.bare)
            for cell in (" ".join(f"{run.greedy:.0f}" for run in runs), _number(_greedy(runs), 0))
        ),
        _number(line.ratio),
        f"{median(run.wall_s for run in line.ours):.0f} / {_number(_median(run.wall_s for run in line.bare), 0)}",
        _number(line.wall),
        _number(line.cpu),
        f"{bound} {'OK' if line.ok else 'MISSED'}",
    )


if __name__ == "__main__":
    sys.exit(main())
