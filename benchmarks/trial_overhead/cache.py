"""A cache hit beside a miss of the same run: serving a measurement must not cost more than recording one."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.trial_overhead.measure import Line, Numbers, alternating, fresh, middle, ratios
from benchmarks.trial_overhead.scenarios import NO_OP, run

# 4 x 50 x 50 points: of 15,000 draws about half are hits, mixed with the misses.
SCENARIO = """
name = "cache"
[[experiments]]
name = "no-op"
workload = "python"
isolate = false
agent = "random_search"
agent_steps = {trials}
confirm = "off"
agent_metrics = ["score"]
agent_reward_function = "identity"
cache = "on"
  [experiments.cmd_args]
  callable = "bench_callable:measure"
  algorithm = ["cubic", "reno", "bbr", "vegas"]
  size = {{ low = 1, high = {side}, dtype = "int" }}
  rate = {{ low = 1.0, high = {side}.0, step = 1.0, dtype = "float" }}
"""


def measured(quick: bool) -> list[Line]:
    """Hits beside misses without their job."""
    trials, side = (3_000, 22) if quick else (15_000, 50)
    ran = alternating(1 if quick else 5, {"both": lambda: fresh(hits_and_misses, trials=trials, side=side)})["both"]
    hits = [{"us": one["hit_us"]} for one in ran]
    misses = [{"us": one["miss_us"] - one["job_us"]} for one in ran]
    name = "cache hit"
    return [Line(name, "us", middle(hits, "us"), "miss - its job", middle(misses, "us"), ratios(hits, misses, "us"), 1)]


def hits_and_misses(trials: int, side: int) -> Numbers:
    """The median CPU time of each kind in one run, and of the bare callable."""
    costs = list(run(SCENARIO.format(trials=trials, side=side), NO_OP).stamps.costs())[100:]
    return {
        "hit_us": median(cost for cost, cached in costs if cached) * 1e6,
        "miss_us": median(cost for cost, cached in costs if not cached) * 1e6,
        "job_us": _bare_us(),
    }


def _bare_us(calls: int = 100_000) -> float:
    module: dict[str, object] = {}
    exec(NO_OP, module)
    function = module["measure"]
    assert callable(function)
    arguments = {"algorithm": "cubic", "size": 1, "rate": 1.0}
    begun = time.process_time()
    for _ in range(calls):
        function(**arguments)
    return (time.process_time() - begun) / calls * 1e6
