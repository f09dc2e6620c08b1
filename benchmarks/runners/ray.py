"""A trivial trial over a bare Ray task, and how busy the slots are kept.

``python -m benchmarks.runners.ray``; a local cluster is started for it. Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunegym.tuning.model.trial import CallJob, CommandJob, Job
from tunegym.tuning.runners.ray import RayConfig, RayRunner

MOST_RATIO = 1.3
LEAST_BUSY = 0.85

_MODULE = "def nothing(x):\n    print(x)\n    return {'y': x}\n"

_BUSY = """
name = "busy"

[system]
runner = "ray"
address = "{address}"
slots = 3
num_cpus = 0.5

[[experiments]]
name = "e"
workload = "command"
agent = "random_search"
agent_steps = {trials}
agent_metrics = ["duration_s"]
agent_reward_function = "negative"

  [experiments.cmd_args]
  command = "sleep {seconds}; echo {{x}}"
  x = {{ low = 0.0, high = 1.0 }}
"""


def _median_s(action: Callable[[], Any], times: int) -> float:
    begun = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        begun.append(time.perf_counter() - start)
    return statistics.median(begun)


def _tasks() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A bare task that calls a function, and one that runs a command."""
    import ray

    @ray.remote(max_retries=0)
    def call(x: int) -> dict[str, int]:
        return {"y": x}

    @ray.remote(max_retries=0)
    def command(x: int) -> tuple[int, bytes]:
        done = subprocess.run(["echo", str(x)], capture_output=True)
        return done.returncode, done.stdout

    return lambda: ray.get(call.remote(1)), lambda: ray.get(command.remote(1))


def _own_files_s(folder: Path, names: tuple[str, ...], times: int) -> float:
    """What it takes to make a trial's files on the node and at the driver, to read and to remove them."""

    def files() -> None:
        for place in (folder / "node", folder / "driver"):
            place.mkdir()
            for name in names:
                (place / name).write_text("1\n")
        for place in (folder / "node", folder / "driver"):
            for name in names:
                (place / name).read_text()
                (place / name).unlink()
            place.rmdir()

    return _median_s(files, times)


_NUMBERS = itertools.count(1)


def _in_own_folder(job: Job) -> Job:
    return replace(job, folder=f"{job.folder}/{next(_NUMBERS):06d}")


def overhead(address: str, folder: Path, rounds: int, times: int) -> bool:
    """Print a line for a call and one for a command; whether both hold."""
    (folder / "trivial.py").write_text(_MODULE)
    runner = RayRunner("bench", 1, RayConfig(address=address, num_cpus=0.5), folder)
    call = CallJob("1", str(folder / "t"), "trivial:nothing", {"x": 1}, (str(folder),))
    command = CommandJob("1", str(folder / "t"), "echo 1")
    bare_call, bare_command = _tasks()
    holds = True
    with contextlib.closing(runner):
        cases: list[tuple[str, Job, Callable[[], Any], tuple[str, ...]]] = [
            ("call", call, bare_call, ("stdout.txt",)),
            ("command", command, bare_command, ("stdout.txt", "stderr.txt")),
        ]
        for name, job, bare, names in cases:
            ours, theirs, files = [], [], []
            for at in range(rounds + 1):
                figures = [
                    _median_s(lambda job=job: runner.run(_in_own_folder(job), lambda _: None), times),
                    _median_s(bare, times),
                    _own_files_s(folder, names, times),
                ]
                if at:  # the first round warms up
                    for kept, figure in zip((ours, theirs, files), figures, strict=True):
                        kept.append(figure)
            own, task, file = (statistics.median(one) * 1000 for one in (ours, theirs, files))
            ratio = (own - file) / task
            holds = holds and ratio <= MOST_RATIO
            print(f"trivial {name}: {own:.2f} ms, its own files {file:.2f} ms, a bare Ray task {task:.2f} ms")
            print(f"  ratio without its files {ratio:.2f} (at most {MOST_RATIO}), with them {own / task:.2f}")
    return holds


def busy(address: str, folder: Path, trials: int, seconds: float) -> bool:
    """Print how busy three slots are from the first trial to the last; whether that holds."""
    from tunegym import run

    path = folder / "busy.toml"
    path.write_text(_BUSY.format(address=address, trials=trials, seconds=seconds))
    begun = time.perf_counter()
    code = run(path, output=folder / "out")
    took = time.perf_counter() - begun
    (trajectory,) = (folder / "out").glob("*/*/e/trajectory.csv")
    with trajectory.open(newline="") as file:
        done = sum(row["status"] == "measured" for row in csv.DictReader(file))
    share = done * seconds / (3 * took)
    print(f"{done} trials of {seconds:g} s at 3 slots in {took:.1f} s: busy {share:.1%} (at least {LEAST_BUSY:.0%})")
    return code == 0 and done == trials and share >= LEAST_BUSY


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runners.ray", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials: rough numbers")
    options, _ = parser.parse_known_args()
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="tgb", dir="/tmp") as place:
        folder = Path(place)
        where = {"_temp_dir": str(folder / "r"), "_node_ip_address": "127.0.0.2", "include_dashboard": False}
        ray.init(address="local", num_cpus=3, log_to_driver=False, logging_level=40, **where)
        try:
            address = ray.get_runtime_context().gcs_address
            (folder / "o").mkdir()
            (folder / "b").mkdir()
            holds = overhead(address, folder / "o", *((2, 50) if options.quick else (5, 200)))
            holds = busy(address, folder / "b", *((12, 1.0) if options.quick else (60, 3.0))) and holds
        finally:
            ray.shutdown()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
