"""The Ray runner beside a bare Ray task, in wall time, on a Ray cluster of this machine."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import tunegym
from benchmarks.trial_overhead.measure import Line
from tunegym.tuning.model.trial import CallJob, CommandJob, Job
from tunegym.tuning.runners.ray import RayConfig, RayRunner

SLOTS = 3

_MODULE = "def nothing(x):\n    print(x)\n    return {'y': x}\n"


def missing() -> str | None:
    """What isn't installed."""
    return None if importlib.util.find_spec("ray") else "package ray (pip install 'tunegym[ray]')"


def measured(quick: bool) -> Iterator[Line]:
    """A trivial call and a trivial command, without the time for their own files; and how busy three slots are kept."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="tgb", dir="/tmp") as place:  # short: sockets lie below it
        folder = Path(place)
        where = {"_temp_dir": str(folder / "r"), "_node_ip_address": "127.0.0.2", "include_dashboard": False}
        ray.init(address="local", num_cpus=SLOTS, log_to_driver=False, logging_level=40, **where)
        try:
            address = ray.get_runtime_context().gcs_address
            yield from overhead(address, folder, *((3, 100) if quick else (5, 200)))
            # In a short run the start of the actors counts too much for the bound.
            count, bound = (12, None) if quick else (60, 0.85)
            share = busy(address, folder, count)
            yield Line(f"{count} x sleep 3, {SLOTS} slots", "busy", share, "", None, (), bound, at_least=True)
        finally:
            ray.shutdown()


def overhead(address: str, folder: Path, rounds: int, times: int) -> Iterator[Line]:
    """A line for a call and one for a command."""
    (folder / "node").mkdir()
    (folder / "s").mkdir()
    (folder / "s" / "trivial.py").write_text(_MODULE)
    bare_call, bare_command = _tasks()
    call = CallJob("1", str(folder / "t"), "trivial:nothing", {"x": 1}, (str(folder / "s"),))
    cases: list[tuple[str, Job, Callable[[], Any], tuple[str, ...]]] = [
        ("trivial call", call, bare_call, ("stdout.txt",)),
        ("trivial command", CommandJob("1", str(folder / "t"), "echo 1"), bare_command, ("stdout.txt", "stderr.txt")),
    ]
    numbers = itertools.count(1)
    with contextlib.closing(RayRunner("bench", 1, RayConfig(address=address), folder / "s")) as runner:

        def trial(job: Job) -> None:
            runner.run(replace(job, folder=f"{job.folder}/{next(numbers):06d}"), lambda _: None)

        for name, job, bare, files in cases:
            own, tasks = [], []
            for _ in range(rounds + 1):
                tasks.append(_median_ms(bare, times))
                own.append(_median_ms(lambda job=job: trial(job), times))
                own[-1] -= _median_ms(lambda files=files: _handle_files(folder, f"d{next(numbers)}", files), times)
            del own[0], tasks[0]  # to warm up
            ratios = tuple(one / other for one, other in zip(own, tasks, strict=True))
            yield Line(name, "ms", median(own), "Ray task", median(tasks), ratios, 1.3)


def busy(address: str, folder: Path, count: int) -> float:
    """The share of the slots' time that trials of 3 s take, from the start of the run to its last row."""
    document = {
        "name": "bench",
        "system": {"runner": "ray", "address": address, "slots": SLOTS},
        "experiments": [
            {
                "name": "e",
                "workload": "command",
                "agent": "random_search",
                "agent_steps": count,
                "confirm": "off",
                "agent_metrics": ["duration_s"],
                "cmd_args": {"command": "sleep 3; : {x}", "x": {"low": 0.0, "high": 1.0}},
            }
        ],
    }
    assert tunegym.run(document, output=folder / "out") == 0
    run = next((folder / "out").glob("bench/*"))
    rows = run / "e" / "trajectory.csv"
    with rows.open() as file:
        jobs = sum(float(row["observation.duration_s"]) for row in csv.DictReader(file))
    return jobs / SLOTS / (rows.stat().st_mtime - (run / "scenario.toml").stat().st_mtime)


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


def _handle_files(folder: Path, driver: str, names: tuple[str, ...]) -> None:
    """What a trial's own files take: written, read and removed on the node, and kept at the driver."""
    paths = [folder / "node" / name for name in names]
    for path in paths:
        path.write_text("1\n")
    contents = [path.read_text() for path in paths]
    (folder / driver).mkdir()
    for path, content in zip(paths, contents, strict=True):
        (folder / driver / path.name).write_text(content)
        path.unlink()


def _median_ms(action: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        took.append(time.perf_counter() - begun)
    return median(took) * 1000
