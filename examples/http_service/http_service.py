"""``HttpService``: a real HTTP service under real load, as a ``GymServer``. Needs aiohttp."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from service import Knobs

CHOICES: Mapping[str, tuple[int, ...]] = {
    "workers": (1, 2, 4, 8),
    "batch_size": (1, 4, 16),
    "batch_wait_ms": (0, 5, 20),
    "queue_limit": (16, 64, 256),
    "cache_size": (0, 64, 512),
}
SLOTS = ("load", "throughput", "p50", "p99", "errors", "cpu", "hits", "queue")
"""The numbers of an observation, each from -1 to 1."""
LOADS = (10.0, 2000.0)
WORKER_PRICE, CPU_PRICE, CACHE_PRICE = 0.015, 0.1, 0.0001
"""Costs of a worker, a core in use and a cache entry, as a share of what the requests are worth."""
LATE_S = 0.05
"""A generator that was held up for longer than this (or than the target) didn't measure the service."""
ATTEMPTS = 8
PATIENCE_S = 30.0


class HttpService:
    """An HTTP service with workers, batches, a queue limit and a cache, whose knobs change while it serves.

    The service is one process, the load generator another. A step sets the knobs, lets the load flow for ``settle_s``
    and observes ``window_s``; requests that are still open then get another ``target_ms``. The load flows on to the
    next step if that comes within a second. ``reset`` starts with an empty queue, an empty cache and default knobs.

    The observation has the ``SLOTS``; ``info`` has the raw metrics and the knobs. The reward, from 0 to 1, is the share
    of requests answered within ``target_ms``, times 1 minus the cost of workers, CPU and cache.

    Args:
        load: requests per second; also an env_param.
        skew: exponent of Zipf's law for the popularity of keys; also an env_param.
        keys: number of different keys.
        target_ms: an answer within this time is in time.
        window_s: observed time of a step.
        settle_s: time before it.
        episode_steps: steps in an episode.
        tune: the knobs that actions choose: ``"all"``, or names separated by commas. Others keep their defaults.
        action: ``"multi_discrete"``, an index for each knob, or ``"discrete"``, one index for a whole setting.
        backend_ms: time that a batch waits for the backend.
        item_ms: additional time for each request in it.

    Attributes:
        default_action: the action with the default settings.
        port: where it serves on loopback after a ``reset``: ``GET /work?key=KEY``.
    """

    def __init__(
        self,
        load: float = 300.0,
        skew: float = 0.8,
        keys: int = 2000,
        target_ms: float = 60.0,
        window_s: float = 0.2,
        settle_s: float = 0.05,
        episode_steps: int = 20,
        tune: str = "all",
        action: str = "multi_discrete",
        backend_ms: float = 20.0,
        item_ms: float = 1.0,
    ) -> None:
        self.names = list(CHOICES) if tune == "all" else [name.strip() for name in tune.split(",")]
        unknown = [name for name in self.names if name not in CHOICES]
        if unknown:
            raise ValueError(f'tune: {unknown[0]!r} is no knob; allowed: "all", or some of {", ".join(CHOICES)}')
        self._keys, self._episode_steps = keys, episode_steps
        self._times = {"settle_s": settle_s, "window_s": window_s, "target_s": target_ms / 1000}
        self._backend = (backend_ms / 1000, item_ms / 1000)
        self._conditions: dict[str, float] = {}
        self.apply_env_params({"load": load, "skew": skew})
        self._random = np.random.default_rng(0)
        self._children: list[subprocess.Popen[str]] = []
        self._steps: int | None = None
        self.port: int | None = None
        self._control = ""

        counts = [len(CHOICES[name]) for name in self.names]
        default = [CHOICES[name].index(getattr(Knobs(), name)) for name in self.names]
        self.action_space: spaces.Space[Any]
        self.default_action: Any
        if action == "discrete":
            self.action_space = spaces.Discrete(math.prod(counts))
            self.default_action = np.ravel_multi_index(default, counts)
        else:
            self.action_space = spaces.MultiDiscrete(counts)
            self.default_action = np.array(default, dtype=np.int64)
        self._counts = counts
        self.observation_space = spaces.Box(-1.0, 1.0, (len(SLOTS),), np.float32)

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """Set ``load`` and ``skew`` for what follows."""
        allowed = {"load": LOADS, "skew": (0.0, 3.0)}
        for name, value in params.items():
            if name not in allowed:
                raise ValueError(f"{name} is no env_param of this service; allowed: load, skew")
            low, high = allowed[name]
            if not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; allowed: {low:g} to {high:g}")
        self._conditions |= params

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin again, and observe a window with the default knobs. A process that died is started again."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if not self.pids or any(child.poll() is not None for child in self._children):
            self._start()
        self._ask("reset", {"seed": int(self._random.integers(2**31))})
        found = self._observe(Knobs())
        self._steps = 0
        return observation(found), found

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Set the knobs and observe a window."""
        if self._steps is None:
            raise RuntimeError("call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is no action of {self.action_space}")
        discrete = isinstance(self.action_space, spaces.Discrete)
        indices = np.unravel_index(int(action), self._counts) if discrete else action
        knobs = Knobs(**{name: CHOICES[name][int(at)] for name, at in zip(self.names, indices, strict=True)})
        found = self._observe(knobs)
        self._steps += 1
        reward = found["good_share"] * max(0.0, 1.0 - found["cost"])
        return observation(found), reward, False, self._steps >= self._episode_steps, found

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the service and the load generator."""
        return tuple(child.pid for child in self._children)

    def close(self) -> None:
        """End both processes. Calling it twice is fine."""
        self._steps = None
        children, self._children = self._children, []
        for child in reversed(children):
            child.kill()
            child.communicate()

    def _start(self) -> None:
        self.close()
        try:
            self.port = self._child("service.py", *self._backend)
            self._control = f"http://127.0.0.1:{self._child('load.py', self.port, self._keys)}"
        except BaseException:
            self.close()
            raise

    def _child(self, script: str, *arguments: object) -> int:
        """Start a process that ends with this one, and return its port."""
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
        self._children.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"{script} ended with code {child.wait()}")
        return int(line)

    def _ask(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._control}/{what}", json.dumps(message).encode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except OSError as error:
            self.close()
            raise RuntimeError(f"the service or its load generator is gone: {error}") from error

    def _observe(self, knobs: Knobs) -> dict[str, Any]:
        message = {"knobs": asdict(knobs), "rate": self._conditions["load"], "skew": self._conditions["skew"]}
        for _ in range(ATTEMPTS):
            seen = self._ask("window", {**message, **self._times})
            if seen["late_s"] <= max(self._times["target_s"], LATE_S):
                return metrics(self._conditions["load"], self._times["window_s"], seen, knobs)
        raise RuntimeError(f"the load generator was held up in each of {ATTEMPTS} windows: the machine is too busy")


