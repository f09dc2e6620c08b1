"""Families of simulated systems, each with one difficulty that real ones have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from benchmarks.families.family import Family, Goal, Noise, Simulation
from tunegym.core.randomness import unit
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range
from tunegym.tuning.model.values import Action, Context, Scalar

ON_OFF = Choice(("on", "off"))
FOUR = Choice((1, 2, 4, 8))
CONTEXTS = {1: (), 3: ("small", "medium", "large"), 6: ("a1", "a2", "a3", "b1", "b2", "b3")}
"""Values of the env_param ``load``, by the number of contexts."""
BASES = (1.0, 35.0, 800.0, 0.02, 6.0, 90.0)
"""Cost of the baseline in the first, second, ... context: contexts are on unlike scales."""


def _factors(action: Action, factors: Mapping[str, Mapping[Scalar, float]]) -> float:
    """The product of what each knob's value multiplies the cost by; values that aren't listed do nothing."""
    return math.prod(factors[name].get(action[name], 1.0) for name in factors)


def _base(context: Context) -> float:
    """The baseline's cost in a context of ``CONTEXTS``."""
    for loads in CONTEXTS.values():
        if context.get("load") in loads:
            return BASES[loads.index(str(context["load"]))]
    return BASES[0]


def _loads(count: int, weights: tuple[float, ...] | None = None) -> dict[str, EnvParam]:
    return {"load": EnvParam(Choice(CONTEXTS[count]), weights)} if count > 1 else {}


def _simulated(
    name: str,
    *,
    knobs: Mapping[str, Knob],
    baseline: Action,
    level: Callable[[Action, Context], float | None],
    noise: Noise,
    trials: int,
    params: Mapping[str, EnvParam] | None = None,
    goal: Goal = "min",
    optimum: Callable[[Context], Action] | None = None,
    is_null: bool = False,
) -> Family:
    return Family(
        name=name,
        knobs=knobs,
        baseline=baseline,
        system=Simulation(knobs, level, noise, optimum),
        trials=trials,
        params=params or {},
        goal=goal,
        noise=None if noise.outliers or noise.drift != 1.0 else noise.spread,
        is_null=is_null,
    )


# gains -----------------------------------------------------------------------------------------------


def unlike_scales() -> Family:
    """A web server that compresses: without, it is 1.5, 50 and 50 times faster, at 35 % noise."""
    knobs = {
        "compression": ON_OFF,
        "workers": FOUR,
        "buffer_kb": Choice((4, 16, 64, 256)),
        "keepalive": ON_OFF,
        "sendfile": ON_OFF,
    }
    gains = {"small": 1.5, "medium": 50.0, "large": 50.0}

    def level(action: Action, context: Context) -> float:
        minor = _factors(
            action,
            {"workers": {1: 1.2, 8: 1.05}, "buffer_kb": {4: 1.05, 256: 1.02}, "keepalive": {"off": 1.1}},
        )
        gain = gains[str(context["load"])] if action["compression"] == "off" else 1.0
        return _base(context) * minor / gain

    return _simulated(
        "unlike scales 35%",
        knobs=knobs,
        baseline={"compression": "on", "workers": 2, "buffer_kb": 16, "keepalive": "on", "sendfile": "on"},
        level=level,
        noise=Noise(0.35),
        trials=100,
        params=_loads(3, (0.5, 0.3, 0.2)),
    )


def one_of_eight() -> Family:
    """A database: one of its eight knobs doubles the transactions per second, at 25 % noise."""
    sizes = {name: Choice((1, 2, 3)) for name in ("cache", "log", "workers", "sort", "vacuum", "planner", "pages")}
    knobs: dict[str, Knob] = {"commit": Choice(("wait", "return")), **sizes}
    speeds = {1: 310.0, 4: 1_050.0, 16: 2_900.0}

    def level(action: Action, context: Context) -> float:
        minor = _factors(action, {"cache": {1: 0.98, 3: 1.02}, "log": {1: 0.97, 3: 1.01}, "workers": {3: 0.98}})
        return speeds[int(context["clients"])] * minor * (2.0 if action["commit"] == "return" else 1.0)

    return _simulated(
        "one of eight 25%",
        knobs=knobs,
        baseline={"commit": "wait", **dict.fromkeys(sizes, 2)},
        level=level,
        noise=Noise(0.25),
        trials=60,
        params={"clients": EnvParam(Choice((1, 4, 16)))},
        goal="max",
    )


def ten_percent() -> Family:
    """One value of one knob is 10 % faster in three contexts, at 5 % noise: six rounds of 200 trials must tell."""
    names = ("depth", "batch", "window", "pool")
    knobs: dict[str, Knob] = dict.fromkeys(names, FOUR)
    slower = {
        "depth": {1: 1.12, 2: 1.0, 4: 1 / 1.1, 8: 1.08},
        "batch": {1: 1.2, 4: 1.05, 8: 1.15},
        "window": {1: 1.03, 8: 1.06},
        "pool": {},
    }
    return _simulated(
        "ten percent 5%",
        knobs=knobs,
        baseline=dict.fromkeys(names, 2),
        level=lambda action, context: _base(context) * _factors(action, slower),
        noise=Noise(0.05),
        trials=200,
        params=_loads(3),
    )


