"""``python -m benchmarks.pruning``: the work that pruners save, and what they lose; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import tunegym
from benchmarks.output import row, write
from benchmarks.pruning import stages
from benchmarks.trial_overhead.scenarios import folder, rooms
from tunegym.app.run import Watch
from tunegym.tuning.model.trial import Trial

TRIALS = 100
PRUNERS: dict[str, str | dict[str, Any]] = {
    "median": "median",
    "median, warm-up 9": {"kind": "median", "warmup_steps": 9},
    "hyperband": "hyperband",
}
BOUND = 0.6
"""Of the stages that run without a pruner: at least 40 % are saved."""
WIDTHS = (7, 18, 7, 8, 6, 14, 7, 7)


class Best(Watch):
    """The best measured setting, and how many trials were pruned."""

    def __init__(self) -> None:
        self.value = float("-inf")
        self.setting: dict[str, Any] = {}
        self.pruned = 0

    def trial_closed(self, trial: Trial) -> None:
        self.pruned += trial.status == "pruned"
        if trial.status == "measured" and trial.metrics["value"] > self.value:
            self.value, self.setting = trial.metrics["value"], dict(trial.action)


@dataclass(frozen=True)
class Ran:
    """One run: its stages, pruned trials and best setting."""

    stages: int
    pruned: int
    setting: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A pruner over all seeds, beside the same runs without one."""

    uneven: bool
    pruner: str
    pruned: tuple[Ran, ...]
    plain: tuple[Ran, ...]

    @property
    def ratios(self) -> list[float]:
        """Stages with the pruner / without, by seed."""
        return [mine.stages / whole.stages for mine, whole in zip(self.pruned, self.plain, strict=True)]

    @property
    def same(self) -> int:
        """In how many seeds the best setting is still the best one."""
        return sum(mine.setting == whole.setting for mine, whole in zip(self.pruned, self.plain, strict=True))

    @property
    def ok(self) -> bool | None:
        """Whether enough is saved and nothing lost; None where early values mislead, and nobody can promise it."""
        return None if self.uneven else median(self.ratios) <= BOUND and self.same == len(self.plain)


def ran(seed: int, uneven: bool, pruner: str | dict[str, Any] | None) -> Ran:
    """A whole run. The draws of ``random_search`` are by number: a pruner doesn't change what is tried."""
    course, best = stages.Course(seed, uneven), Best()
    stages.begin(course)
    place = folder()
    experiment: dict[str, Any] = {
        "name": "staged",
        "workload": "python",
        "isolate": False,
        "agent": "random_search",
        "agent_steps": TRIALS,
        "confirm": "off",
        "agent_metrics": ["value"],
        "agent_reward_function": "identity",
        "cmd_args": {
            "callable": f"{stages.__name__}:measure",
            **{name: {"low": 0.0, "high": 1.0} for name in ("width", "rate", "momentum")},
        },
    }
    if pruner is not None:
        experiment["pruner"] = pruner
    scenario = {"name": "pruning", "seed": seed, "scenario_dir": str(place), "experiments": [experiment]}
    code = tunegym.run(scenario, output=place / "results", watch=best)
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")
    return Ran(course.stages, best.pruned, best.setting)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    lines: list[Line] = []
    heads = ("starts", "pruner", "stages", "without", "ratio", "least to most", "bound", "", "same best setting")
    print(row(WIDTHS, *heads))
    with rooms():
        for uneven in (False, True):
            plain = [ran(seed, uneven, None) for seed in seeds]
            for name, pruner in PRUNERS.items():
                lines.append(Line(uneven, name, tuple(ran(seed, uneven, pruner) for seed in seeds), tuple(plain)))
                print(_shown(lines[-1]), flush=True)
    missed = [line.pruner for line in lines if line.ok is False]
    written = [{**asdict(line), "ratios": line.ratios, "same": line.same, "ok": line.ok} for line in lines]
    path = write("pruning", written, ("tunegym",))
    print(f"written to {path}")
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _shown(line: Line) -> str:
    return row(
        WIDTHS,
        "uneven" if line.uneven else "even",
        line.pruner,
        f"{median(one.stages for one in line.pruned):,.0f}",
        f"{median(one.stages for one in line.plain):,.0f}",
        f"{median(line.ratios):.2f}",
        f"{min(line.ratios):.2f} to {max(line.ratios):.2f}",
        "" if line.ok is None else f"<= {BOUND:g}",
        {None: "", True: "OK", False: "MISSED"}[line.ok],
        f"{line.same} of {len(line.plain)} seeds",
    )


if __name__ == "__main__":
    sys.exit(main())
