"""One search by us, with its confirmed answer, and one by Optuna, which answers with the best value that it saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import stdev
from typing import Any

import tunegym
from benchmarks.answers.tables import NoisyTable
from benchmarks.search.problems import Action
from benchmarks.search.searches import bare as search_bare
from benchmarks.search.searches import measuring, prepare
from benchmarks.trial_overhead.scenarios import folder
from tunegym.app.run import Watch
from tunegym.tuning.answers.answer import Verdict, answer
from tunegym.tuning.answers.intervals import student_t
from tunegym.tuning.model.trial import Trial

CALLABLE = f"""
from benchmarks.search.searches import measuring
from {__name__} import places

def measure(**knobs):
    return {{"value": measuring(knobs)}}

def measure_in(data, **knobs):
    return {{"value": places(data, knobs)}}
"""


class Places:
    """The data sets of one search; counts its calls, so that each has its own noise."""

    def __init__(self) -> None:
        self.tables: dict[str, NoisyTable] = {}
        self.calls = 0

    def __call__(self, data: str, action: Any) -> float:
        self.calls += 1
        return self.tables[data].measure(action, self.calls)


places = Places()


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
    return _beside(table, answer(watch.trials, results.head, results.declared).overall, watch.trials, base)


def in_contexts(names: Sequence[str], noise: str, seed: int, trials: int) -> list[Found]:
    """One search over data sets as contexts, so many trials for each: the answer in each of them."""
    prepare("tpe")
    places.tables, places.calls = {name: NoisyTable(name, noise, seed, "ours") for name in names}, 0
    scenario = _scenario(places.tables[names[0]], seed, trials * len(names), None)
    scenario["experiments"][0]["cmd_args"] |= {"callable": "bench_answers:measure_in", "data": list(names)}
    scenario["experiments"][0]["env_params"] = {"data": {}}
    watch, output = _Trials(), folder()
    if tunegym.run(scenario, output=output, watch=watch):
        raise RuntimeError(f"seed {seed} failed")
    results = tunegym.load(output).experiments["answers"]
    verdicts = answer(watch.trials, results.head, results.declared).per_context
    tables = [places.tables[str((verdict.context or {})["data"])] for verdict in verdicts]
    return [_beside(table, one, watch.trials, None) for table, one in zip(tables, verdicts, strict=True)]


def _beside(table: NoisyTable, verdict: Verdict, trials: Sequence[Trial], base: Action | None) -> Found:
    """An answer beside the truth."""
    one = verdict.chosen
    assert one is not None
    found, truth = one.metrics["value"], table.truth(one.action)
    samples = [trial.metrics["value"] for trial in trials if trial.number in one.trials]
    plain = math.nan
    if len(samples) > 1:
        plain = student_t(0.975, len(samples) - 1) * stdev(samples) / math.sqrt(len(samples))
    return Found(
        table.name,
        table.seed,
        table.regret(one.action),
        (found.mean - truth) / abs(truth),
        # A deterministic mean is added up in another order.
        found.low - 1e-9 * abs(truth) <= truth <= found.high + 1e-9 * abs(truth),
        (found.high - found.low) / 2 / abs(truth),
        plain / abs(truth),
        math.nan if base is None else table.regret(base) - table.regret(one.action),
        one.gain is not None and one.gain.is_sure,
        len(trials),
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


def _scenario(table: NoisyTable, seed: int, trials: int, base: Action | None) -> dict[str, Any]:
    experiment: dict[str, Any] = {
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
