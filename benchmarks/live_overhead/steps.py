"""Steps of one CartPole: in a bare loop, and recorded; and millions of them, with a look at the memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

import tunegym
from benchmarks.trial_overhead.measure import Numbers
from benchmarks.trial_overhead.scenarios import folder

ENV_ID = "CartPole-v1"
CHUNK = 5120
"""Steps of one kind in a row, before it is the next one's turn: twenty groups of the journal."""


def scenario(steps: int, record: str = "all", agent: str = "random_search") -> dict[str, Any]:
    """CartPole as a live experiment."""
    experiment = {
        "name": "cartpole",
        "workload": "live",
        "agent": agent,
        "agent_steps": steps,
        "record": record,
        "cmd_args": {"env_class": "tunegym.servers:GymnasiumServer", "env_id": ENV_ID},
    }
    return {"name": "live-overhead", "experiments": [experiment]}


def recorded(chunks: int, record: str) -> Numbers:
    """CPU microseconds a step, bare and recorded, and their ratio: medians over chunks, in turn."""
    bare: gymnasium.Env[Any, Any] = gymnasium.make(ENV_ID, disable_env_checker=True)
    ours = tunegym.make(scenario(CHUNK * (chunks + 1), record), output=folder())
    actions = np.random.default_rng(0).integers(0, 2, CHUNK).tolist()
    loops = {"bare": _loop(bare, actions), "recorded": _loop(ours, actions)}
    for loop in loops.values():  # what is imported or made late is not counted
        loop()
    costs: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(chunks):
        for name, loop in loops.items():
            begun = time.process_time()
            loop()
            costs[name].append((time.process_time() - begun) / CHUNK * 1e6)
    ours.close()
    ratios = [alone / with_us for alone, with_us in zip(costs["bare"], costs["recorded"], strict=True)]
    return {"bare_us": median(costs["bare"]), "recorded_us": median(costs["recorded"]), "ratio": median(ratios)}


def _loop(env: Any, actions: list[int]) -> Callable[[], None]:
    env.reset(seed=0)

    def loop() -> None:
        step, reset = env.step, env.reset
        for action in actions:
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()

    return loop


def ppo(steps: int, seed: int) -> Numbers:
    """Wall seconds of ``ppo`` through a scenario, and of the library alone with the same settings, in turn."""
    from benchmarks.live_cartpole import learners

    lanes = learners.LANES["ppo"]
    alone = learners.by_library("ppo", learners.PPO, steps, seed)
    ours = learners.by_scenario("ppo", learners.PPO, steps, seed)
    return {"alone_s": alone.wall_s, "ours_s": ours.wall_s, "ratio": ours.wall_s / alone.wall_s, "lanes": float(lanes)}


def memory(steps: int, record: str) -> Numbers:
    """Megabytes of this process after a tenth of the steps and at the end, and of the files that were written."""
    place = folder()
    env = tunegym.make(scenario(steps, record), output=place)
    actions = np.random.default_rng(0).integers(0, 2, 1000).tolist()
    loop = _loop(env, actions)
    begun = time.process_time()
    resident: list[float] = []
    for at in range(steps // len(actions)):
        loop()
        if (at + 1) % max(1, steps // len(actions) // 10) == 0:
            resident.append(resident_mb())
    env.close()
    written = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
    return {
        "first_mb": resident[0],
        "last_mb": resident[-1],
        "most_mb": max(resident),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "written_mb": written / 1e6,
        "us": (time.process_time() - begun) / steps * 1e6,
    }


def resident_mb() -> float:
    """What this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20
