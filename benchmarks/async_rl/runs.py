"""One run each: CartPole from the reference configuration, slow steps, and the flip task."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import tunegym
from benchmarks.flip import learners as flip
from benchmarks.flip import task
from benchmarks.trial_overhead.measure import ROOT
from benchmarks.trial_overhead.scenarios import folder
from tunegym.asyncrl.policy import load as policy_of
from tunegym.tuning.agents import policies
from tunegym.tuning.stores import reader

EPISODES = 20
FIRST_SEED = 10_000


@dataclass(frozen=True)
class Learned:
    """What came of a run: the score of its greedy policy, its time, and what became of its rollouts."""

    score: float
    wall_s: float
    account: dict[str, Any]
    oldest: int


def cartpole(seed: int, staleness: int, steps: int) -> Learned:
    """The mean greedy return on CartPole, by the reference configuration."""
    document = tomllib.loads((ROOT / "examples" / "async" / "scenario.toml").read_text(encoding="utf-8"))
    document["seed"] = seed
    document["experiments"][0]["agent_steps"] = steps
    document["experiments"][0]["agent_config"]["max_staleness"] = staleness
    place, wall_s = _run(document)
    policy, weights = policy_of(place / "policy" / "checkpoint.pt")
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=FIRST_SEED + episode)
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(int(policy.greedy(weights, seen)[0][0]))
            total, over = total + float(reward), terminated or truncated
    return _learned(place, total / EPISODES, wall_s)


def flipped(seed: int, steps: int) -> Learned:
    """The share of the optimum in each context that the greedy policy gets on the flip task."""
    task.seed(seed)
    document = {**flip.scenario("async_ppo", seed, steps), "system": {"slots": 2}}
    place, wall_s = _run(document)
    table = policies.load(place)
    choices = {choice.context["context"]: choice.action for choice in table.choices} if table else {}
    for view in ("trajectory.csv", "env.csv"):
        numbers = [line.split(",")[0] for line in (place / view).read_text().splitlines()[1:]]
        if numbers != [str(number) for number in range(1, steps + 1)]:
            raise RuntimeError(f"{view} has not the numbers 1 to {steps}, each once")
    return _learned(place, task.score(lambda context: choices[context["context"]]), wall_s)


def pace(agent: str, slots: int, spread: bool, steps: int, step_s: float = 0.02) -> tuple[float, float]:
    """Steps per second of a slow system without the start-up (a quarter of the steps), and the whole time."""
    settings = {"batch": 8, "n_steps": 25} if agent == "async_ppo" else {"n_steps": 100 // slots, "batch_size": 100}
    experiment = {
        "name": "slow",
        "workload": "live",
        "agent": agent,
        "agent_steps": steps,
        "cmd_args": {"env_class": "benchmarks.async_rl.systems:Slow", "step_s": step_s, "spread": spread},
        "server": "process",
        "agent_config": {**settings, "n_epochs": 2},
    }
    document = {"name": "slow", "seed": 0, "scenario_dir": str(ROOT), "system": {"slots": slots}}
    place, wall_s = _run({**document, "experiments": [experiment]})
    groups = [one for one in reader.entries(place / "journal.jsonl") if isinstance(one, reader.Steps)]
    points = [(one.upto, one.since) for one in groups if one.upto >= steps // 4]
    (first, began), (last, ended) = points[0], points[-1]
    return (last - first) / (ended - began), wall_s


@dataclass(frozen=True)
class Sequences:
    """A row of the table of ``examples/async/grpo.py``."""

    name: str
    reward: float
    wall_s: float
    rollouts: str


def grpo() -> list[Sequences]:
    """The example, synchronous and asynchronous, each until its reward is reached or five minutes are over."""
    command = [sys.executable, str(ROOT / "examples" / "async" / "grpo.py")]
    table = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()[-2:]
    rows = [line.split(maxsplit=6) for line in table]
    return [
        Sequences(staleness, float(reward), float(wall_s), rest) for staleness, reward, _, wall_s, _, _, rest in rows
    ]


def _run(document: dict[str, Any]) -> tuple[Path, float]:
    results = folder() / "results"
    began = time.perf_counter()
    if tunegym.run(document, output=results) != 0:
        raise RuntimeError("the run failed")
    return next(results.rglob("journal.jsonl")).parent, time.perf_counter() - began


def _learned(place: Path, score: float, wall_s: float) -> Learned:
    lines = [json.loads(line) for line in (place / "async.jsonl").read_text().splitlines()]
    oldest = max(int(age) for line in lines for age in line.get("ages", {}))
    return Learned(float(np.round(score, 3)), wall_s, lines[-1]["account"], oldest)
