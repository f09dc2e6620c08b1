"""Starting from another run's trials: what agents with a policy make of them, and how contexts are mapped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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

def loaded(x, load=0, size=0):
    return {"value": x + load + size}
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Callable[..., Document]:
    write("work.py", WORK)

    def make(agent: str, steps: int, cmd_args: Document, env_params: Document, **more: Any) -> Document:
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
        return {"name": "warm", "seed": more.pop("seed", 0), "experiments": [{**experiment, **more}]}

    return make


# what is learned from them --------------------------------------------------------------------------------

LOADS = (1, 2, 3)
RANGES = {"a": {"low": 1.0, "high": 3.0}, "b": {"low": 0.0, "high": 4.0}}
LISTS = {"a": [1, 2, 3], "b": [0, 1, 2, 3, 4]}


def score(folder: str | Path) -> float:
    """What is recommended, as a share of the best, on average over the contexts."""
    chosen = {load: library.recommend(folder, {"load": load}).action for load in LOADS}
    lost = [3.0 * abs(one["a"] - load) + abs(one["b"] - (4 - load)) for load, one in chosen.items()]  # type: ignore[operator]
    return 1.0 - sum(lost) / len(lost) / 10.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "episode_steps"),
    [("ppo", 1), ("ppo", 5), ("a2c", 1), ("dqn", 1), ("dqn", 5), ("sac", 1), ("contextual_bandit", 1)],
)
def test_a_warm_start_is_worth_a_run(agent: str, episode_steps: int, scenario: Callable[..., Document]) -> None:
    """After ten trials of its own it chooses as somebody does who has seen 150 more."""
    if agent != "contextual_bandit":
        pytest.importorskip("stable_baselines3")
    cmd_args = {"callable": "work:value", "load": list(LOADS), **(RANGES if agent == "sac" else LISTS)}
    gains = []
    for seed in (1, 2, 3):
        old = scenario("random_search", 150, cmd_args, {"load": {}}, seed=seed + 10)
        assert library.run(old, output=f"old-{seed}") == 0
        scores = {}
        for warm in (False, True):
            config = {"warm_start": f"old-{seed}"} if warm else {}
            new = scenario(
                agent, 10, cmd_args, {"load": {}}, seed=seed, agent_config=config, episode_steps=episode_steps
            )
            assert library.run(new, output=f"{warm}-{seed}") == 0
            scores[warm] = score(f"{warm}-{seed}")
            assert len(assert_sound(f"{warm}-{seed}")["e"].trials) == 10
        assert policies.load(find_run(Path(f"True-{seed}")) / "e") is not None
        assert scores[True] >= 0.75, scores
        gains.append(scores[True] - scores[False])
    assert sum(gains) / 3 > 0.1, gains


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_a_resumed_run_starts_from_the_same_trials(
    agent: str, scenario: Callable[..., Document], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("stable_baselines3")
    caplog.set_level(logging.INFO, "tunegym")
    cmd_args = {"callable": "work:value", "load": list(LOADS), **LISTS}
    assert library.run(scenario("random_search", 60, cmd_args, {"load": {}}, cache="off"), output="old") == 0
    new = scenario(agent, 10, cmd_args, {"load": {}}, agent_config={"warm_start": "old"})
    assert library.run(new, output="new") == 0
    Path("old").rename("gone")
    caplog.clear()
    assert library.resume("new", agent_steps=30) == 0
    assert "warm start: 60 trials taken" in caplog.text
    assert f"{agent} continues from its checkpoint after 10 trials" in caplog.text
    assert len(assert_sound("new")["e"].trials) == 30


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_old_trials_without_a_metric_that_is_only_shown_are_learned_from(
    agent: str, scenario: Callable[..., Document], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("stable_baselines3")
    caplog.set_level(logging.INFO, "tunegym")
    cmd_args = {"callable": "work:value", "load": list(LOADS), **LISTS}
    assert library.run(scenario("random_search", 60, cmd_args, {"load": {}}, cache="off"), output="old") == 0
    new = scenario(
        agent,
        12,
        {**cmd_args, "callable": "work:several"},
        {"load": {}},
        agent_metrics=["value", "other"],
        agent_config={"warm_start": "old"},
        episode_steps=4,
    )
    assert library.run(new, output="new") == 0
    assert "warm start: 60 trials taken" in caplog.text


# which of them fit ----------------------------------------------------------------------------------------

X = {"x": [1, 2]}


@pytest.mark.parametrize(
    ("there", "drawn_there", "here", "drawn_here", "taken", "reasons"),
    [
        ({"load": [1, 2]}, ["load"], {"load": [1, 2]}, ["load"], "4 trials taken, 96", []),
        ({"load": [1, 2]}, ["load"], {"load": [1.0, 2.0]}, ["load"], "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2]}, ["load"], {"load": {"low": 0.0, "high": 5.0}}, ["load"], "4 trials taken, 4 of", []),
        ({"load": [1, 2]}, ["load"], {"load": [1, 3]}, ["load"], "2 trials taken, 98",
         ["2 x load has a value that is no candidate here"]),
        ({"load": [1, 2]}, ["load"], {"load": 2, "size": [0, 1]}, ["size"], "0 trials taken, 100",
         ["2 x load is fixed at 2 here", "2 x it has no size"]),
        ({"load": [1, 2], "size": 1}, ["load"], {"load": 2, "size": [0, 1]}, ["size"],
         "2 trials taken, 2 of them mapped", ["2 x load is fixed at 2 here"]),
        ({"load": [1, 2], "size": 1}, ["load"], {"load": [1, 2], "size": [0, 1]}, ["size"],
         "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2]}, [], {"load": [1, 2]}, ["load"], "4 trials taken, 4 of them mapped", []),
        ({"load": [1, 2], "size": [0, 1]}, ["size"], {"load": [1, 2]}, ["load"], "0 trials taken",
         ["8 x it ran under env_params (size)"]),
        ({}, [], {"load": [1, 2]}, ["load"], "0 trials taken", ["2 x it has no load"]),
    ],
    ids=["same", "equal", "in a range", "no candidate", "missing", "fixed here", "a knob here", "a knob there",
         "unknown here", "unknown there"],
)  # fmt: skip
def test_contexts_are_mapped_and_counted(
    there: Document,
    drawn_there: list[str],
    here: Document,
    drawn_here: list[str],
    taken: str,
    reasons: list[str],
    scenario: Callable[..., Document],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of 100 trials that have tried everything; those that were served from the cache are left out."""
    caplog.set_level(logging.INFO, "tunegym")
    drawn: list[Document] = [{name: {} for name in names} for names in (drawn_there, drawn_here)]
    old = scenario("random_search", 100, {"callable": "work:loaded", **X, **there}, drawn[0])
    assert library.run(old, output="old") == 0
    config = {"warm_start": "old"}
    new = scenario("contextual_bandit", 2, {"callable": "work:loaded", **X, **here}, drawn[1], agent_config=config)
    assert library.run(new, output="new") == 0
    (said,) = [line for line in caplog.messages if line.startswith("warm start: ")]
    assert said.startswith(f"warm start: {taken}")
    for reason in reasons:
        assert reason in said
    assert len(reasons) == said.count(" x ") - 1, said
