"""A short version of ``benchmarks/live_http``: an agent learns to serve a load that the default settings can't."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import tunegym
from tunegym.servers import HttpService

SERVICE: dict[str, Any] = {"tune": "workers,batch_size", "action": "discrete", "load": 1000, "window_s": 0.1}


def scenario(agent: str, steps: int, **config: Any) -> dict[str, Any]:
    experiment = {
        "name": "service",
        "workload": "live",
        "agent": agent,
        "agent_steps": steps,
        "cmd_args": {"env_class": "tunegym.servers:HttpService", **SERVICE},
        "agent_config": config,
    }
    return {"name": "short", "seed": 1, "experiments": [experiment]}


@pytest.mark.slow
def test_a_learned_policy_beats_the_default_settings(tmp_path: Path) -> None:
    from stable_baselines3 import DQN

    described = scenario(
        "dqn",
        80,
        learning_rate=3e-3,
        learning_starts=20,
        batch_size=32,
        train_freq=4,
        gradient_steps=8,
        exploration_fraction=0.8,
        gamma=0.0,
        target_update_interval=100,
    )
    assert tunegym.run(described, output=tmp_path) == 0
    model = DQN.load(next(tmp_path.rglob("policy/model.zip")), device="cpu")
    service = HttpService(**SERVICE)
    rewards: dict[str, list[float]] = {"default": [], "learned": []}
    try:
        for turn in range(3):
            for who, found in rewards.items():
                observation, _ = service.reset(seed=turn)
                for _ in range(2):
                    learned = model.predict(observation, deterministic=True)[0]
                    action = service.default_action if who == "default" else learned
                    observation, reward, _, _, _ = service.step(action)
                    found.append(reward)
    finally:
        service.close()
    assert fmean(rewards["learned"]) > 1.3 * fmean(rewards["default"]), rewards
