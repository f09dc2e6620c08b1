"""One search by us, with its confirmed answer, and one by Optuna, which answers with the best value that it saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import stdev
from typing import Any

import tunegym
from benchmarks.answers.tables import NoisyTable
from benchmarks.search.searches import bare as search_bare
from benchmarks.search.searches import measuring, prepare
from benchmarks.trial_overhead.scenarios import folder
from tunegym.app.run import Watch
from tunegym.tuning.answers.answer import answer
from tunegym.tuning.answers.intervals import student_t
from tunegym.tuning.model.trial import Trial

CALLABLE = """
from benchmarks.search.searches import measuring

def measure(**knobs):
    return {"value": measuring(knobs)}
"""


@dataclass(frozen=True)
class Found:
    """An answer beside the truth; shares are of the truth."""

    table: str
    seed: int
    regret: float
    error: float  # reported minus true
    covered: bool = True
    half_width: float = math.nan
    plain: float = math.nan  # half of the width of Student's t interval on the same samples
    gain: float = math.nan  # true, over the baseline
    claimed: bool = False  # that it is better than the baseline
    measurements: int = 0


class _Trials(Watch):
    def __init__(self) -> None:
        self.trials: list[Trial] = []

    def trial_closed(self, trial: Trial) -> None:
        self.trials.append(trial)


def ours(name: str, noise: str, seed: int, trials: int, worse_by: float | None = None) -> Found:
    """The whole of ``tunegym.run``, with a baseline that is worse than the optimum by a share, if one is given."""
    prepare("tpe")
    table = NoisyTable(name, noise, seed, "ours")
    measuring.begin(table)
    base = None if worse_by is None else table.worse_by(worse_by)
    watch, output = _Trials(), folder()
    if tunegym.run(_scenario(table, seed, trials, base), output=output, watch=watch):
        raise RuntimeError(f"{name}, {noise}, seed {seed} failed")
    results = tunegym.load(output).experiments["answers"]
    verdict = answer(watch.trials, results.head, results.declared).overall
    one = verdict.chosen
    assert one is not None
    found, truth = one.metrics["value"], table.truth(one.action)
    samples = [trial.metrics["value"] for trial in watch.trials if trial.number in one.trials]
    plain = math.nan
    if len(samples) > 1:
        plain = student_t(0.975, len(samples) - 1) * stdev(samples) / math.sqrt(len(samples))
    return Found(
        name,
        seed,
        table.regret(one.action),
        (found.mean - truth) / abs(truth),
        # A deterministic mean is added up in another order.
        found.low - 1e-9 * abs(truth) <= truth <= found.high + 1e-9 * abs(truth),
        (found.high - found.low) / 2 / abs(truth),
        plain / abs(truth),
        math.nan if base is None else table.regret(base) - table.regret(one.action),
        one.gain is not None and one.gain.is_sure,
        len(watch.trials),
    )


def bare(name: str, noise: str, seed: int, trials: int) -> Found:
    """Optuna's TPE with its own best."""
    prepare("tpe")
    table = NoisyTable(name, noise, seed, "optuna")
    tried = search_bare(table, "tpe", seed, trials).tried
    action, value = (min if table.goal == "min" else max)(tried, key=lambda one: one[1])
    truth = table.truth(action)
    return Found(name, seed, table.regret(action), (value - truth) / abs(truth), measurements=trials)


@cache
def _home() -> str:
    place = folder()
    (place / "bench_answers.py").write_text(CALLABLE, encoding="utf-8")
    return str(place)


def _scenario(table: NoisyTable, seed: int, trials: int, base: Any) -> dict[str, Any]:
    experiment = {
        "name": "answers",
        "workload": "python",
        "isolate": False,
        "agent": "optuna",
        "agent_steps": trials,
        "agent_metrics": ["value"],
        "objectives": [{"metric": "value", "goal": table.goal}],
        "cmd_args": {"callable": "bench_answers:measure", **table.knobs},
    }
    if base is not None:
        experiment["baseline"] = dict(base)
    return {"name": "answers", "seed": seed, "scenario_dir": _home(), "experiments": [experiment]}