def metrics(load: float, window_s: float, seen: Mapping[str, Any], knobs: Knobs) -> dict[str, Any]:
    """Return the raw metrics of a window, from the load generator's counts and the service's counters."""
    change = {name: after - seen["before"][name] for name, after in seen["after"].items()}
    seconds, offered = max(change["at"], 1e-9), seen["offered"]
    cpu_share = change["cpu_s"] / seconds
    return {
        "offered_rps": load,
        "throughput_rps": seen["completed"] / window_s,
        "p50_ms": seen["p50_s"] * 1000,
        "p99_ms": seen["p99_s"] * 1000,
        "good_share": seen["in_time"] / offered if offered else 1.0,
        "error_share": (seen["refused"] + seen["failed"]) / offered if offered else 0.0,
        "cpu_share": cpu_share,
        "hit_share": change["hits"] / change["received"] if change["received"] else 0.0,
        "queue_depth": change["queue_seconds"] / seconds,
        "batch_items": change["items"] / change["batches"] if change["batches"] else 0.0,
        "requests": offered,
        "cost": WORKER_PRICE * knobs.workers + CPU_PRICE * cpu_share + CACHE_PRICE * knobs.cache_size,
        "knobs": asdict(knobs),
    }


def observation(found: Mapping[str, Any]) -> np.ndarray:
    """Return the ``SLOTS`` of a window."""
    return np.array(
        [
            _log(found["offered_rps"], *LOADS),
            _log(found["throughput_rps"], *LOADS),
            _log(found["p50_ms"], 1.0, 2000.0),
            _log(found["p99_ms"], 1.0, 2000.0),
            _linear(found["error_share"], 1.0),
            _linear(found["cpu_share"], 2.0),
            _linear(found["hit_share"], 1.0),
            _log(1.0 + found["queue_depth"], 1.0, 1.0 + max(CHOICES["queue_limit"])),
        ],
        dtype=np.float32,
    )


def _linear(value: float, most: float) -> float:
    return 2.0 * min(1.0, max(0.0, value / most)) - 1.0


def _log(value: float, least: float, most: float) -> float:
    return _linear(math.log(max(value, least) / least), math.log(most / least))
