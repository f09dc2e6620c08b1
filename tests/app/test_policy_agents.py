"""Policy agents through whole runs: what they learn, and their record."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write
from tests.app.conftest import document as scenario_of
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Document = dict[str, Any]


def document(agent: str, steps: int, cmd_args: Document, env_params: Document, **more: Any) -> Document:
    keys = {"agent": agent, "agent_steps": steps, "keep": "none", "env_params": env_params}
    return scenario_of(args=cmd_args, **keys, **more)


def results_of(folder: str | Path) -> TrialResults:
    (results,) = assert_sound(folder).values()
    return results


# a task whose best settings flip with the context ---------------------------------------------------------


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flip task of the benchmarks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.flip.task")


LEARNERS = [("ppo", 1), ("ppo", 10), ("dqn", 1), ("rllib_ppo", 1), ("rllib_dqn", 1)]


@pytest.mark.parametrize(("agent", "episode_steps"), LEARNERS)
def test_learns_which_setting_wins_in_which_context(agent: str, episode_steps: int, task: Any) -> None:
    """In 4 of 5 seeds at least 90 % of the optimum, where the best single setting gives at most 70 %."""
    knobs = {name: list(knob.values) for name, knob in task.KNOBS.items()}
    cmd_args = {"callable": "benchmarks.flip.task:measure", "context": list(task.DOMAIN.values), **knobs}
    assert task.best_single_share() <= 0.7
    scores = []
    for seed in range(1, 6):
        scenario = document(agent, 1500, cmd_args, {"context": {}}, seed=seed, cache="off", episode_steps=episode_steps)
        scenario["experiments"][0]["agent_metrics"] = ["throughput"]
        task.seed(seed)
        assert library.run(scenario, output=f"flip-{seed}") == 0
        table = policies.load(find_run(Path(f"flip-{seed}")) / "e")
        assert table is not None
        chosen = {str(one.context["context"]): one.action for one in table.choices}
        scores.append(task.score(lambda context, chosen=chosen: chosen[str(context["context"])]))
    assert sum(score >= 0.9 for score in scores) >= 4, scores


# the record -----------------------------------------------------------------------------------------------

LOSSY = """
def value(algorithm, window, drop_rate):
    strength = {"cubic": 1.0, "bbr": 3.0}[algorithm]
    return {"value": window / (1.0 + window * drop_rate * 10.0 / strength)}
"""


@pytest.fixture
def lossy(write: Write) -> Callable[..., Document]:
    """Three drop rates over eight settings, so that most trials are served from the cache."""

    def make(agent: str = "ppo", **more: Any) -> Document:
        write("lossy.py", LOSSY)
        knobs = {"algorithm": ["cubic", "bbr"], "window": [1, 10, 100, 1000]}
        cmd_args = {"callable": "lossy:value", "drop_rate": [0.001, 0.01, 0.1], **knobs}
        return document(agent, 160, cmd_args, {"drop_rate": {"encoding": "log"}}, seed=7, **more)

    return make


def check_record(results: TrialResults) -> None:
    """The numbers from 1 to 160, and the rewards that were measured, not those that were learned from."""
    assert [trial.number for trial in results.trials] == list(range(1, 161))
    assert {trial.status for trial in results.trials} == {"measured"}
    assert {trial.cached_from is None for trial in results.trials} == {True, False}
    assert all(trial.reward == trial.metrics["value"] for trial in results.trials)


@pytest.mark.parametrize(("episode_steps", "slots"), [(1, 3), (160, 1), (7, 3)])
def test_record_of_a_policy_agent(episode_steps: int, slots: int, lossy: Callable[..., Document]) -> None:
    scenario = lossy(episode_steps=episode_steps, slots=slots)
    assert library.run(scenario, output="run") == 0
    results = results_of("run")
    check_record(results)
    assert (results.folder / "policy" / "training.jsonl").read_bytes().count(b"\n") >= 10


def test_training_in_the_librarys_loop_gives_the_same_record(lossy: Callable[..., Document]) -> None:
    """Stable-Baselines3 resets after every episode, and whenever else it likes: no number and no context moves."""
    from stable_baselines3 import PPO

    from tunegym.tuning.envs.wrappers import MultiDiscreteActions, NormalizedObservations

    assert library.run(lossy("random_search", episode_steps=7), output="run") == 0
    env = MultiDiscreteActions(NormalizedObservations(library.make(lossy(episode_steps=7), output="made")))
    PPO("MlpPolicy", env, n_steps=20, batch_size=20, n_epochs=2, gamma=0.0, device="cpu").learn(160)
    env.close()
    within, outside = results_of("run"), results_of("made")
    check_record(outside)
    assert [one.context for one in outside.trials] == [one.context for one in within.trials]


# a third of the settings crashes --------------------------------------------------------------------------

CLIFF = """
def value(x, y, load):
    if x + y > 1.225:
        raise ValueError("it crashed")
    return {"value": 10 - 3 * x - 3 * y + load * (x - y)}
"""


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "sac"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_final_choice_works(agent: str, seed: int, write: Write) -> None:
    """The best settings are at the edge of those that crash."""
    write("cliff.py", CLIFF)
    knob: Any = {"low": 0.0, "high": 1.0} if agent == "sac" else [step / 8 for step in range(9)]
    cmd_args = {"callable": "cliff:value", "x": knob, "y": knob, "load": [1, 2, 3]}
    scenario = document(agent, 240, cmd_args, {"load": {}}, seed=seed, agent_reward_function="negative")
    assert library.run(scenario, output="run") == 0
    results = results_of("run")
    assert {trial.status for trial in results.trials} == {"measured", "failed"}
    table = policies.load(results.folder)
    assert table is not None
    chosen = [one.action for one in table.choices]
    chosen += [library.recommend("run", {"load": load}).action for load in (1, 2, 3)]
    assert len(chosen) == 6
    assert all(one["x"] + one["y"] <= 1.225 for one in chosen), chosen  # type: ignore[operator]
