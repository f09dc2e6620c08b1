"""Agents that learn a policy, through whole runs: what they learn, and that the record is as with any agent."""

from __future__ import annotations

import csv
import importlib
import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Document = dict[str, Any]


def document(agent: str, steps: int, cmd_args: Document, env_params: Document, **more: Any) -> Document:
    """A scenario of one experiment in process."""
    system = {"slots": more.pop("slots", 1)}
    experiment = {
        "name": "e",
        "workload": "python",
        "agent": agent,
        "agent_steps": steps,
        "agent_metrics": ["value"],
        "isolate": False,
        "keep": "none",
        "cmd_args": cmd_args,
        "env_params": env_params,
    }
    return {"name": "learned", "seed": more.pop("seed", 0), "system": system, "experiments": [{**experiment, **more}]}


def results_of(folder: str | Path) -> TrialResults:
    (results,) = assert_sound(folder).values()
    return results


# a task whose best settings flip with the context ---------------------------------------------------------


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flip task of the benchmarks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.flip.task")


def greedy_score(task: Any, scenario: Document, seed: int) -> float:
    task.seed(seed)
    assert library.run(scenario, output="flip") == 0
    table = policies.load(find_run(Path("flip")) / "e")
    assert table is not None
    chosen = {str(one.context["context"]): one.action for one in table.choices}
    return task.score(lambda context: chosen[str(context["context"])])


@pytest.mark.parametrize(("agent", "episode_steps"), [("contextual_bandit", 1), ("ppo", 1), ("ppo", 10), ("dqn", 1)])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_wins_where_is_learned(agent: str, episode_steps: int, seed: int, task: Any) -> None:
    """At least 90 % of what can be had, where the best single setting gives at most 70 %."""
    knobs = {name: list(knob.values) for name, knob in task.KNOBS.items()}
    cmd_args = {"callable": "benchmarks.flip.task:measure", "context": list(task.DOMAIN.values), **knobs}
    scenario = document(agent, 1500, cmd_args, {"context": {}}, seed=seed, cache="off", episode_steps=episode_steps)
    scenario["experiments"][0]["agent_metrics"] = ["throughput"]
    assert task.best_single_share() <= 0.7
    assert greedy_score(task, scenario, seed) >= 0.9


# the record -----------------------------------------------------------------------------------------------

LOSSY = """
def value(algorithm, window, drop_rate):
    strength = {"cubic": 1.0, "bbr": 3.0}[algorithm]
    return {"value": window / (1.0 + window * drop_rate * 10.0 / strength)}
"""
DROP_RATES = [0.001, 0.01, 0.1]


@pytest.fixture
def lossy(write: Callable[..., Path]) -> Callable[..., Document]:
    """Three drop rates over eight settings, so that most trials are served from the cache."""

    def make(agent: str = "ppo", **more: Any) -> Document:
        write("lossy.py", LOSSY)
        knobs = {"algorithm": ["cubic", "bbr"], "window": [1, 10, 100, 1000]}
        cmd_args = {"callable": "lossy:value", "drop_rate": DROP_RATES, **knobs}
        return document(agent, 160, cmd_args, {"drop_rate": {"encoding": "log"}}, seed=7, **more)

    return make


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def check_record(results: TrialResults) -> None:
    """160 aligned rows with the numbers from 1, and rewards that depend on the context."""
    trajectory, env = rows(results.folder, "trajectory.csv"), rows(results.folder, "env.csv")
    numbers = [str(number) for number in range(1, 161)]
    assert [row["step"] for row in trajectory] == [row["step"] for row in env] == numbers
    assert [row["context.drop_rate"] for row in trajectory] == [row["drop_rate"] for row in env]
    assert {row["cached"] for row in trajectory} == {"true", "false"}
    assert {row["status"] for row in trajectory} == {"measured"}
    rewards: dict[Any, dict[Any, set[float]]] = defaultdict(lambda: defaultdict(set))
    for trial in results.trials:
        rewards[tuple(trial.action.items())][trial.context["drop_rate"]].add(trial.reward)
    everywhere = [contexts for contexts in rewards.values() if len(contexts) == len(DROP_RATES)]
    assert everywhere
    for contexts in everywhere:
        assert all(len(one) == 1 for one in contexts.values()), (
            "the record holds what was measured, not what was learned"
        )
        assert len(set.union(*contexts.values())) == len(DROP_RATES)


@pytest.mark.parametrize(("episode_steps", "slots"), [(1, 1), (1, 3), (160, 1), (7, 1), (7, 3)])
def test_160_trials_with_three_drop_rates(episode_steps: int, slots: int, lossy: Callable[..., Document]) -> None:
    scenario = lossy(episode_steps=episode_steps, slots=slots)
    assert library.run(scenario, output="run") == 0
    results = results_of("run")
    check_record(results)
    assert (results.folder / "policy" / "training.jsonl").read_bytes().count(b"\n") >= 10


def journal(results: TrialResults) -> list[Document]:
    return list(reader.records(results.path))


