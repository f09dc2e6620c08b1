"""Starting from another run's trials: which fit, how they are mapped and scored, and the gain."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, document
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.reports.results import find_run

Document = dict[str, Any]

WORK = """
def value(a, b, load):
    return {"value": load * (10.0 - 3.0 * abs(a - load) - abs(b - (4 - load)))}

def several(a, b, load):
    return {**value(a, b, load), "other": 1.0}

def measured(x):
    return {"value": x, "memory": 1.0}

def total(x, y=1, z=0, load=0, size=0):
    return {"value": x + y + load + size}
"""


@pytest.fixture
def run(write: Write, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """Run an experiment; returns the line about its warm start, if it had one."""
    write("work.py", WORK)
    caplog.set_level(logging.INFO, "tunegym")

    def make(output: str, agent: str, steps: int, knobs: Document, drawn: tuple[str, ...] = (), **more: Any) -> str:
        args = {"callable": f"work:{more.pop('function', 'total')}", **knobs}
        keys = {"agent": agent, "agent_steps": steps, "keep": "none", "env_params": {name: {} for name in drawn}}
        metrics = {} if "objectives" not in more else {"agent_metrics": None}
        scenario = document(args=args, **keys, **metrics, **more)
        caplog.clear()
        assert library.run(scenario, output=output) == 0
        return next((line for line in caplog.messages if line.startswith("warm start: ")), "")

    return make


def actions(folder: str) -> list[Document]:
    return [dict(trial.action) for trial in assert_sound(folder)["e"].trials]


# which trials fit -----------------------------------------------------------------------------------------

X, XY = {"x": [1, 2, 3]}, {"x": [1, 2, 3], "y": [4, 5]}


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (XY, XY, "6 trials taken"),
        (X, {"x": [1.0, 2.0, 9.0]}, "2 trials taken, 2 of them mapped to the knobs here, 1 left out"),
        (X, {"x": {"low": 0.0, "high": 2.0, "dtype": "float"}}, "2 trials taken, 2 of them mapped"),
        ({"x": {"low": 0.0, "high": 1.0, "step": 0.1}}, {"x": {"low": 0.0, "high": 0.75, "step": 0.25}},
         "2 trials taken, 9 left out (6 x x is between the steps here; 3 x x is outside of its range here)"),
        ({**X, "y": 4}, XY, "3 trials taken, 3 of them mapped"),
        (XY, {**X, "y": 5}, "3 trials taken, 3 of them mapped"),
        (XY, X, "0 trials taken, 6 left out (6 x there is no y here)"),
        (X, {**X, "z": [4, 5]}, "0 trials taken, 3 left out (3 x it has no z)"),
    ],
)  # fmt: skip
def test_knobs_are_mapped(there: Document, here: Document, said: str, run: Callable[..., str]) -> None:
    run("old", "grid_search", 100, there)
    assert run("new", "optuna", 2, here, agent_config={"warm_start": "old"}).startswith(f"warm start: {said}")


@pytest.mark.parametrize(
    ("there", "drawn_there", "here", "drawn_here", "taken", "reasons"),
    [
        ({"load": [1, 2]}, "load", {"load": [1, 2]}, "load", "4 trials taken, 96", []),
        ({"load": [1, 2]}, "load", {"load": [1.0, 2.0]}, "load", "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2]}, "load", {"load": {"low": 0.0, "high": 5.0}}, "load", "4 trials taken, 4 of", []),
        ({"load": [1, 2]}, "load", {"load": [1, 3]}, "load", "2 trials taken, 98",
         ["2 x load has a value that is no candidate here"]),
        ({"load": [1, 2]}, "load", {"load": 2, "size": [0, 1]}, "size", "0 trials taken, 100",
         ["2 x load is fixed at 2 here", "2 x it has no size"]),
        ({"load": [1, 2], "size": 1}, "load", {"load": 2, "size": [0, 1]}, "size",
         "2 trials taken, 2 of them mapped", ["2 x load is fixed at 2 here"]),
        ({"load": [1, 2], "size": 1}, "load", {"load": [1, 2], "size": [0, 1]}, "size",
         "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2]}, "", {"load": [1, 2]}, "load", "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2], "size": [0, 1]}, "size", {"load": [1, 2]}, "load", "0 trials taken",
         ["8 x it ran under env_params (size)"]),
        ({}, "", {"load": [1, 2]}, "load", "0 trials taken", ["2 x it has no load"]),
    ],
    ids=["same", "equal", "in a range", "no candidate", "missing", "fixed here", "a knob here", "a knob there",
         "unknown here", "unknown there"],
)  # fmt: skip
def test_contexts_are_mapped(
    there: Document,
    drawn_there: str,
    here: Document,
    drawn_here: str,
    taken: str,
    reasons: list[str],
    run: Callable[..., str],
) -> None:
    """Of 100 trials that have tried everything; those that were served from the cache are left out."""
    run("old", "random_search", 100, {"x": [1, 2], **there}, (drawn_there,) if drawn_there else ())
    config = {"warm_start": "old"}
    said = run("new", "bayes", 2, {"x": [1, 2], **here}, (drawn_here,), agent_config=config)
    assert said.startswith(f"warm start: {taken}")
    assert all(reason in said for reason in reasons)
    assert len(reasons) == said.count(" x ") - 1, said


def test_trials_without_an_objectives_metric_are_left_out(run: Callable[..., str]) -> None:
    run("old", "grid_search", 9, X)
    limit = {"metric": "memory", "goal": "min", "weight": 0, "limit": 2}
    more = {"objectives": [{"metric": "value", "goal": "max"}, limit], "agent_config": {"warm_start": "old"}}
    said = run("new", "optuna", 2, X, function="measured", **more)
    assert "0 trials taken, 3 left out (3 x metric memory was not measured)" in said


def test_a_folder_of_runs_is_the_newest_and_never_the_run_itself(run: Callable[..., str]) -> None:
    for knobs in (XY, X):
        run("runs", "grid_search", 9, knobs)
    for _ in range(2):
        said = run("runs", "optuna", 2, X, agent_config={"warm_start": "runs"}, cache="off")
    assert said == "warm start: 2 trials taken"


# what is learned from them --------------------------------------------------------------------------------

FINE = {"x": {"low": 0, "high": 60, "step": 1}}


def test_old_trials_are_scored_by_the_new_reward(run: Callable[..., str]) -> None:
    """There more was better, here less is."""
    run("old", "grid_search", 100, FINE)
    config = {"warm_start": "old", "startup_trials": 1}
    run("new", "optuna", 2, FINE, agent_config=config, agent_reward_function="negative")
    assert all(action["x"] < 30 for action in actions("new"))


@pytest.mark.parametrize("agent", ["optuna", "bayes", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_resume_starts_from_the_same_trials(
    agent: str, run: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever became of the other run."""
    run("old", "grid_search", 100, FINE)
    settings: dict[str, Document] = {"optuna": {"startup_trials": 1}, "bayes": {}, "dqn": {"bins": 61}}
    config: Document = {"warm_start": "old", **settings[agent]}
    run("whole", agent, 8, FINE, agent_config=config)
    run("new", agent, 2, FINE, agent_config=config)
    shutil.rmtree("old")
    shutil.move("new", "moved")
    caplog.clear()
    assert library.resume("moved", agent_steps=8) == 0
    assert "warm start: 61 trials taken" in caplog.text
    if agent == "optuna":
        assert actions("moved") == actions("whole")
    elif agent == "bayes":
        assert max(action["x"] for action in actions("moved")) == 60
    else:
        assert "dqn continues from its checkpoint after 2 trials" in caplog.text


