"""``HttpService``: a real HTTP service under real load, as a ``GymServer``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.tuning.servers.http_service import loading_main, observing, serving_main
from tunegym.tuning.servers.http_service.child import START_S, Child
from tunegym.tuning.servers.http_service.knobs import Knobs, Menu

PATIENCE_S = 30.0
"""Beyond what a step takes by itself: a machine may be busy."""
DRAIN_S = 2.0
SOON_S = 0.005
"""Until a window is to begin, beside ``settle_s``: for both processes to hear of it."""
ATTEMPTS = 8
"""To observe a window, each with twice the time to hear of it: half of one, or none, would look like a good one."""

_RANGES: Mapping[str, tuple[float, float]] = {
    "load": (observing.LEAST_LOAD, observing.MOST_LOAD),
    "skew": (0.0, 3.0),
    "keys": (1, 100_000),
    "target_ms": (1.0, 1000.0),
    "window_s": (0.02, 10.0),
    "settle_s": (0.0, 10.0),
    "episode_steps": (1, 1_000_000),
    "backend_ms": (0.0, 1000.0),
    "item_ms": (0.0, 100.0),
}
_WHOLE = ("keys", "episode_steps")


class HttpService:
    """An HTTP service with workers, batches, a queue limit and a cache, whose knobs change while it serves.

    The service is one process and the load another; requests come as a Poisson process over connections that are kept
    alive, and ask for keys of unequal popularity. What is not in the cache waits for a batch, whose worker waits for a
    backend (``backend_ms`` and ``item_ms`` for every request in it) and hashes. A step turns the knobs, lets the load
    flow for ``settle_s``, and observes a window of ``window_s``; then requests that are still open get ``target_ms``.
    Load flows on to the next step, if that comes within a second. An episode ends (``truncated``) after
    ``episode_steps``; ``reset`` begins with an empty queue, an empty cache and the default knobs.

    An observation has ``observing.SLOTS``: offered load, throughput, p50 and p99 on logarithmic scales, share of
    errors, CPU, share of cache hits, queue. ``info`` has the raw metrics, and the ``knobs``. The reward is the share of
    requests answered within ``target_ms``, less what workers, CPU and cache cost; from 0 to 1. Both processes end with
    this one, however that ends.

    Args:
        load: requests per second, as long as ``apply_env_params`` says nothing else.
        skew: exponent of Zipf's law for the popularity of keys; also an env_param.
        keys: how many there are.
        target_ms: within which an answer is in time.
        window_s: what is observed of a step.
        settle_s: what is not.
        episode_steps: in an episode.
        tune: the knobs that actions choose: ``"all"``, or names with commas between them. Others keep their defaults.
        action: ``"multi_discrete"``, a position in each knob's values, or ``"discrete"``, one of all combinations.
        backend_ms: what a batch waits for.
        item_ms: what it waits for longer with each request.

    Attributes:
        default_action: the action that is the default settings.
        port: of loopback, where it serves after a ``reset``: ``GET /work?key=KEY``.
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
        numbers = {"load": load, "skew": skew, "keys": keys, "target_ms": target_ms, "window_s": window_s}
        numbers |= {"settle_s": settle_s, "episode_steps": episode_steps, "backend_ms": backend_ms, "item_ms": item_ms}
        for name, value in numbers.items():
            _check(name, value)
        if action not in ("multi_discrete", "discrete"):
            raise ValueError(f'action is {action!r}; allowed: "multi_discrete" or "discrete"')
        self._menu = Menu.parse(tune)
        self._load, self._skew, self._keys = float(load), float(skew), keys
        self._target_s, self._window_s, self._settle_s = target_ms / 1000, float(window_s), float(settle_s)
        self._episode_steps = episode_steps
        self._costs_s = (backend_ms / 1000, item_ms / 1000)
        self._random = np.random.default_rng(0)
        self._steps: int | None = None
        self._service: Child | None = None
        self._generator: Child | None = None
        self.port: int | None = None

        positions = self._menu.positions(Knobs())
        self.action_space: spaces.Space[Any]
        self.default_action: Any
        if action == "discrete":
            self.action_space = spaces.Discrete(self._menu.combinations)
            self.default_action = np.int64(self._menu.fold(positions))
        else:
            self.action_space = spaces.MultiDiscrete(self._menu.counts)
            self.default_action = np.array(positions, dtype=np.int64)
        self.observation_space = spaces.Box(-1.0, 1.0, (len(observing.SLOTS),), np.float32)

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """``load`` in requests per second, ``skew`` of the keys; for what follows."""
        for name, value in params.items():
            if name not in ("load", "skew"):
                raise ValueError(f"{name} is no env_param of this service; allowed: load, skew")
            _check(name, value)
        self._load = float(params.get("load", self._load))
        self._skew = float(params.get("skew", self._skew))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin anew, and observe a window with the default knobs. A process that has died is started again."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        stream = int(self._random.integers(2**31))
        service, generator = self._started()
        try:
            generator.ask({"drain": DRAIN_S, "seed": stream, **self._conditions()}, PATIENCE_S + DRAIN_S)
            service.ask({"forget": True}, PATIENCE_S)
        except BaseException:
            self.close()
            raise
        found = self._observed(Knobs())
        self._steps = 0
        return observing.observation(found), found

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Turn the knobs, and observe a window."""
        if self._steps is None:
            raise RuntimeError("step() comes after reset()")
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is no action of {self.action_space}")
        positions = self._menu.unfold(int(action)) if isinstance(self.action_space, spaces.Discrete) else action
        knobs = self._menu.knobs(positions)
        found = self._observed(knobs)
        self._steps += 1
        truncated = self._steps >= self._episode_steps
        return observing.observation(found), observing.reward(found, knobs), False, truncated, found

    def counts(self, *, drain: bool = False) -> dict[str, dict[str, Any]]:
        """Everything that the ``load`` and the ``service`` have counted since they began.

        Args:
            drain: let no further requests come, and wait for those that are there, before counting.
        """
        service, generator = self._service, self._generator
        if service is None or generator is None:
            raise RuntimeError("counts() comes after reset()")
        load = generator.ask({"drain": DRAIN_S} if drain else {}, PATIENCE_S + DRAIN_S)
        return {"load": load["counts"], "service": service.ask({}, PATIENCE_S)}

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that there are."""
        return tuple(child.pid for child in (self._service, self._generator) if child is not None)

    def close(self) -> None:
        """End both processes. Calling it twice is fine."""
        self._steps = None
        children, self._generator, self._service = (self._generator, self._service), None, None
        for child in children:
            if child is not None:
                child.close()

    # the processes ----------------------------------------------------------------------------------------

    def _started(self) -> tuple[Child, Child]:
        service, generator = self._service, self._generator
        if service is not None and generator is not None and service.alive and generator.alive:
            return service, generator
        self.close()
        self._service = service = Child("the HTTP service", serving_main.__name__, *self._costs_s)
        try:
            self.port = service.hear(START_S)["port"]
            self._generator = generator = Child("the load generator", loading_main.__name__, self.port, self._keys)
            generator.hear(START_S)
        except BaseException:
            self.close()
            raise
        return service, generator

    def _conditions(self) -> dict[str, float]:
        return {"rate": self._load, "skew": self._skew}

    def _observed(self, knobs: Knobs) -> dict[str, Any]:
        service, generator = self._service, self._generator
        assert service is not None
        assert generator is not None
        for attempt in range(ATTEMPTS):
            begin = time.monotonic() + SOON_S * 2**attempt + self._settle_s
            window = (begin, begin + self._window_s)
            try:
                service.tell({"knobs": knobs.as_dict(), "window": window})
                generator.tell({"window": window, "target_s": self._target_s, **self._conditions()})
                patience_s = PATIENCE_S + window[1] - time.monotonic() + self._target_s
                counted = service.hear(patience_s)
                seen = generator.hear(patience_s)
            except BaseException:
                self.close()  # an answer that was not waited for would be taken for the next one
                raise
            if not observing.missed(window, self._target_s, seen, counted["before"]):
                found = observing.metrics(self._load, window, seen, counted["before"], counted["after"])
                return {**found, "cost": observing.cost(found, knobs), "knobs": knobs.as_dict()}
        raise RuntimeError(f"in each of {ATTEMPTS} windows a process was held up: the machine is too busy")


def _check(name: str, value: Any) -> None:
    low, high = _RANGES[name]
    whole = name in _WHOLE
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        kind = "an integer" if whole else "a number"
        raise ValueError(f"{name} is {value!r}; allowed: {kind} from {low:g} to {high:g}")
