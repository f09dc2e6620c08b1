"""CartPole learned through ``tunegym.run``, and by Stable-Baselines3 itself with the same settings.

RLlib's own loop is not beside it: it is not the one that the agent uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

import tunegym
from benchmarks.trial_overhead.scenarios import folder

ENV_ID = "CartPole-v1"
EPISODES = 20
"""In which a greedy policy is judged; the same for all."""
FIRST_SEED = 10_000

PPO: Mapping[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_range": 0.2,
    "clip_range_schedule": "linear",
}
DQN: Mapping[str, Any] = {
    "learning_rate": 2.3e-3,
    "learning_rate_schedule": "linear",
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "net_arch": [256, 256],
}
RLLIB_PPO: Mapping[str, Any] = {name: value for name, value in PPO.items() if name != "clip_range_schedule"}
LANES = {"ppo": 8, "dqn": 1, "rllib_ppo": 8}


@dataclass(frozen=True)
class Learned:
    """What came of one run: the mean return of its greedy policy, and what the run took."""

    greedy: float
    wall_s: float
    cpu_s: float


def scenario(agent: str, settings: Mapping[str, Any], steps: int, seed: int) -> dict[str, Any]:
    """The task for one agent, as plain data."""
    experiment = {
        "name": "cartpole",
        "workload": "live",
        "agent": agent,
        "agent_steps": steps,
        "cmd_args": {"env_class": "tunegym.servers:GymnasiumServer", "env_id": ENV_ID},
        "agent_config": dict(settings),
    }
    return {"name": "cartpole", "seed": seed, "system": {"slots": LANES[agent]}, "experiments": [experiment]}


def by_scenario(agent: str, settings: Mapping[str, Any], steps: int, seed: int) -> Learned:
    """A whole run, with everything that it records and reports."""
    results = folder() / "results"
    begun = time.perf_counter(), time.process_time()
    code = tunegym.run(scenario(agent, settings, steps, seed), output=results)
    took = time.perf_counter() - begun[0], time.process_time() - begun[1]
    if code != 0:
        raise RuntimeError(f"the run of {agent} ended with {code}")
    model = "policy/module" if agent.startswith("rllib") else "model.zip"
    return Learned(greedy(agent, next(results.rglob(model))), *took)


def by_library(agent: str, settings: Mapping[str, Any], steps: int, seed: int) -> Learned:
    """The same algorithm in the library's own vector of environments."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    place = folder() / "model.zip"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        begun = time.perf_counter(), time.process_time()
        env = make_vec_env(ENV_ID, n_envs=LANES[agent], seed=seed)
        algorithm = getattr(stable_baselines3, agent.upper())
        model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **_theirs(settings))
        model.learn(steps)
        model.save(place)
        took = time.perf_counter() - begun[0], time.process_time() - begun[1]
        env.close()
    finally:
        torch.set_num_threads(threads)
    return Learned(greedy(agent, place), *took)


def _theirs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our names for schedules and layers in the library's own way."""
    from stable_baselines3.common.utils import LinearSchedule

    theirs = dict(settings)
    for name in ("learning_rate", "clip_range"):
        if theirs.pop(f"{name}_schedule", None) == "linear":
            theirs[name] = LinearSchedule(theirs[name], 0.0, 1.0)
    layers = theirs.pop("net_arch", None)
    return {**theirs, "policy_kwargs": {"net_arch": layers}} if layers else theirs


def greedy(agent: str, model: Path) -> float:
    """The mean return of a saved policy that doesn't explore, over the same episodes for everybody."""
    choose = _rllib_policy(model) if agent.startswith("rllib") else _policy(agent, model)
    env = gymnasium.make(ENV_ID)
    total = 0.0
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=FIRST_SEED + episode)
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(choose(seen))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / EPISODES


def _policy(agent: str, model: Path) -> Callable[[Any], Any]:
    import stable_baselines3

    policy = getattr(stable_baselines3, agent.upper()).load(model, device="cpu")
    return lambda seen: policy.predict(seen, deterministic=True)[0]


def _rllib_policy(folder: Path) -> Callable[[Any], Any]:
    import torch
    from ray.rllib.core.rl_module.rl_module import RLModule

    module: Any = RLModule.from_checkpoint(folder)
    return lambda seen: int(
        module.forward_inference({"obs": torch.as_tensor(seen[None])})["action_dist_inputs"].argmax()
    )
