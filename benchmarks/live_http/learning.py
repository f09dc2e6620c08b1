"""A whole run of an agent on the service by ``tunegym.run``, and the policy that it left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tunegym
from benchmarks.trial_overhead.scenarios import folder
from tunegym.core.references import resolve

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "http_service"
SERVICE: Mapping[str, Any] = {"episode_steps": 10}
"""What the service is built with, in training and after."""
PPO: Mapping[str, Any] = {
    "n_steps": 50,
    "batch_size": 50,
    "learning_rate": 1e-2,
    "gamma": 0.0,
    "gae_lambda": 1.0,
    "ent_coef": 0.01,
}


def http_service(**arguments: Any) -> Any:
    """Build the example's server in this process."""
    return resolve("http_service:HttpService", (str(EXAMPLE),))(**arguments)


def scenario(seed: int, steps: int, loads: Sequence[float]) -> dict[str, Any]:
    """The service under loads that are drawn for each episode, as plain data."""
    experiment = {
        "name": "service",
        "workload": "live",
        "agent": "ppo",
        "agent_steps": steps,
        "cmd_args": {"env_class": "http_service:HttpService", **SERVICE, "load": list(loads)},
        "env_params": {"load": {}},
        "agent_config": dict(PPO),
    }
    return {"name": "live-http", "seed": seed, "scenario_dir": str(EXAMPLE), "experiments": [experiment]}


def learned(seed: int, steps: int, loads: Sequence[float]) -> Callable[[np.ndarray], np.ndarray]:
    """From an observation to the action that the policy prefers."""
    import stable_baselines3

    described = scenario(seed, steps, loads)
    results = folder() / "results"
    code = tunegym.run(described, output=results)
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")
    model = stable_baselines3.PPO.load(next(results.rglob("policy/model.zip")), device="cpu")
    return lambda observation: model.predict(observation, deterministic=True)[0]
