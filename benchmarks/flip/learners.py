"""Who learns the flip task: our agents by ``tunegym.run``, and a library with its own defaults on ``tunegym.make``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tunegym
from benchmarks.flip import task
from benchmarks.trial_overhead.scenarios import folder
from tunegym.tuning.agents import policies
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.reports.trials import TrialResults


@dataclass(frozen=True)
class Learned:
    """What came of one run: the greedy policy's score, and that of the last 100 trials as they were chosen."""

    greedy: float
    chosen: float


def scenario(agent: str, seed: int, steps: int, episode_steps: int = 1, **config: Any) -> dict[str, Any]:
    """The flip task for one agent, as plain data."""
    experiment = {
        "name": "flip",
        "workload": "python",
        "isolate": False,
        "cache": "off",
        "keep": "none",
        "agent": agent,
        "agent_steps": steps,
        "confirm": "off",
        "agent_metrics": ["throughput"],
        "agent_reward_function": "identity",
        "episode_steps": episode_steps,
        "cmd_args": {
            "callable": f"{task.__name__}:measure",
            **{name: list(knob.values) for name, knob in task.KNOBS.items()},
            "context": list(task.DOMAIN.values),
        },
        "env_params": {"context": {}},
        "agent_config": config,
    }
    return {"name": "flip", "seed": seed, "scenario_dir": str(folder()), "experiments": [experiment]}


def by_agent(agent: str, steps: int, episode_steps: int = 1, **config: Any) -> Callable[[int], Learned]:
    """A whole run of one of our agents; its policy is the one on the disk."""

    def learned(seed: int) -> Learned:
        task.seed(seed)
        described = scenario(agent, seed, steps, episode_steps, **config)
        results = Path(described["scenario_dir"]) / "results"
        code = tunegym.run(described, output=results)
        if code != 0:
            raise RuntimeError(f"the run of {agent} ended with {code}")
        table = policies.load(_experiment(results))
        if table is None:
            raise RuntimeError(f"{agent} left no policy")
        choices = {choice.context["context"]: choice.action for choice in table.choices}
        return Learned(task.score(lambda context: choices[context["context"]]), _last(results))

    return learned


def by_answer(agent: str, steps: int) -> Callable[[int], Learned]:
    """A search, and then what its answer recommends in each context."""

    def learned(seed: int) -> Learned:
        task.seed(seed)
        described = scenario(agent, seed, steps)
        results = Path(described["scenario_dir"]) / "results"
        tunegym.run(described, output=results)
        return Learned(task.score(lambda context: tunegym.recommend(results, context).action), _last(results))

    return learned


def by_library(steps: int) -> Callable[[int], Learned]:
    """Stable-Baselines3's PPO as it comes, on the same environment through our wrappers."""

    def learned(seed: int) -> Learned:
        from stable_baselines3 import PPO

        from tunegym.tuning.envs.wrappers import DiscreteActions, NormalizedObservations

        task.seed(seed)
        described = scenario("random_search", seed, steps)
        results = Path(described["scenario_dir"]) / "results"
        env = DiscreteActions(NormalizedObservations(tunegym.make(described, output=results)))
        # As it comes, but for rollouts of 500: with its 2048 steps the budget would end before the first update.
        model = PPO("MlpPolicy", env, n_steps=500, batch_size=100, seed=seed, device="cpu")
        model.learn(total_timesteps=steps)
        env.close()

        def choose(context: Context) -> Action:
            slots = [0.0, 0.0, *(float(context["context"] == value) for value in task.DOMAIN.values)]
            return env.decode_action(model.predict(np.array(slots, dtype=np.float32), deterministic=True)[0])

        return Learned(task.score(choose), _last(results))

    return learned


def _experiment(results: Path) -> Path:
    return next(results.rglob("journal.jsonl")).parent


def _last(results: Path) -> float:
    (experiment,) = tunegym.load(results).experiments.values()
    assert isinstance(experiment, TrialResults)
    trials = experiment.trials[-100:]
    return sum(task.true_value(trial.context, trial.action) / task.optimum(trial.context) for trial in trials) / len(
        trials
    )
