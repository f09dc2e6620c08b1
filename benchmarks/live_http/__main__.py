"""``python -m benchmarks.live_http``: a learned policy beside default settings; exit 1 if the bound is missed."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from benchmarks.live_http.beside import CLEARLY, Beside, measured
from benchmarks.live_http.learning import SERVICE, http_service, learned
from benchmarks.output import row, write
from benchmarks.trial_overhead.measure import crowded_s
from benchmarks.trial_overhead.scenarios import rooms

LOADS = (100.0, 600.0, 1000.0)
STEPS = 400
ROUNDS = 5
LEAST_AHEAD = 2
"""Loads under which the policy must beat the default settings."""
WIDTHS = (6, 9, 9, 7, 16, 16, 16, 12)


def main() -> int:
    """0, or 1 if the bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_http", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of training; a multiple of 50")
    asked = parser.parse_args()
    begun, before = time.monotonic(), crowded_s()
    with rooms():
        policy = learned(asked.seed, asked.steps, LOADS)
    trained_s = time.monotonic() - begun
    print(f"ppo: {asked.steps} steps in {trained_s:.0f} s\n", flush=True)
    service = http_service(**SERVICE)
    try:
        lines = measured(service, policy, LOADS, ROUNDS)
    finally:
        service.close()
    heads = ("load", "default", "learned", "ratio", "least to most", "throughput", "p99 ms", "errors", "learned knobs")
    print(row(WIDTHS, *heads))
    for line in lines:
        print(_shown(line))
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"\nsome process waited for a core {crowded:.0%} of the time")
    ahead = sum(line.ahead for line in lines)
    ok = ahead >= LEAST_AHEAD
    verdict = "OK" if ok else "MISSED"
    print(f"ratio above {CLEARLY:g} under {ahead} of {len(lines)} loads (bound >= {LEAST_AHEAD}) {verdict}")
    written = [{**asdict(line), "ratio": line.ratio, "ahead": line.ahead} for line in lines]
    packages = ("tunegym", "stable-baselines3", "torch")
    path = write("live_http", written, packages, steps=asked.steps, seed=asked.seed, crowded=crowded)
    print(f"written to {path}")
    if not ok:
        print(f"MISSED: the policy beats the default settings under {ahead} loads only", file=sys.stderr)
    return 0 if ok else 1


def _shown(line: Beside) -> str:
    default, ours = line.middle("reward")
    knobs = " ".join(f"{name}={value}" for name, value in line.learned[-1].knobs.items())
    return row(
        WIDTHS,
        f"{line.load:g}",
        f"{default:.2f}",
        f"{ours:.2f}",
        f"{line.ratio:.2f}",
        f"{min(line.ratios):.2f} to {max(line.ratios):.2f}",
        "{:.0f} -> {:.0f}".format(*line.middle("throughput_rps")),
        "{:.0f} -> {:.0f}".format(*line.middle("p99_ms")),
        "{:.0%} -> {:.0%}".format(*line.middle("error_share")),
        knobs,
    )


if __name__ == "__main__":
    sys.exit(main())
