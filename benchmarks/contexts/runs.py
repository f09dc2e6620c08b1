"""One search over all contexts, by us, and one in each context, by Optuna alone."""

from __future__ import annotations

import time
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

import tunegym
from benchmarks.contexts.tables import Contexts, contexts, one
from benchmarks.search.searches import bare, prepare
from benchmarks.search.verdict import regret_after
from benchmarks.trial_overhead.scenarios import folder
from tunegym.tuning.agents.optuna import PooledProposer
from tunegym.tuning.model.space import Choice, EnvParam, Range, Space
from tunegym.tuning.model.trial import Feedback, Observation

SEPARATE = "a study per context"
BUDGETS = (20, 50, 100)
"""Trials per context."""
CALLABLE = f"""
from {__name__} import measuring

def measure(data, **knobs):
    return {{"value": measuring(data, knobs)}}
"""


class Measuring:
    """What is searched; counts its calls, so that each has its own noise."""

    def __init__(self) -> None:
        self.calls = 0
        self.found: Contexts | None = None

    def __call__(self, data: str, action: dict[str, Any]) -> float:
        assert self.found is not None
        self.calls += 1
        return self.found.tables[data].measure(action, self.calls)


measuring = Measuring()


def regrets(name: str, who: str, seed: int, budgets: tuple[int, ...]) -> dict[int, float]:
    """The mean true regret over contexts of what is recommended in each, by trials per context."""
    prepare("tpe")
    if who == SEPARATE:
        found: dict[int, list[float]] = {budget: [] for budget in budgets}
        for at, table in enumerate(contexts(name).tables.values()):
            problem = one(table, seed)
            tried = bare(problem, "tpe", 1000 * seed + at, max(budgets)).tried
            for budget in budgets:
                found[budget].append(regret_after(problem, tried, budget))
        return {budget: fmean(some) for budget, some in found.items()}
    return {budget: _ours(name, who, seed, budget) for budget in budgets}


def _ours(name: str, agent: str, seed: int, budget: int) -> float:
    searched = contexts(name).seeded(seed)
    measuring.found, measuring.calls = searched, 0
    output = folder()
    experiment = {
        "name": "contexts",
        "workload": "python",
        "isolate": False,
        "keep": "none",
        "confirm": "off",
        "agent": agent,
        "agent_steps": budget * len(searched.tables),
        "agent_metrics": ["value"],
        "objectives": [{"metric": "value", "goal": searched.goal}],
        "cmd_args": {"callable": "bench_contexts:measure", "data": list(searched.tables), **searched.knobs},
        "env_params": {"data": {}},
    }
    scenario = {"name": "contexts", "seed": seed, "scenario_dir": _home(), "experiments": [experiment]}
    code = tunegym.run(scenario, output=output)
    if code != 0:
        raise RuntimeError(f"{name} with {agent}: exit code {code}")
    chosen = {data: tunegym.recommend(output, {"data": data}).action for data in searched.tables}
    return fmean(searched.tables[data].regret(action) for data, action in chosen.items())


@cache
def _home() -> str:
    place = folder()
    (place / "bench_contexts.py").write_text(CALLABLE, encoding="utf-8")
    return str(place)


# CPU --------------------------------------------------------------------------------------------------


def cpu_per_trial(observations: int, asked: int = 60) -> tuple[float, float]:
    """CPU seconds of one of our pooled proposals, and of one of Optuna's multivariate TPE, on as many observations."""
    import optuna

    knobs = {**{f"x{at}": Range(0.0, 1.0) for at in range(3)}, **{f"n{at}": Choice(tuple("abcdef")) for at in range(3)}}
    space = Space(knobs)
    draw = np.random.default_rng(0)
    settings = [{name: knob.from_unit(draw.random()) for name, knob in knobs.items()} for _ in range(observations)]
    values = draw.random(observations).tolist()
    pooled = PooledProposer({}, space, {"data": EnvParam(Choice(tuple(range(8))))}, 0)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, multivariate=True))
    kinds: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(0.0, 1.0)
        if isinstance(knob, Range)
        else optuna.distributions.CategoricalDistribution(knob.values)
        for name, knob in knobs.items()
    }
    seen = Observation(1, {})
    for at, (action, value) in enumerate(zip(settings, values, strict=True)):
        pooled.add(Feedback(at, value, seen, seen, action, False, "measured", context={"data": at % 8}))
        study.add_trial(optuna.create_trial(value=value, params=dict(action), distributions=kinds))
    begun = time.process_time()
    for number in range(observations, observations + asked):
        action = pooled.propose(number, {"data": number % 8})
        pooled.tell(Feedback(number, 0.5, seen, seen, action, False, "measured", context={"data": number % 8}))
    mine = time.process_time() - begun
    begun = time.process_time()
    for _ in range(asked):
        study.tell(study.ask(kinds), 0.5)
    return mine / asked, (time.process_time() - begun) / asked
