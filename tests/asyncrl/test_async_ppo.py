"""``async_ppo`` on scenarios: one counter, one writer, and nothing older than allowed is trained."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.asyncrl.conftest import Change, assert_balanced, log_of, run, sound

import tunegym
from tunegym.asyncrl.async_ppo import PARTITION, TASK
from tunegym.asyncrl.policy import load
from tunegym.core.errors import ConfigError
from tunegym.dataplane import BatchMeta, DataPlaneClient
from tunegym.tuning.agents import policies
from tunegym.tuning.stores import reader

slow = pytest.mark.slow


def greedy_return(folder: Path, episodes: int = 10) -> float:
    """Of the policy on the disk, on CartPole."""
    import gymnasium

    place = tunegym.load(folder.parent).experiments["cartpole"].policy
    policy, weights = load(place)
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(int(policy.greedy(weights, seen)[0][0]))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


@slow
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_nothing_staler_is_trained(tmp_path: Path, reference: Change, staleness: int) -> None:
    folder = run(reference(agent_steps=2000, batch=4, n_steps=16, max_staleness=staleness), tmp_path / "results")
    results = sound(tmp_path / "results")
    assert results.steps == 2000
    account = assert_balanced(folder)
    assert account["dropped"] == {}
    versions, _ = log_of(folder)
    ages = {int(age) for line in versions for age in line["ages"]}
    assert max(ages) <= staleness
    # The journal knows the version that chose each step: never one that was not there yet, nor an older one again.
    for lane in range(2):
        chosen = versions_of_lane(folder, lane)
        assert chosen == sorted(chosen)
    assert len(versions) >= 2000 // (4 * 16)
    page = (folder.parent / "report.html").read_text()
    for curve in ("version", "staleness", "dropped", "learner_idle", "collectors_idle"):
        assert f"async/{curve}" in page
    assert f"{account['produced']:,} rollouts = {account['trained']:,} trained + 0 lost" in page


def versions_of_lane(folder: Path, lane: int) -> list[int]:
    steps = [one for one in reader.entries(folder / "journal.jsonl") if isinstance(one, reader.Steps)]
    lanes = {episode.number: episode.lane for one in steps for episode in one.over}
    return [
        version
        for one in steps
        for version, episode in zip(one.weight_versions, one.episodes, strict=True)
        if lanes.get(episode) == lane
    ]


@slow
def test_rollouts_may_vanish(tmp_path: Path, reference: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do with a node of a cluster, also while the learner has them: others are made in their place."""
    acks, claims, vanished = count(), count(), Counter[str]()
    ack, claim_meta = DataPlaneClient.ack, DataPlaneClient.claim_meta

    def vanish(plane: DataPlaneClient, state: str) -> None:
        there = [one["sample_id"] for one in plane.list_samples(PARTITION) if one["state"][TASK] == state]
        vanished[state] += plane.clear_samples(PARTITION, there[:2], "vanished")

    def trained(plane: DataPlaneClient, meta: BatchMeta, version: int | None = None) -> None:
        if (number := next(acks)) % 4 == 0:
            vanish(plane, "leased" if number % 8 else "free")
        ack(plane, meta, version)

    def claimed(plane: DataPlaneClient, *arguments: Any, **named: Any) -> BatchMeta:
        found = claim_meta(plane, *arguments, **named)
        if next(claims) % 10 == 0:
            vanish(plane, "leased")
        return found

    monkeypatch.setattr(DataPlaneClient, "ack", trained)
    monkeypatch.setattr(DataPlaneClient, "claim_meta", claimed)
    folder = run(reference(agent_steps=3000, batch=4, n_steps=16), tmp_path / "results")
    assert sound(tmp_path / "results").steps == 3000
    assert assert_balanced(folder)["dropped"] == {"vanished": vanished.total()}
    assert vanished["leased"] > 0


@slow
def test_the_plane_is_gone_at_a_resume(tmp_path: Path, reference: Change) -> None:
    """It ended with its cluster: what it had is lost, and what was trained before still counts."""
    document, results = reference(agent_steps=1000, batch=4, n_steps=16), tmp_path / "results"
    folder = run(document, results)
    before = assert_balanced(folder)
    shutil.rmtree(folder / "plane")
    assert tunegym.resume(results, agent_steps=2000) == 0
    assert assert_balanced(folder)["trained"] > before["trained"]