@pytest.mark.parametrize("episode_steps", [1, 160, 7])
def test_trained_outside_the_record_is_the_same(episode_steps: int, lossy: Callable[..., Document]) -> None:
    """Stable-Baselines3 resets after every episode, and whenever else it likes: no number and no context moves."""
    from stable_baselines3 import PPO

    from tunegym.tuning.envs.wrappers import MultiDiscreteActions, NormalizedObservations

    assert library.run(lossy("random_search", episode_steps=episode_steps), output="run") == 0
    within = results_of("run")
    env = MultiDiscreteActions(NormalizedObservations(library.make(lossy(episode_steps=episode_steps), output="made")))
    PPO("MlpPolicy", env, n_steps=20, batch_size=20, n_epochs=2, gamma=0.0, device="cpu").learn(160)
    env.close()
    outside = results_of("made")
    check_record(outside)
    assert [one.context for one in outside.trials] == [one.context for one in within.trials]
    kinds = [{(one["record"], *sorted(one)) for one in journal(results)} for results in (within, outside)]
    assert (
        {kind[0] for kind in kinds[0]} == {kind[0] for kind in kinds[1]} == {"head", "session", "open", "close", "end"}
    )


# a third of it is slow ------------------------------------------------------------------------------------

SLOW = """
def seconds(x, y, load):
    if (x + y) % 10 in (7, 8, 9):
        return {"value": 1e6}
    best = (2, 1) if load == "low" else (8, 3)
    return {"value": 10.0 + abs(x - best[0]) + abs(y - best[1])}
"""


@pytest.mark.parametrize(("agent", "worst"), [("contextual_bandit", 10.0), ("dqn", 12.0), ("ppo", 13.0)])
def test_slow_settings_hide_nothing_of_the_others(agent: str, worst: float, write: Callable[..., Path]) -> None:
    """A third of all settings is a hundred thousand times slower; of the others the best ones are told apart."""
    write("slow.py", SLOW)
    knobs = {"callable": "slow:seconds", "x": list(range(10)), "y": list(range(5)), "load": ["low", "high"]}
    found = []
    for seed in (0, 1, 2):
        scenario = document(agent, 500, knobs, {"load": {}}, seed=seed, agent_reward_function="negative")
        assert library.run(scenario, output=f"run-{seed}") == 0
        table = policies.load(find_run(Path(f"run-{seed}")) / "e")
        assert table is not None
        namespace: Document = {}
        exec(SLOW, namespace)
        found += [namespace["seconds"](**one.action, **one.context)["value"] for one in table.choices]
    assert len(found) == 6
    assert sorted(found)[3] <= worst, found
    assert max(found) < 20.0


# a third of it crashes ------------------------------------------------------------------------------------

CLIFFS = """
from zlib import crc32

def value(a, b, c, load):
    if crc32(f"{a}{b}{c}".encode()) % 10 < 3:
        raise ValueError("it crashed")
    return {"value": 10 + (a - load) ** 2 + (b - 2) ** 2 + crc32(f"{c}{a}".encode()) % 7}

def slope(x, y, load=2):
    if x + y > 1.225:
        raise ValueError("it crashed")
    return {"value": 10 - 3 * x - 3 * y + load * (x - y)}
"""


@pytest.fixture
def works(write: Callable[..., Path]) -> Callable[..., bool]:
    """Whether a setting works; nearly a third of them don't, and the best ones are at the edge."""
    namespace: Document = {}
    exec(CLIFFS, namespace)
    write("cliffs.py", CLIFFS)
    crashed = [
        not _runs(namespace["value"], a=a, b=b, c=c, load=1) for a, b, c in itertools.product(range(1, 5), repeat=3)
    ]
    assert 0.25 < sum(crashed) / len(crashed) < 0.4
    return lambda function, **parameters: _runs(namespace[function], **parameters)


def _runs(function: Callable[..., Any], **parameters: Any) -> bool:
    try:
        function(**parameters)
    except ValueError:
        return False
    return True


def cliffs(agent: str, steps: int, seed: int) -> Document:
    """A run over settings of which nearly a third crash; optuna's has no contexts."""
    drawn: Document = {"load": [1, 2, 3]} if agent != "optuna" else {}
    if agent in ("sac", "optuna"):
        knobs: Document = {"callable": "cliffs:slope", **{name: {"low": 0.0, "high": 1.0} for name in "xy"}}
    else:
        knobs = {"callable": "cliffs:value", **{name: [1, 2, 3, 4] for name in "abc"}}
    return document(
        agent, steps, {**knobs, **drawn}, {name: {} for name in drawn}, seed=seed, agent_reward_function="negative"
    )


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "contextual_bandit", "random_search", "sac", "optuna"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_final_choice_works(agent: str, seed: int, works: Callable[..., bool]) -> None:
    assert library.run(cliffs(agent, 240, seed), output="run") == 0
    results = results_of("run")
    assert {trial.status for trial in results.trials} == {"measured", "failed"}
    table = policies.load(results.folder)
    assert (table is not None) == (agent not in ("random_search", "optuna"))
    function = "slope" if agent in ("sac", "optuna") else "value"
    if table is not None:
        assert len(table.choices) == 3
        assert all(works(function, **one.action, **one.context) for one in table.choices)
    contexts: list[Document] = [{"load": load} for load in (1, 2, 3)] if agent != "optuna" else [{}]
    for context in contexts:
        assert works(function, **library.recommend("run", context).action, **context)