LOADS = (1, 2, 3)
RANGES = {"a": {"low": 1.0, "high": 3.0}, "b": {"low": 0.0, "high": 4.0}}
LISTS = {"a": [1, 2, 3], "b": [0, 1, 2, 3, 4]}


def score(folder: str) -> float:
    """Mean over the contexts of the value of the policy's choice, as a share of the best."""
    table = policies.load(find_run(Path(folder)) / "e")
    assert table is not None
    chosen = {choice.context["load"]: choice.action for choice in table.choices}
    lost = [3.0 * abs(one["a"] - load) + abs(one["b"] - (4 - load)) for load, one in chosen.items()]  # type: ignore[operator]
    return 1.0 - sum(lost) / len(lost) / 10.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "episode_steps"),
    [
        *[("ppo", 1), ("ppo", 5), ("a2c", 1), ("dqn", 1), ("dqn", 5), ("sac", 1)],
        *[("rllib_ppo", 1), ("rllib_dqn", 1)],
    ],
)
def test_a_warm_start_is_worth_a_run(agent: str, episode_steps: int, run: Callable[..., str]) -> None:
    """After ten trials it chooses as if it had seen 150 more."""
    pytest.importorskip("stable_baselines3")
    knobs = {"load": list(LOADS), **(RANGES if agent == "sac" else LISTS)}
    gains = []
    for seed in range(1, 9):
        run(f"old-{seed}", "random_search", 150, knobs, ("load",), function="value", seed=seed + 10)
        scores = {}
        for warm in (False, True):
            more = {"agent_config": {"warm_start": f"old-{seed}"} if warm else {}, "episode_steps": episode_steps}
            run(f"{warm}-{seed}", agent, 10, knobs, ("load",), function="value", seed=seed, **more)
            scores[warm] = score(f"{warm}-{seed}")
        assert scores[True] >= 0.75, scores
        gains.append(scores[True] - scores[False])
    assert sum(gains) / 8 > 0.1, gains


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_old_trials_may_lack_a_metric_that_is_only_shown(agent: str, run: Callable[..., str]) -> None:
    pytest.importorskip("stable_baselines3")
    knobs = {"load": list(LOADS), **LISTS}
    run("old", "random_search", 60, knobs, ("load",), function="value", cache="off")
    more = {"agent_metrics": ["value", "other"], "agent_config": {"warm_start": "old"}, "episode_steps": 4}
    assert run("new", agent, 12, knobs, ("load",), function="several", **more).startswith("warm start: 60 trials")
