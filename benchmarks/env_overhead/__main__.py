"""``python -m benchmarks.env_overhead``: CPU per step beside the engine alone; exit 1 if the bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from benchmarks.env_overhead.steps import steps
from benchmarks.output import row, write
from benchmarks.trial_overhead.measure import Line, Numbers, alternating, crowded_s, fresh, middle
from benchmarks.trial_overhead.scenarios import rooms

BOUND = 1.5
KINDS = {"step": "step", "reset": "step and reset", "wrappers": "... through wrappers"}
WIDTHS = (36, 9, 16, 7, 16, 7)


def main() -> int:
    """0, or 1 if the bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.env_overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds: ten seconds, rough numbers")
    quick = parser.parse_args().quick
    print(row(WIDTHS, "measurement", "ours", "engine alone", "ratio", "least to most", "bound"))
    begun, before = time.monotonic(), crowded_s()
    with rooms():
        lines = _measured(quick)
    for line in lines:
        print(_shown(line))
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"\nsome process waited for a core {crowded:.0%} of the time")
    written = [{**asdict(line), "ratio": line.ratio, "ok": line.ok} for line in lines]
    path = write("env_overhead", written, ("tunegym", "gymnasium", "numpy"), quick=quick, crowded=crowded)
    print(f"written to {path}")
    missed = [line.name for line in lines if line.ok is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _measured(quick: bool) -> list[Line]:
    chunks = 8 if quick else 40
    results = alternating(
        2 if quick else 7,
        {
            "no env_params": lambda: fresh(steps, chunks=chunks, contexts=False),
            "3 env_params": lambda: fresh(steps, chunks=chunks, contexts=True),
        },
    )
    return [_line(rounds, kind, where) for where, rounds in results.items() for kind in KINDS]


def _line(rounds: list[Numbers], kind: str, where: str) -> Line:
    ratios = tuple(one[f"{kind}_ratio"] for one in rounds)
    ours, engine = middle(rounds, f"{kind}_us"), middle(rounds, "engine_us")
    bound = None if kind == "wrappers" else BOUND
    return Line(f"{KINDS[kind]}, {where}", "us", ours, "engine", engine, ratios, bound)


def _shown(line: Line) -> str:
    bound = "" if line.bound is None else f"<= {line.bound:g}"
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    rounds = f"{min(line.ratios):.3f} to {max(line.ratios):.3f}"
    ratio = f"{line.ratio:.3f}"
    return row(WIDTHS, line.name, f"{line.ours:.1f} us", f"{line.peer:.1f} us", ratio, rounds, bound, verdict)


if __name__ == "__main__":
    sys.exit(main())
