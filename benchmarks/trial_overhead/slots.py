"""Trials that only wait, at several slots beside one: wall time from the first open to the last close."""

from __future__ import annotations

from benchmarks.trial_overhead.measure import Line, Numbers, fresh, middle
from benchmarks.trial_overhead.scenarios import run

SLOTS = 8

SCENARIO = """
name = "slots"
[system]
slots = {slots}
[[experiments]]
name = "sleep"
workload = "command"
agent = "random_search"
agent_steps = {trials}
confirm = "off"
agent_metrics = ["duration_s"]
cache = "off"
  [experiments.cmd_args]
  command = "sleep {seconds}"
  [experiments.extra_env_vars]
  KNOB = ["a", "b", "c"]
"""


def measured(quick: bool) -> list[Line]:
    """How much faster eight slots are; 8 would be perfect."""
    trials, seconds = (16, 0.25) if quick else (40, 0.5)
    several = [fresh(sleeps, trials=trials, seconds=seconds, slots=SLOTS) for _ in range(1 if quick else 3)]
    one = [fresh(sleeps, trials=trials, seconds=seconds, slots=1)]
    faster = tuple(one[0]["s"] / result["s"] for result in several)
    name = f"{trials} x sleep {seconds}, {SLOTS} slots"
    return [Line(name, "s", middle(several, "s"), "1 slot", one[0]["s"], faster, 6, at_least=True)]


def sleeps(trials: int, seconds: float, slots: int) -> Numbers:
    """Start-up excluded."""
    stamps = run(SCENARIO.format(trials=trials, seconds=seconds, slots=slots)).stamps
    return {"s": stamps.last_close - stamps.first_open}
