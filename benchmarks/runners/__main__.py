"""``python -m benchmarks.runners``: measure each runner, print the table, exit 1 if a bound is missed.

A runner's module has ``measured(quick)``, which yields lines, and ``missing()``, what it needs and is not installed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from importlib import import_module

from benchmarks.output import row, write
from benchmarks.trial_overhead.measure import Line

RUNNERS = ("slurm", "ray")
WIDTHS = (36, 9, 36, 7, 16, 8)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runners", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials: a minute, rough numbers")
    parser.add_argument("--only", action="append", choices=RUNNERS, help="measure just this; repeatable")
    options = parser.parse_args()
    print(row(WIDTHS, "measurement", "ours", "beside", "ratio", "least to most", "bound", ""))
    lines: list[Line] = []
    for name in options.only or RUNNERS:
        module = import_module(f"benchmarks.runners.{name}")
        if (lacking := module.missing()) is not None:
            print(f"{name}: left out, there is no {lacking}")
            continue
        for line in module.measured(options.quick):
            lines.append(line)
            print(_shown(line), flush=True)
    written = [{**asdict(line), "ratio": line.ratio, "ok": line.ok} for line in lines]
    print(f"\nwritten to {write('runners', written, ('tunegym',), quick=options.quick)}")
    missed = [line.name for line in lines if line.ok is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _shown(line: Line) -> str:
    beside = "" if line.peer is None else f"{line.peer_name} {line.peer:.3g} {line.unit}"
    ratio = "" if line.ratio is None else f"{line.ratio:.3f}"
    rounds = f"{min(line.ratios):.3f} to {max(line.ratios):.3f}" if len(line.ratios) > 1 else ""
    bound = "" if line.bound is None else f"{'>=' if line.at_least else '<='} {line.bound:g}"
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    return row(WIDTHS, line.name, f"{line.ours:.3g} {line.unit}", beside, ratio, rounds, bound, verdict)


if __name__ == "__main__":
    sys.exit(main())
