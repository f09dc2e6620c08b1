"""Live experiments written through their store, for reports and trackers to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from tests.heads import head

from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import load
from tunegym.tuning.stores.columns import Step
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.steps import StepStore

GRAVITY = {"gravity": {"values": [9.8, 20.0]}}
TWO = spaces.Discrete(2)
SMALL = spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
LARGE = spaces.Dict({"image": spaces.Box(0, 255, (4, 10), dtype=np.uint8), "speed": spaces.Box(-1.0, 1.0, (1,))})


def open_store(
    folder: Path,
    *,
    env_params: Mapping[str, Any] | None = None,
    metrics: Iterable[str] = (),
    record: str = "all",
    agent: str = "ppo",
    actions: spaces.Space[Any] = TWO,
    observations: spaces.Space[Any] = SMALL,
) -> StepStore:
    """A session of a live journal."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, every = record.partition(":")
    plain = {"agent": agent, "env_params": dict(env_params or {}), "metrics": list(metrics)}
    live = {"kind": kind, "every": int(every or 1)}
    store = StepStore(folder, head(experiment=folder.name, live=live, **plain), SessionRecord("f", agent_steps=1000))
    store.declare(actions, observations)
    return store


def add_episode(
    store: StepStore,
    length: int,
    reward: float = 1.0,
    *,
    end: str = "terminated",
    context: Mapping[str, Any] | None = None,
    failing: int | None = None,
    reason: str = "it broke",
    metrics: Mapping[str, float] | None = None,
) -> Episode:
    """Take the steps of one episode; place ``failing`` (from 0) of them has no measurement."""
    first = store.upto + 1
    store.begun += 1
    store.reserve(first + length - 1)
    total = 0.0
    drawn = dict(context or {})
    for at in range(length):
        number = first + at
        observation: Any = np.array([number, -number], dtype=np.float32) / 1e6
        if len(store._sides):
            observation = {"image": np.full((4, 10), number % 256, dtype=np.uint8), "speed": np.array([0.5])}
        observation = store.pack(observation)
        taken = reward if at != failing else -100.0
        total += taken
        over = at == length - 1 and at != failing
        step = Step(
            number=number,
            episode=store.begun,
            action=1 if at == failing else at % 2,
            observation=observation,
            reward=taken,
            duration=0.001,
            terminated=over and end == "terminated",
            truncated=over and end == "truncated",
            context=drawn,
            metrics=dict(metrics or {}) if at != failing else {},
            unmeasured=("failed", reason) if at == failing else None,
        )
        store.add(step)
    episode = Episode(store.begun, 0, first, first + length - 1, length, total, end, drawn)  # type: ignore[arg-type]
    store.episode_over(episode)
    return episode


def write_scenario(folder: Path, *names: str, **declared: Any) -> None:
    """What makes a folder a run's."""
    folder.mkdir(parents=True, exist_ok=True)
    experiments = [{"name": name, "workload": "live", **declared} for name in names]
    document = {"name": "written", "scenario_dir": str(folder), "experiments": experiments}
    (folder / "scenario.toml").write_text(dump_toml(document), encoding="utf-8")


def write_live(
    folder: Path,
    episodes: Iterable[Mapping[str, Any]],
    *,
    ended: str | None = "agent_steps = 1000 are used up",
    code: int = 0,
    name: str = "e",
    **keys: Any,
) -> LiveResults:
    """A run of one live experiment, of which each episode is what ``add_episode`` takes."""
    write_scenario(folder, name)
    store = open_store(folder / name, **keys)
    for one in episodes:
        add_episode(store, **one)
    if ended is not None:
        store.end(code, ended)
    store.close()
    results = load(folder).experiments[name]
    assert isinstance(results, LiveResults)
    return results


def write_killed(folder: Path, length: int, reserved: int, pids: Iterable[int] = (), **keys: Any) -> None:
    """A run whose driver was killed: an episode of ``length`` steps is on record, and more numbers are reserved."""
    write_scenario(folder, "e")
    store = open_store(folder / "e", **keys)
    for pid in pids:
        store.job_started({"pid": pid})
    add_episode(store, length)
    store.flush()
    store.reserve(reserved)
    path = folder / "e" / "journal.jsonl"
    killed = path.read_bytes()
    store.close()
    path.write_bytes(killed)