# faults of measurements --------------------------------------------------------------------------------


def _queue(name: str, noise: Noise) -> Family:
    """A message queue: two knobs are worth 1.5 together, in three contexts."""
    knobs: dict[str, Knob] = {"batch": FOUR, "linger_ms": Choice((0, 1, 5, 20)), "acks": ON_OFF, "codec": ON_OFF}
    slower = {
        "batch": {1: 1.3, 4: 0.85, 8: 0.8},
        "linger_ms": {0: 1.15, 5: 0.95, 20: 1.4},
        "acks": {"off": 0.88},
        "codec": {"off": 1.04},
    }
    return _simulated(
        name,
        knobs=knobs,
        baseline={"batch": 2, "linger_ms": 1, "acks": "on", "codec": "on"},
        level=lambda action, context: _base(context) * _factors(action, slower),
        noise=noise,
        trials=120,
        params=_loads(3),
    )


def outliers() -> Family:
    """6 % of the samples are four times as slow, beside a noise of 8 %."""
    return _queue("outliers 6% x4", Noise(0.08, outliers=0.06))


def drift() -> Family:
    """The system becomes half as fast again in the course of the run, beside a noise of 10 %."""
    return _queue("drift x1.5", Noise(0.1, drift=1.5))


# nothing better ----------------------------------------------------------------------------------------


def nothing_better(noise: float, contexts: int) -> Family:
    """The baseline is the optimum: four of its knobs do nothing, two others only harm."""
    inert = dict.fromkeys(("cache", "prefetch", "pages", "threads"), FOUR)
    knobs: dict[str, Knob] = {"mode": Choice(("safe", "fast", "bulk")), "depth": FOUR, **inert}
    slower = {"mode": {"fast": 1.1, "bulk": 1.5}, "depth": {1: 1.2, 4: 1.05, 8: 1.3}}
    return _simulated(
        f"nothing better {noise:.0%}, {contexts}",
        knobs=knobs,
        baseline={"mode": "safe", **dict.fromkeys(("depth", *inert), 2)},
        level=lambda action, context: _base(context) * _factors(action, slower),
        noise=Noise(noise),
        trials={1: 60, 3: 90, 6: 150}[contexts],
        params=_loads(contexts),
        is_null=True,
    )


# spaces ------------------------------------------------------------------------------------------------

SHAPES: dict[Scalar, tuple[int, int]] = {
    "256x256": (256, 256),
    "256x4096": (256, 4096),
    "1024x1024": (1024, 1024),
    "1024x8192": (1024, 8192),
    "4096x4096": (4096, 4096),
    "8192x8192": (8192, 8192),
}
"""Rows and columns of the matrices of a kernel's contexts."""


def kernel() -> Family:
    """A GPU kernel of seven knobs and six shapes; 58 % of its 10,240 settings fail for want of registers or memory."""
    knobs: dict[str, Knob] = {
        "block_x": Choice((8, 16, 32, 64, 128)),
        "block_y": Choice((1, 2, 4, 8)),
        "tile_x": FOUR,
        "tile_y": FOUR,
        "unroll": FOUR,
        "vector": Choice((1, 2, 4, 8)),
        "shared": Choice((0, 1)),
    }

    def level(action: Action, context: Context) -> float | None:
        knob = {name: int(value) for name, value in action.items()}
        threads, work = knob["block_x"] * knob["block_y"], knob["tile_x"] * knob["tile_y"]
        registers = 20 + 2 * work + 3 * knob["unroll"] + 4 * knob["vector"]
        shared_kb = 0.02 * threads * work * knob["shared"]
        if threads < 32 or threads > 512 or registers * threads > 11_000 or shared_kb > 16:
            return None
        rows, columns = SHAPES[context["shape"]]
        narrow = max(1.0, 64 / (knob["block_x"] * knob["vector"]))
        stride = abs(math.log2(knob["tile_x"] * knob["vector"] * 512 / columns))
        chain = abs(math.log2(knob["unroll"] * knob["tile_y"] / 8))
        waves = rows * columns / (threads * work * 2_000)
        stalls = max(0.0, math.log2(registers * 4 / threads))
        reuse = 1.0 - 0.5 * knob["shared"] * min(1.0, work / 8) * min(1.0, rows / 2048)
        cost = narrow**0.7 * (1.0 + 0.4 * stride) * (1.0 + 0.25 * chain) * (1.0 + 0.4 * stalls) * reuse
        return 1e-6 * rows * columns * cost * (1.0 + 1.0 / waves)

    return _simulated(
        "kernel, most settings fail",
        knobs=knobs,
        baseline={"block_x": 32, "block_y": 4, "tile_x": 1, "tile_y": 1, "unroll": 1, "vector": 1, "shared": 0},
        level=level,
        noise=Noise(0.04, outliers=0.03),
        trials=300,
        params={"shape": EnvParam(Choice(tuple(SHAPES)))},
    )


