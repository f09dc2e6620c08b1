"""``python -m benchmarks.deployment``: a search of LLM deployments with a known optimum; exit 1 if a bound is missed.

The system is ``examples/llm_deployment``, which needs aiconfigurator: ``make test-systems`` sets up an environment.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import tunegym
from benchmarks.output import row, write
from tunegym.app.run import Watch
from tunegym.tuning.model.trial import Trial

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "llm_deployment"
METRIC, LIMITS = "tokens_s_gpu", {"ttft_ms": 600.0, "tpot_ms": 15.0}
OPTIMUM, NEAR = 888.67, 0.99
"""Tokens per second and GPU of the best of all 40,320 settings, and the share of it that counts as found."""
TRIALS, SEEDS, LEAST_FOUND = 100, 10, 0.9
GP_SEEDS = 3
"""Optuna's GP with two limits takes a minute and a half of CPU for a run."""
AGENTS: Mapping[str, Mapping[str, Any]] = {
    "bayes": {"agent": "bayes"},
    "tpe": {"agent": "optuna", "agent_config": {"sampler": "tpe"}},
    "gp": {"agent": "optuna", "agent_config": {"sampler": "gp"}},
    "random": {"agent": "random_search"},
}
WIDTHS = (8, 9, 9, 9, 14, 12)


@dataclass(frozen=True)
class Found:
    """What one run found, as shares of the optimum.

    Attributes:
        recommended: what the answer recommends.
        best: the best that was measured within the limits.
        trials: how many trials it took until one was near the optimum; None if none was.
    """

    seed: int
    recommended: float
    best: float
    trials: int | None


class _Trials(Watch):
    """Collects what was measured within the limits, by the number of the trial."""

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}

    def trial_closed(self, trial: Trial) -> None:
        if trial.measured:
            self.shares[trial.number] = _share(trial.metrics)


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--agent", action="append", choices=list(AGENTS), help="just this one; repeatable")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    print(row(WIDTHS, "agent", "found", "median", "least", "trials to it", "bound"))
    lines: dict[str, list[Found]] = {}
    for name in options.agent or AGENTS:
        seeds = min(options.seeds, GP_SEEDS) if name == "gp" else options.seeds
        lines[name] = [run(AGENTS[name], seed, options.trials) for seed in range(seeds)]
        _show(name, lines[name])
    written = [{"agent": name, "runs": [asdict(found) for found in runs]} for name, runs in lines.items()]
    print(f"written to {write('deployment', written, ('tunegym', 'optuna', 'aiconfigurator'))}")
    is_missed = "bayes" in lines and found_share(lines["bayes"]) < LEAST_FOUND
    if is_missed:
        print(f"MISSED: bayes is near the optimum in fewer than {LEAST_FOUND:.0%} of the runs", file=sys.stderr)
    return 1 if is_missed else 0


def run(agent: Mapping[str, Any], seed: int, trials: int) -> Found:
    """Run the example with an agent."""
    scenario = tomllib.loads((EXAMPLE / "llm_deployment.toml").read_text(encoding="utf-8"))
    scenario |= {"seed": seed, "scenario_dir": str(EXAMPLE)}
    scenario["experiments"][0] |= {**agent, "agent_steps": trials}
    watch = _Trials()
    with TemporaryDirectory(prefix="tunegym-bench-") as output:
        if tunegym.run(scenario, output=output, watch=watch):
            raise RuntimeError(f"seed {seed} failed")
        recommended = measured_share(tunegym.recommend(output).action)
    near = [number for number, share in watch.shares.items() if share >= NEAR]
    return Found(seed, recommended, max(watch.shares.values(), default=0.0), min(near, default=None))


def measured_share(action: Mapping[str, Any]) -> float:
    """The share of the optimum that a setting reaches; 0 beyond a limit."""
    sys.path.insert(0, str(EXAMPLE))
    from llm_deployment import deploy  # type: ignore[import-not-found]

    scenario = tomllib.loads((EXAMPLE / "llm_deployment.toml").read_text(encoding="utf-8"))
    parameters = scenario["experiments"][0]["cmd_args"]
    fixed = {name: parameters[name] for name in ("model", "system", "backend", "isl", "osl")}
    return _share(deploy(**fixed, **action))


def found_share(runs: list[Found]) -> float:
    """The share of runs whose recommendation is near the optimum."""
    return sum(found.recommended >= NEAR for found in runs) / len(runs)


def _share(metrics: Mapping[str, float]) -> float:
    within = all(metrics[name] <= limit for name, limit in LIMITS.items())
    return metrics[METRIC] / OPTIMUM if within else 0.0


def _show(name: str, runs: list[Found]) -> None:
    shares = [found.recommended for found in runs]
    trials = [found.trials for found in runs if found.trials is not None]
    span = f"{min(trials)} to {max(trials)}" if trials else "-"
    near = sum(share >= NEAR for share in shares)
    bound = ""
    if name == "bayes":
        bound = f">= {LEAST_FOUND:.0%} {'OK' if found_share(runs) >= LEAST_FOUND else 'MISSED'}"
    cells = (f"{near} of {len(runs)}", f"{median(shares):.3f}", f"{min(shares):.3f}", span, bound)
    print(row(WIDTHS, name, *cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
