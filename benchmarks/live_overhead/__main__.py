"""``python -m benchmarks.live_overhead``: what recording a live system costs; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from benchmarks.live_overhead.steps import memory, ppo, recorded
from benchmarks.output import row, write
from benchmarks.trial_overhead.measure import Line, Numbers, alternating, crowded_s, fresh, middle
from benchmarks.trial_overhead.scenarios import rooms

LEAST_SPEED = 0.5
"""Recorded steps per CPU second, of the bare loop's."""
MOST_PPO = 1.1
"""Wall time under ``ppo``, of the library's alone."""
MOST_GROWTH = 1.05
"""Memory at the end, of that after a tenth of the steps."""
WIDTHS = (36, 12, 14, 7, 16, 8)
RECORDS = ("all", "every:100", "episodes")


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds: half a minute, rough numbers")
    parser.add_argument("--only", action="append", choices=["steps", "ppo", "memory"])
    parser.add_argument("--steps", type=int, default=10_000_000, help="how many there are in the look at the memory")
    asked = parser.parse_args()
    only = asked.only or ["steps", "ppo", "memory"]
    begun, before = time.monotonic(), crowded_s()
    print(row(WIDTHS, "measurement", "ours", "peer", "ratio", "least to most", "bound"))
    lines: list[Line] = []
    with rooms():
        if "steps" in only:
            lines += _steps(asked.quick)
        if "ppo" in only:
            lines += _ppo(asked.quick)
        if "memory" in only:
            lines += _memory(asked.steps // 20 if asked.quick else asked.steps)
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"\nsome process waited for a core {crowded:.0%} of the time")
    written = [{**asdict(line), "ratio": line.ratio, "ok": line.ok} for line in lines]
    packages = ("tunegym", "gymnasium", "numpy", "stable-baselines3", "torch")
    path = write("live_overhead", written, packages, quick=asked.quick, crowded=crowded)
    print(f"written to {path}")
    missed = [line.name for line in lines if line.ok is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _steps(quick: bool) -> list[Line]:
    chunks, rounds = (5, 2) if quick else (20, 5)
    kinds = {record: lambda record=record: fresh(recorded, chunks=chunks, record=record) for record in RECORDS}
    results = alternating(rounds, kinds)
    return [_said(_step_line(record, results[record])) for record in RECORDS]


def _step_line(record: str, rounds: list[Numbers]) -> Line:
    ours, bare = middle(rounds, "recorded_us"), middle(rounds, "bare_us")
    ratios = tuple(one["ratio"] for one in rounds)
    return Line(f"a step, record = {record}", "us", ours, "bare loop", bare, ratios, LEAST_SPEED, at_least=True)


def _ppo(quick: bool) -> list[Line]:
    steps, rounds = (8192, 1) if quick else (40_960, 3)
    numbers = [fresh(ppo, steps=steps, seed=seed) for seed in range(rounds)]
    ratios = tuple(one["ratio"] for one in numbers)
    ours, alone = middle(numbers, "ours_s"), middle(numbers, "alone_s")
    return [_said(Line(f"ppo, {steps:,} steps", "s", ours, "the library alone", alone, ratios, MOST_PPO))]


def _memory(steps: int) -> list[Line]:
    lines = []
    for record in ("all", "episodes"):
        found = fresh(memory, steps=steps, record=record)
        ratio = found["last_mb"] / found["first_mb"]
        name = f"memory, {steps:,} steps, {record}"
        lines.append(_said(Line(name, "MB", found["last_mb"], "first tenth", found["first_mb"], (ratio,), MOST_GROWTH)))
        print(f"    {found['written_mb']:,.0f} MB written, {found['us']:.1f} us of CPU a step")
    return lines


def _said(line: Line) -> Line:
    sign = ">=" if line.at_least else "<="
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    rounds = f"{min(line.ratios):.2f} to {max(line.ratios):.2f}"
    ours, peer = (f"{value:.1f} {line.unit}" for value in (line.ours, line.peer or 0.0))
    print(
        row(WIDTHS, line.name, ours, peer, f"{line.ratio:.2f}", rounds, f"{sign} {line.bound:g}", verdict), flush=True
    )
    return line


if __name__ == "__main__":
    sys.exit(main())
