"""What a window showed: raw metrics by name, the observation made of them, and the reward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tunegym.tuning.servers.http_service.knobs import CHOICES, Knobs

SLOTS = ("load", "throughput", "p50", "p99", "errors", "cpu", "hits", "queue")
"""The numbers of an observation, each from -1 to 1."""

LEAST_LOAD = 10.0
MOST_LOAD = 2000.0
LONGEST_MS = 2000.0
MOST_CPU = 2.0

LATE_S = 0.05
"""What any machine may hold up the load, however soon answers are due."""

WORKER_PRICE = 0.015
CPU_PRICE = 0.1
CACHE_PRICE = 0.0001
"""What a worker, a core, and an entry of the cache cost, as a share of what the requests are worth."""


Window: TypeAlias = tuple[float, float]
"""From when until when, by the system's monotonic clock, which all processes share."""


def missed(window: Window, target_s: float, seen: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a process was held up for so long that what it counted is not the window.

    A request that the load sends later than its answer was due tells nothing of the service.
    """
    begin, end = window
    late = seen["heard"] > begin or seen["late_s"] > max(target_s, LATE_S)
    return late or before["at"] > (begin + end) / 2


def metrics(
    load: float, window: Window, seen: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Raw metrics of a window, from what the load saw in it and what the service counted (over nearly the same)."""
    begin, end = window
    seconds = max(after["at"] - before["at"], 1e-9)
    received = after["received"] - before["received"]
    batches = after["batches"] - before["batches"]
    offered = seen["offered"]
    errors = seen["refused"] + seen["failed"]
    return {
        "offered_rps": load,
        "throughput_rps": seen["completed"] / (end - begin),
        "p50_ms": seen["p50_s"] * 1000,
        "p99_ms": seen["p99_s"] * 1000,
        "good_share": seen["in_time"] / offered if offered else 1.0,
        "error_share": errors / offered if offered else 0.0,
        "cpu_share": (after["cpu_s"] - before["cpu_s"]) / seconds,
        "hit_share": (after["hits"] - before["hits"]) / received if received else 0.0,
        "queue_depth": (after["queue_seconds"] - before["queue_seconds"]) / seconds,
        "batch_items": (after["items"] - before["items"]) / batches if batches else 0.0,
        "requests": offered,
    }


def cost(found: Mapping[str, Any], knobs: Knobs) -> float:
    """What the window took, as a share of what its requests are worth."""
    return WORKER_PRICE * knobs.workers + CPU_PRICE * found["cpu_share"] + CACHE_PRICE * knobs.cache_size


def reward(found: Mapping[str, Any], knobs: Knobs) -> float:
    """The share of requests that were answered in time, less what it took; from 0 to 1."""
    return found["good_share"] * max(0.0, 1.0 - cost(found, knobs))


def observation(found: Mapping[str, Any]) -> np.ndarray:
    """The slots of an observation."""
    return np.array(
        [
            _log(found["offered_rps"], LEAST_LOAD, MOST_LOAD),
            _log(found["throughput_rps"], LEAST_LOAD, MOST_LOAD),
            _log(found["p50_ms"], 1.0, LONGEST_MS),
            _log(found["p99_ms"], 1.0, LONGEST_MS),
            _linear(found["error_share"], 1.0),
            _linear(found["cpu_share"], MOST_CPU),
            _linear(found["hit_share"], 1.0),
            _log(1.0 + found["queue_depth"], 1.0, 1.0 + max(CHOICES["queue_limit"])),
        ],
        dtype=np.float32,
    )


def _linear(value: float, most: float) -> float:
    return 2.0 * min(1.0, max(0.0, value / most)) - 1.0


def _log(value: float, least: float, most: float) -> float:
    return _linear(math.log(max(value, least) / least), math.log(most / least))
