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


SHORT, LONG = 2_000, 50_000
ENGINE_US, ANSWER_S = 200, 0.5


def measured(quick: bool) -> list[Line]:
    """The engine's part of a trial beside Optuna's, what comes once per run, growth over a long run, and memory."""
    theirs, longest = (300, 5_000) if quick else (SHORT, LONG)
    results = alternating(
        3 if quick else 7,
        {
            "tunegym": lambda: fresh(tunegym_trials, trials=SHORT),
            "journal": lambda: fresh(optuna_trials, trials=theirs, storage="journal"),
        },
    )
    us, journal = results["tunegym"], results["journal"]
    sqlite = fresh(optuna_trials, trials=theirs, storage="sqlite")["trial_us"]  # half a minute: once is enough
    trial = middle(us, "trial_us")
    beside_journal = ratios(us, journal, "trial_us")
    long = [fresh(tunegym_trials, trials=longest) for _ in range(1 if quick else 3)]
    early = middle(long, "early_us")
    growth = tuple(ran["late_us"] / ran["early_us"] for ran in long)
    return [
        Line(f"no-op trial, {SHORT:,} trials", "us", trial, "", None, (), ENGINE_US),
        Line("no-op trial", "us", trial, "optuna journal", middle(journal, "trial_us"), beside_journal, 1 / 8),
        Line("no-op trial", "us", trial, "optuna sqlite", sqlite, (trial / sqlite,), None),
        Line("start-up", "s", middle(us, "start_s"), "", None, (), None),
        Line(f"answer, {SHORT:,} trials", "s", middle(us, "answer_s"), "", None, (), ANSWER_S),
        Line(f"answer, {longest:,} trials", "s", middle(long, "answer_s"), "", None, (), None),
        Line("last 1,000 trials", "us", middle(long, "late_us"), "trials 500-1,500", early, growth, 1.3),
        Line(f"peak memory, {longest:,} trials", "MB", max(ran["peak_mb"] for ran in long), "", None, (), 300),
    ]


def tunegym_trials(trials: int) -> Numbers:
    """``random_search`` through ``tunegym.run``. A short run before it imports what is imported late."""
    settings = {"algorithms": ALGORITHMS, "sizes": SIZES, "rates": RATES}
    run(SCENARIO.format(trials=20, **settings), NO_OP)
    ran = run(SCENARIO.format(trials=trials, **settings), NO_OP)
    stamps = ran.stamps
    costs = [cost * 1e6 for cost, _ in stamps.costs()]
    return {
        "trial_us": (stamps.closed - stamps.opened[0]) / trials * 1e6,
        "early_us": median(costs[500:1500]),
        "late_us": median(costs[-1000:]),
        "start_s": ran.start_s,
        "answer_s": ran.answer_s,
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
