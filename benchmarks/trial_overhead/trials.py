"""A trial that measures nothing, beside Optuna's: the CPU time of deciding, recording and closing it."""

from __future__ import annotations

import warnings
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.trial_overhead.measure import Line, Numbers, alternating, cpu_s, fresh, middle, peak_mb, ratios
from benchmarks.trial_overhead.scenarios import NO_OP, folder, run

if TYPE_CHECKING:
    import optuna

ALGORITHMS = ["cubic", "reno", "bbr", "vegas"]
SIZES = (64, 8192)
RATES = (0.0, 1.0)

SCENARIO = """
name = "trials"
[[experiments]]
name = "no-op"
workload = "python"
isolate = false
agent = "random_search"
agent_steps = {trials}
confirm = "off"
agent_metrics = ["score"]
agent_reward_function = "identity"
  [experiments.cmd_args]
  callable = "bench_callable:measure"
  algorithm = {algorithms}
  size = {{ low = {sizes[0]}, high = {sizes[1]}, dtype = "int", log = true }}
  rate = {{ low = {rates[0]}, high = {rates[1]}, dtype = "float" }}
"""


def measured(quick: bool) -> list[Line]:
    """Per trial beside Optuna, the growth over a long run, and the peak memory."""
    ours = 5_000 if quick else 50_000
    theirs = 300 if quick else 2_000
    results = alternating(
        3 if quick else 7,
        {
            "tunegym": lambda: fresh(tunegym_trials, trials=ours),
            "journal": lambda: fresh(optuna_trials, trials=theirs, storage="journal"),
        },
    )
    us, journal = results["tunegym"], results["journal"]
    sqlite = fresh(optuna_trials, trials=theirs, storage="sqlite")["trial_us"]  # half a minute: once is enough
    trial = middle(us, "trial_us")
    beside_journal = ratios(us, journal, "trial_us")
    growth = tuple(one["late_us"] / one["early_us"] for one in us)
    return [
        Line("no-op trial", "us", trial, "optuna journal", middle(journal, "trial_us"), beside_journal, 1 / 8),
        Line("no-op trial", "us", trial, "optuna sqlite", sqlite, (trial / sqlite,), None),
        Line("last 1,000 trials", "us", middle(us, "late_us"), "trials 500-1,500", middle(us, "early_us"), growth, 1.3),
        Line(f"peak memory, {ours:,} trials", "MB", max(one["peak_mb"] for one in us), "", None, (), 300),
    ]


def tunegym_trials(trials: int) -> Numbers:
    """``random_search`` through ``tunegym.run``, everything included."""
    text = SCENARIO.format(trials=trials, algorithms=ALGORITHMS, sizes=SIZES, rates=RATES)
    ran = run(text, NO_OP)
    costs = [cost * 1e6 for cost, _ in ran.stamps.costs()]
    return {
        "trial_us": ran.cpu_s / trials * 1e6,
        "early_us": median(costs[500:1500]),
        "late_us": median(costs[-1000:]),
        "peak_mb": peak_mb(),
    }


def optuna_trials(trials: int, storage: str) -> Numbers:
    """``RandomSampler`` over the same kinds of knobs."""
    import optuna

    warnings.simplefilter("ignore")  # some storages are called experimental
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = folder()
    _optimize(_storage(storage, place / "warm-up"), 10)  # what Optuna imports late is not held against it
    before = cpu_s()
    _optimize(_storage(storage, place / "study"), trials)
    spent = cpu_s() - before
    return {"trial_us": spent / trials * 1e6, "peak_mb": peak_mb()}


def _storage(kind: str, path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return f"sqlite:///{path}.db" if kind == "sqlite" else JournalStorage(JournalFileBackend(f"{path}.log"))


def _optimize(storage: Any, trials: int) -> None:
    import optuna

    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
    study.optimize(_objective, n_trials=trials)


def _objective(trial: optuna.Trial) -> float:
    trial.suggest_categorical("algorithm", ALGORITHMS)
    trial.suggest_int("size", *SIZES, log=True)
    return trial.suggest_float("rate", *RATES)
