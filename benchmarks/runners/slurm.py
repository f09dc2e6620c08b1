"""The Slurm runner beside a bare ``sbatch`` with the same poll, in wall time, on a real Slurm of three nodes."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from tools.slurm_cluster import SlurmCluster, missing, running

import tunegym
from benchmarks.trial_overhead.measure import Line

__all__ = ["measured", "missing"]

POLL_S = 0.5
SLOTS = 3


def measured(quick: bool) -> Iterator[Line]:
    """A trivial trial, alone and in one allocation; and how busy three slots are kept."""
    folder = Path(tempfile.mkdtemp(prefix="tg-bench-"))
    cluster = SlurmCluster(folder / "c", cpus=2)
    with running(cluster):
        os.environ |= cluster.environment
        rounds, count = (2, 5) if quick else (5, 20)
        own: list[float] = []
        steps: list[float] = []
        bare: list[float] = []
        for _ in range(rounds):
            bare.append(bare_jobs(folder, count))
            own.append(trials(folder, "true", count, slots=1)[0] / count)
            steps.append(trials(folder, "true", count, slots=1, single_sbatch=True)[0] / count)
        ratios = tuple(one / other for one, other in zip(own, bare, strict=True))
        yield Line("trial `true`, one sbatch each", "s", median(own), "sbatch + squeue", median(bare), ratios, 1.3)
        ratios = tuple(one / other for one, other in zip(steps, bare, strict=True))
        yield Line("trial `true`, single_sbatch", "s", median(steps), "sbatch + squeue", median(bare), ratios, None)
        count, name = 12 if quick else 60, f"x sleep 3, {SLOTS} slots"
        wall, busy = trials(folder, "sleep 3", count, SLOTS)
        with ThreadPoolExecutor(SLOTS) as pool:
            begun = time.monotonic()
            list(pool.map(lambda _: bare_jobs(folder, count // SLOTS, "sleep 3"), range(SLOTS)))
            bare_share = count * 3.0 / SLOTS / (time.monotonic() - begun)
        yield Line(f"{count} {name}", "busy", busy / SLOTS / wall, "", None, (), 0.85, at_least=True)
        yield Line(f"{count} {name}, bare", "busy", bare_share, "", None, (), None)
        wall, busy = trials(folder, "sleep 3", count, SLOTS, single_sbatch=True)
        yield Line(f"{count} {name}, single_sbatch", "busy", busy / SLOTS / wall, "", None, (), 0.85, at_least=True)
    shutil.rmtree(folder)


def bare_jobs(folder: Path, count: int, job: str = "true") -> float:
    """Seconds for a job that is submitted by hand, and looked for in the queue every ``POLL_S``."""
    begun = time.monotonic()
    for _ in range(count):
        command = ["sbatch", "--parsable", "--output=/dev/null", f"--wrap={job}"]
        number = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
        state = ""
        while state != "COMPLETED":
            time.sleep(POLL_S)
            asked = ["squeue", "--me", "-h", "-t", "all", "-j", number, "-o", "%T"]
            state = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return (time.monotonic() - begun) / count


def trials(folder: Path, command: str, count: int, slots: int, **settings: Any) -> tuple[float, float]:
    """Wall seconds of a whole run without its report, and the sum of its jobs' own seconds."""
    document = {
        "name": "bench",
        "system": {"runner": "slurm", "slots": slots, "poll_interval_s": POLL_S, **settings},
        "experiments": [
            {
                "name": "e",
                "workload": "command",
                "agent": "random_search",
                "agent_steps": count,
                "confirm": "off",
                "agent_metrics": ["duration_s"],
                "cmd_args": {"command": f"{command}; : {{x}}", "x": {"low": 0.0, "high": 1.0}},
            }
        ],
    }
    output = Path(tempfile.mkdtemp(dir=folder))
    assert tunegym.run(document, output=output) == 0
    run = next(output.glob("bench/*"))
    rows = run / "e" / "trajectory.csv"
    with rows.open() as file:
        jobs = sum(float(row["observation.duration_s"]) for row in csv.DictReader(file))
    return rows.stat().st_mtime - (run / "scenario.toml").stat().st_mtime, jobs