def encoders() -> Family:
    """A choice among 201 settings that have no order, at 15 % noise."""
    names = tuple(f"encoder-{index}" for index in range(201))
    costs = {name: 10.0 * (1.0 + 6.0 * unit(0, name) ** 1.5) for name in names}
    median = sorted(names, key=costs.__getitem__)[100]
    return _simulated(
        "201 unordered settings 15%",
        knobs={"encoder": Choice(names)},
        baseline={"encoder": median},
        level=lambda action, _: costs[str(action["encoder"])],
        noise=Noise(0.15),
        trials=100,
    )


def ranges() -> Family:
    """A service with continuous, integer and logarithmic knobs under a load from a range."""

    def fitting(context: Context) -> Action:
        load = float(context["load"])
        return {"threads": max(1, round(2 * load**0.4)), "buffer_mb": 2.0 * load**0.3, "prefetch": 30, "mode": "mixed"}

    def level(action: Action, context: Context) -> float:
        load, best = float(context["load"]), fitting(context)
        threads = math.log(float(action["threads"]) / float(best["threads"]))
        buffer = math.log(float(action["buffer_mb"]) / float(best["buffer_mb"]))
        prefetch = (float(action["prefetch"]) - 30) / 100
        bowl = 0.5 * threads**2 + 0.25 * buffer**2 + 0.1 * threads * buffer + 1.2 * prefetch**2
        return 0.4 * load**0.7 * (1.0 + bowl) * {"read": 1.25, "write": 1.4, "mixed": 1.0}[str(action["mode"])]

    knobs: dict[str, Knob] = {
        "threads": Range(1, 64, "int", log=True),
        "buffer_mb": Range(0.5, 64.0, log=True),
        "prefetch": Range(0, 100, "int"),
        "mode": Choice(("read", "write", "mixed")),
    }
    return _simulated(
        "ranges 12%",
        knobs=knobs,
        baseline={"threads": 4, "buffer_mb": 1.0, "prefetch": 0, "mode": "read"},
        level=level,
        noise=Noise(0.12),
        trials=150,
        params={"load": EnvParam(Range(1.0, 1000.0, log=True))},
        optimum=fitting,
    )


# held out ----------------------------------------------------------------------------------------------


def stencil() -> Family:
    """Held out. A stencil code whose knobs interact: 30 % of its settings fail, and its noise has heavy tails."""
    grids = {"thin": 0.3, "cube": 1.0, "flat": 3.0, "huge": 8.0}
    knobs: dict[str, Knob] = {
        "order": Choice(("ijk", "ikj", "jki", "kji")),
        "block": Choice((4, 8, 16, 32, 64)),
        "threads": FOUR,
        "schedule": Choice(("static", "dynamic", "guided")),
        "fuse": ON_OFF,
        "huge_pages": ON_OFF,
        "stream": Choice(("none", "read", "write", "both")),
        "lookahead": Choice((0, 1, 2, 3, 4)),
    }
    strides: dict[Scalar, float] = {"ijk": 1.0, "ikj": 1.15, "jki": 1.9, "kji": 2.3}

    def level(action: Action, context: Context) -> float | None:
        size, block, lookahead = grids[str(context["grid"])], int(action["block"]), int(action["lookahead"])
        threads = int(action["threads"])
        if action["fuse"] == "on" and block * (1 + lookahead) > 100:
            return None
        if action["stream"] == "both" and action["order"] in ("jki", "kji"):
            return None
        if threads == 8 and action["schedule"] == "dynamic" and block < 16:
            return None
        fits = math.log2(block / (12.0 * size**0.5))
        cost = strides[action["order"]] ** (0.4 + 0.2 * size**0.5) * (1.0 + 0.15 * fits**2)
        cost /= threads ** (0.55 + 0.1 * (action["schedule"] == "dynamic") * (size > 2))
        cost *= 1.0 - 0.25 * (action["fuse"] == "on") * (lookahead in (1, 2))
        cost *= 1.0 + 0.12 * (action["huge_pages"] == "off") * size**0.5
        cost *= 1.0 - 0.2 * (action["stream"] == "write") * (action["order"] == "ijk")
        return 2.0 * size * cost

    return _simulated(
        "stencil, heavy tails",
        knobs=knobs,
        baseline={
            "order": "ikj",
            "block": 32,
            "threads": 2,
            "schedule": "static",
            "fuse": "off",
            "huge_pages": "off",
            "stream": "none",
            "lookahead": 0,
        },
        level=level,
        noise=Noise(0.08, freedom=3.0),
        trials=200,
        params={"grid": EnvParam(Choice(tuple(grids)))},
    )
