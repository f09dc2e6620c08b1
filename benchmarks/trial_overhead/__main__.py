"""``python -m benchmarks.trial_overhead``: measure everything, print the table, exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.output import row, write
from benchmarks.trial_overhead import cache, commands, slots, start_up, trials
from benchmarks.trial_overhead.measure import Line, crowded_s
from benchmarks.trial_overhead.scenarios import rooms

MEASUREMENTS: dict[str, Callable[[bool], list[Line]]] = {
    "trials": trials.measured,
    "cache": cache.measured,
    "commands": commands.measured,
    "slots": slots.measured,
    "start-up": start_up.measured,
}
WIDTHS = (28, 9, 30, 7, 16, 8)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial_overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials and rounds: half a minute, rough numbers")
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="measure just this; repeatable")
    options = parser.parse_args()
    print(row(WIDTHS, "measurement", "ours", "beside", "ratio", "least to most", "bound", ""))
    lines: list[Line] = []
    begun, before = time.monotonic(), crowded_s()
    with rooms():
        for name in options.only or MEASUREMENTS:
            for line in MEASUREMENTS[name](options.quick):
                lines.append(line)
                print(_shown(line), flush=True)
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"\nsome process waited for a core {crowded:.0%} of the time")
    written = [{**asdict(line), "ratio": line.ratio, "ok": line.ok} for line in lines]
    path = write("trial_overhead", written, ("tunegym", "optuna", "typer"), quick=options.quick, crowded=crowded)
    print(f"written to {path}")
    missed = [line.name for line in lines if line.ok is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _shown(line: Line) -> str:
    beside = "" if line.peer is None else f"{line.peer_name} {_number(line.peer)} {line.unit}"
    ratio = "" if line.ratio is None else f"{line.ratio:.3f}"
    rounds = f"{min(line.ratios):.3f} to {max(line.ratios):.3f}" if len(line.ratios) > 1 else ""
    bound = "" if line.bound is None else f"{'>=' if line.at_least else '<='} {line.bound:g}"
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    return row(WIDTHS, line.name, f"{_number(line.ours)} {line.unit}", beside, ratio, rounds, bound, verdict)


def _number(value: float) -> str:
    """Three digits are more than a shared machine can promise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