@slow
def test_cartpole_is_learned(tmp_path: Path, reference: Change) -> None:
    folder = run(reference(agent_steps=40_000), tmp_path / "results")
    assert greedy_return(folder) >= 200
    assert_balanced(folder)
    results = sound(tmp_path / "results")
    assert results.steps == 40_000


def flip(x: int, y: int, load: int) -> float:
    return float((x == (load * 2) % 3) + (y == (load + 1) % 4))


@slow
def test_trials_are_learned_under_their_contexts(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "name": "flip",
        "seed": 3,
        "system": {"slots": 2},
        "experiments": [
            {
                "name": "flip",
                "workload": "python",
                "isolate": False,
                "cache": "off",
                "keep": "none",
                "confirm": "off",
                "agent": "async_ppo",
                "agent_steps": 1000,
                "agent_metrics": ["value"],
                "agent_reward_function": "identity",
                "cmd_args": {"callable": f"{__name__}:flip", "x": [0, 1, 2], "y": [0, 1, 2, 3], "load": [0, 1, 2]},
                "env_params": {"load": {}},
                "agent_config": {"batch": 50, "minibatch": 50},
            }
        ],
    }
    folder = run(document, tmp_path / "results")
    results = sound(tmp_path / "results")  # numbers, contexts, both views row by row
    assert len(results.trials) == 1000
    assert assert_balanced(folder)["trained"] == 1000
    table = policies.load(folder)
    assert table is not None
    score = np.mean([flip(**choice.action, **choice.context) for choice in table.choices])  # type: ignore[arg-type]
    assert score >= 0.85 * 2
    records = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    versions = [record["weight_version"] for record in records if record["record"] == "open"]
    assert len(versions) == 1000
    assert max(versions) >= 15
    assert versions[0] == 0


@slow
def test_an_episode_keeps_its_context(tmp_path: Path, reference: Change) -> None:
    """Lanes that don't wait for each other still give every number its own context."""
    module = tmp_path / "drift.py"
    module.write_text(SERVER, encoding="utf-8")
    document = reference(agent_steps=600, batch=4, n_steps=8, server="process")
    document["scenario_dir"] = str(tmp_path)
    document["experiments"][0]["cmd_args"] = {"env_class": "drift:Drift", "load": [1, 2, 3]}
    document["experiments"][0]["env_params"] = {"load": {"encoding": "onehot"}}
    run(document, tmp_path / "results")
    results = sound(tmp_path / "results")
    assert results.steps == 600


SERVER = """
import random, time
import numpy as np
from gymnasium import spaces

class Drift:
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)

    def apply_env_params(self, params):
        self.load = params["load"]

    def reset(self, *, seed=None, options=None):
        self.at, self.seen = 0, np.zeros(2, np.float32)
        return self.seen, {}

    def step(self, action):
        time.sleep(random.random() * 0.004)
        self.at += 1
        self.seen = np.clip(self.seen + action, -10, 10).astype(np.float32)
        return self.seen, -float(abs(self.seen.sum() - self.load)), False, self.at >= 3 + self.load, {}

    def close(self):
        pass
"""


def bad(document: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        tunegym.run(document, output="results")
    return str(caught.value)


def test_settings_that_cannot_work_are_refused(reference: Change) -> None:
    assert "batch" in bad(reference(agent_steps=10))
    assert "out of bounds" in bad(reference(max_staleness=-1))
    assert "each rank needs a rollout" in bad(reference(dp_world=4, batch=3))
    assert "unknown" in bad(reference(plane={"link": "mmap:///x"})).lower()
    drawn = reference(cmd_args={"env_class": "tunegym.servers:GymnasiumServer", "env_id": "CartPole-v1", "x": [1, 2]})
    drawn["experiments"][0]["env_params"] = {"x": {"draw": "step"}}
    assert 'draw = "episode"' in bad(drawn)
    unused = reference()
    unused["experiments"][0]["agent"] = "random_search"
    unused["experiments"][0]["agent_config"] = {}
    assert "no experiment uses a data plane" in bad(unused)


@slow
def test_more_collectors_than_lanes_fail_with_a_hint(
    tmp_path: Path, reference: Change, caplog: pytest.LogCaptureFixture
) -> None:
    document = reference(agent_steps=100, num_collectors=3, batch=4)
    assert tunegym.run(document, output=tmp_path / "results") == 1
    assert "slots = 3" in caplog.text
