"""``python -m benchmarks.async_rl``: asynchronous RL on one host; exit 1 if a bound is missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from statistics import mean
from typing import Any

from benchmarks.async_rl import runs
from benchmarks.output import row, write
from benchmarks.trial_overhead.scenarios import rooms

RETURN, SHARE, REWARD = 475.0, 0.85, 0.9
"""The least mean greedy return on CartPole, and the least share of the best on the flip task and of GRPO's reward."""
FASTER, FASTER_SPREAD = 3.0, 1.5
"""4 collectors against ``ppo`` with one environment; with exponential steps against ``ppo`` on 4 in lock-step."""
STEPS, TRIALS, SLOW_STEPS = 100_000, 4_000, 2_000
WIDTHS = (38, 20, 8, 28, 8)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_rl", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parts: dict[str, Callable[[int], list[dict[str, Any]]]] = {"cartpole": _cartpole, "flip": _flip, "pace": _pace}
    parts["grpo"] = _grpo
    parser.add_argument("--only", action="append", choices=list(parts))
    asked = parser.parse_args()
    print(row(WIDTHS, "run", "result", "wall s", "rollouts", "bound"))
    lines = [line for name in asked.only or parts for line in parts[name](asked.seeds)]
    path = write("async_rl", lines, ("tunegym", "torch", "gymnasium"))
    print(f"written to {path}")
    missed = [line["name"] for line in lines if line["ok"] is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _cartpole(seeds: int) -> list[dict[str, Any]]:
    return [
        _learned(
            f"cartpole, max_staleness {staleness}",
            seeds,
            bound,
            lambda seed, s=staleness: runs.cartpole(seed, s, STEPS),
        )
        for staleness, bound in ((1, RETURN), (0, None), (4, None))
    ]


def _flip(seeds: int) -> list[dict[str, Any]]:
    return [_learned(f"flip, {TRIALS} trials", seeds, SHARE, lambda seed: runs.flipped(seed, TRIALS))]


def _learned(name: str, seeds: int, bound: float | None, run: Callable[[int], runs.Learned]) -> dict[str, Any]:
    found = []
    for seed in range(seeds):
        with rooms():
            found.append(run(seed))
    scores = [one.score for one in found]
    ok = None if bound is None else mean(scores) >= bound
    dropped = sum(sum(one.account["dropped"].values()) for one in found)
    rollouts = (
        f"{sum(one.account['trained'] for one in found)}, {dropped} dropped, age <= {max(one.oldest for one in found)}"
    )
    wall_s = mean(one.wall_s for one in found)
    return _shown(
        name, " ".join(f"{one:g}" for one in scores), wall_s, rollouts, bound, ok, runs=[asdict(one) for one in found]
    )


def _pace(seeds: int) -> list[dict[str, Any]]:
    del seeds
    lines = []
    for spread, base, bound in ((False, 1, FASTER), (True, 4, FASTER_SPREAD)):
        kind = "exponential steps" if spread else "steps"
        with rooms():
            others, others_s = runs.pace("ppo", base, spread, SLOW_STEPS if base > 1 else SLOW_STEPS // 2)
        with rooms():
            ours, ours_s = runs.pace("async_ppo", 4, spread, SLOW_STEPS)
        lines.append(_shown(f"20 ms {kind}: ppo on {base}", f"{others:.0f} steps/s", others_s, "", None, None))
        name, told = f"20 ms {kind}: async_ppo, 4", f"{ours:.0f} steps/s, x{ours / others:.2f}"
        lines.append(_shown(name, told, ours_s, "", bound, ours / others >= bound, ratio=ours / others))
    return lines


def _grpo(seeds: int) -> list[dict[str, Any]]:
    del seeds
    return [
        _shown(
            f"grpo, max_staleness {one.name}", f"{one.reward:g}", one.wall_s, one.rollouts, REWARD, one.reward >= REWARD
        )
        for one in runs.grpo()
    ]


def _shown(
    name: str, result: str, wall_s: float, rollouts: str, bound: float | None, ok: bool | None, **more: Any
) -> dict[str, Any]:
    verdict = "" if bound is None else f">= {bound:g} {'OK' if ok else 'MISSED'}"
    print(row(WIDTHS, name, result, f"{wall_s:.0f}", rollouts, verdict), flush=True)
    return {"name": name, "result": result, "wall_s": wall_s, "ok": ok, **more}


if __name__ == "__main__":
    sys.exit(main())
