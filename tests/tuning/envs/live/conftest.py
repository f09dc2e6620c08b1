"""Live engines over small servers, whose journals are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.soundness import read_rows

from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Budget, Experiment, LiveSpec, Recording
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Space
from tunegym.tuning.ports import Reward
from tunegym.tuning.servers.host import InProcess
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.steps import StepStore


class Counter:
    """Episodes of ``length`` steps; its observation is one array that it uses again and again."""

    def __init__(self, length: int = 5, end: str = "terminated") -> None:
        self.action_space = spaces.Discrete(3)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)
        self.length, self.end = length, end
        self.calls: list[Any] = []
        self.raises: Exception | None = None
        self.info: dict[str, Any] = {}
        self.reward: Any = 1.0
        self._at = 0
        self._seen = np.zeros(2, dtype=np.float32)

    def apply_env_params(self, params: dict[str, Any]) -> None:
        self.calls.append(("apply", dict(params)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.calls.append(("reset", seed, options))
        self._at = 0
        self._seen[:] = 0
        return self._seen, {"fresh": True}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.calls.append(("step", int(action)))
        if self.raises is not None:
            raised, self.raises = self.raises, None
            raise raised
        self._at += 1
        self._seen[:] = (self._at, action)
        over = self._at >= self.length
        return self._seen, self.reward, over and self.end == "terminated", over and self.end == "truncated", self.info

    def close(self) -> None:
        self.calls.append(("close",))


class Engines:
    """Makes engines on one folder; several in a row are sessions of one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Counter()
        self._open: list[tuple[LiveEngine, StepStore]] = []

    def __call__(
        self,
        *,
        steps: int | None = 1000,
        servers: Sequence[Any] | None = None,
        env_params: dict[str, EnvParam] | None = None,
        record: Recording | None = None,
        metrics: tuple[str, ...] = (),
        reward: Reward | None = None,
    ) -> LiveEngine:
        params = EnvParams(env_params or {}, 7)
        record = record or Recording()
        experiment = Experiment(
            name="live",
            workload="live",
            workload_args={},
            space=Space({}, {}),
            env_params=params,
            agent="random_search",
            agent_config=None,
            agent_metrics=metrics,
            reward=None if reward is None else "given",
            budget=Budget(agent_steps=steps),
            cache=False,
            live=LiveSpec("tests:Counter", recording=record),
        )
        store = StepStore(self.folder, Head.of(experiment, "token"), SessionRecord("f", agent_steps=steps))
        made = [InProcess(lambda one=one: one) for one in (servers or [self.server])]
        engine = LiveEngine(LiveParts(experiment, made, store, self.folder, 7, reward))
        self._open.append((engine, store))
        engine.take_over()
        return engine

    def close(self) -> None:
        """End every session as a run does."""
        while self._open:
            engine, store = self._open.pop()
            engine.close()
            store.close()

    def rows(self, name: str = "trajectory.csv") -> list[dict[str, str]]:
        return read_rows(self.folder / name)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    made = Engines(tmp_path)
    yield made
    made.close()


def load(*values: Any, every_step: bool = False, encoding: str | None = None) -> dict[str, EnvParam]:
    """One env_param of these candidates."""
    return {"load": EnvParam(Choice(tuple(values)), None, encoding, every_step)}


def drive(engine: LiveEngine, steps: int) -> list[Any]:
    """Steps with a reset wherever an episode ends."""
    answers = []
    engine.reset()
    for number in range(steps):
        answers.append(engine.step(number % 3))
        if answers[-1][2] or answers[-1][3]:
            engine.reset()
    return answers
