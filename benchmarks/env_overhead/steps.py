"""Steps of an experiment that measures nothing: through the engine alone, through ``TuneEnv``, and through wrappers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.trial_overhead.measure import Numbers
from benchmarks.trial_overhead.scenarios import folder
from tunegym.app.kinds import kind_of
from tunegym.app.run import as_scenario
from tunegym.core.stop import Stop
from tunegym.tuning.envs.face import TuneEnv
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.envs.wrappers import MultiDiscreteActions, NormalizedObservations
from tunegym.tuning.model.scenario import Scenario

NO_OP = """
def measure(algorithm, size, rate, load=1, drop_rate=0.0, kind="web"):
    return {"score": rate}
"""
KNOBS = {
    "algorithm": ["cubic", "reno", "bbr", "vegas"],
    "size": {"low": 64, "high": 8192, "dtype": "int", "log": True},
    "rate": {"low": 0.0, "high": 1.0, "dtype": "float"},
}
CONTEXTS = {"load": [1, 2, 4], "drop_rate": [0.001, 0.01, 0.1], "kind": ["web", "bulk"]}
ENCODINGS = {"load": {}, "drop_rate": {"encoding": "log"}, "kind": {"encoding": "onehot"}}
"""One leaf of each kind: an index, two numbers, a slot per candidate."""

CHUNK = 250
"""Steps of one kind in a row, before it is the next one's turn."""


def steps(chunks: int, contexts: bool) -> Numbers:
    """CPU microseconds per step of each kind, and its ratio to the engine's: medians over chunks, in turn.

    Every kind has a journal of its own and is given the same actions, so that trial n is the same in all of them.
    """
    kinds = _kinds(_scenario(contexts, CHUNK * (chunks + 1)))
    for chunk in kinds.values():  # what is imported or made late is not counted
        chunk()
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(chunks):
        for name, chunk in kinds.items():
            begun = time.process_time()
            chunk()
            costs[name].append((time.process_time() - begun) / CHUNK * 1e6)
    numbers = {f"{name}_us": median(spent) for name, spent in costs.items()}
    for name, spent in costs.items():
        pairs = zip(spent, costs["engine"], strict=True)
        numbers[f"{name}_ratio"] = median(ours / engine for ours, engine in pairs)
    return numbers


def _kinds(scenario: Scenario) -> dict[str, Callable[[], None]]:
    """Each runs a chunk of steps."""
    place = folder()
    engine = _engine(scenario, place / "engine")
    stepped, episodes, wrapped = (_env(scenario, place / name) for name in ("stepped", "episodes", "wrapped"))
    network = MultiDiscreteActions(NormalizedObservations(wrapped))
    stepped.action_space.seed(0)
    encoded = [stepped.action_space.sample() for _ in range(CHUNK)]
    native = [stepped.decode_action(action) for action in encoded]
    indices = [network.encode_action(action) for action in native]

    def alone() -> None:
        for action in native:
            engine.observe()
            engine.begin(action)
            engine.next_finished()

    def step() -> None:
        for action in encoded:
            stepped.step(action)

    def step_and_reset() -> None:
        for action in encoded:
            episodes.step(action)
            episodes.reset()

    def through_wrappers() -> None:
        for index in indices:
            network.step(index)
            network.reset()

    return {"engine": alone, "step": step, "reset": step_and_reset, "wrappers": through_wrappers}


def _env(scenario: Scenario, place: Path) -> TuneEnv:
    return TuneEnv(_engine(scenario, place))


def _engine(scenario: Scenario, place: Path) -> TrialEngine:
    experiment = scenario.experiments[0]
    return kind_of(experiment).open(scenario, experiment, place, stop=Stop()).env


def _scenario(contexts: bool, trials: int) -> Scenario:
    place = folder()
    (place / "bench_callable.py").write_text(NO_OP, encoding="utf-8")
    sys.path.insert(0, str(place))
    experiment = {
        "name": "no-op",
        "workload": "python",
        "isolate": False,
        "agent": "random_search",
        "agent_steps": trials,
        "confirm": "off",
        "agent_metrics": ["score"],
        "agent_reward_function": "identity",
        "cache": "off",
        "cmd_args": {"callable": "bench_callable:measure", **KNOBS, **(CONTEXTS if contexts else {})},
        "env_params": ENCODINGS if contexts else {},
    }
    return as_scenario({"name": "env-overhead", "experiments": [experiment]})
