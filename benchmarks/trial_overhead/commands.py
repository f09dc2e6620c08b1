"""A command that does nothing, beside a bare subprocess."""

from __future__ import annotations

import subprocess

from benchmarks.trial_overhead.measure import Line, Numbers, alternating, cpu_s, fresh, middle, ratios
from benchmarks.trial_overhead.scenarios import run

# The knob is an environment variable, so that the command is nothing but `true`.
SCENARIO = """
name = "commands"
[[experiments]]
name = "true"
workload = "command"
agent = "random_search"
agent_steps = {trials}
confirm = "off"
agent_metrics = ["duration_s"]
cache = "off"
  [experiments.cmd_args]
  command = "true"
  [experiments.extra_env_vars]
  KNOB = ["a", "b", "c"]
"""


def measured(quick: bool) -> list[Line]:
    """``true`` through the engine beside ``subprocess.run(["true"])``.

    A trial makes a folder and two files. On ext4 that costs 0.03 ms, or 0.9 ms for minutes after somebody deleted
    many files (it walks past the inodes that were freed lately). So the same is shown on a file system in memory:
    what lies between the two lines is the disk's.
    """
    trials = 100 if quick else 300
    results = alternating(
        2 if quick else 7,
        {
            "bare": lambda: fresh(bare, trials=trials),
            "memory": lambda: fresh(through_us, trials=trials, in_memory=True),
            "disk": lambda: fresh(through_us, trials=trials, in_memory=False),
        },
    )
    peer = results["bare"]

    def line(name: str, place: str, bound: float | None) -> Line:
        ours = results[place]
        rounds = ratios(ours, peer, "ms")
        return Line(name, "ms", middle(ours, "ms"), "subprocess.run", middle(peer, "ms"), rounds, bound)

    return [line("command `true`", "disk", 3.0), line("command `true`, in memory", "memory", 3.0)]


def through_us(trials: int, in_memory: bool) -> Numbers:
    """A whole run; every process that it started has been waited for when it returns.

    What is imported late is imported by a run before it: the peer's imports are not counted either. Loading the
    scenario and starting the launcher are counted, as they are part of every run.
    """
    run(SCENARIO.format(trials=1), in_memory=in_memory)
    return {"ms": run(SCENARIO.format(trials=trials), in_memory=in_memory).cpu_s / trials * 1e3}


def bare(trials: int) -> Numbers:
    """The least that Python can do."""
    before = cpu_s()
    for _ in range(trials):
        subprocess.run(["true"])
    return {"ms": (cpu_s() - before) / trials * 1e3}
