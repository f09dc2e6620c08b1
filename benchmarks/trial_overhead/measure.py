"""How things are measured: CPU time of a process and its children, in fresh processes, alternating."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Numbers = dict[str, float]


@dataclass(frozen=True)
class Line:
    """One line of the table: what was measured, and what is allowed.

    Attributes:
        ours, peer: the medians, in ``unit``; a line without a peer compares with the bound directly.
        ratios: of every round, ours / peer (peer / ours where more is better).
        bound: at most this, or at least this if ``at_least``; None where the line is for information.
    """

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float | None
    ratios: tuple[float, ...]
    bound: float | None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        """The median over the rounds; None without a peer."""
        return median(self.ratios) if self.ratios else None

    @property
    def ok(self) -> bool | None:
        """Whether the bound holds; None without one."""
        if self.bound is None:
            return None
        value = self.ours if self.ratio is None else self.ratio
        return value >= self.bound if self.at_least else value <= self.bound


def cpu_s() -> float:
    """CPU seconds of this process (all threads) and of every child that was waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def children_cpu_s(command: list[str]) -> float:
    """CPU seconds of one command from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_mb() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fresh(probe: Callable[..., Numbers], **arguments: Any) -> Numbers:
    """What ``probe(**arguments)`` returns in a new process: cold caches, its own peak memory."""
    target = f"{probe.__module__}:{probe.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", __name__, target, json.dumps(arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def alternating(rounds: int, probes: Mapping[str, Callable[[], Numbers]]) -> dict[str, list[Numbers]]:
    """Every probe once per round, in turn: what disturbs the machine disturbs all of them."""
    results: dict[str, list[Numbers]] = {name: [] for name in probes}
    for _ in range(rounds):
        for name, probe in probes.items():
            results[name].append(probe())
    return results


def middle(results: list[Numbers], key: str) -> float:
    """The median of one number over the rounds."""
    return median(result[key] for result in results)


def ratios(ours: list[Numbers], peers: list[Numbers], key: str) -> tuple[float, ...]:
    """Ours / peer in every round, each pair measured one after the other."""
    return tuple(our[key] / peer[key] for our, peer in zip(ours, peers, strict=True))


def crowded_s() -> float | None:
    """Seconds in which some process of this machine waited for a core; None where nobody counts them."""
    counters = Path("/proc/pressure/cpu")
    try:
        return int(counters.read_text(encoding="ascii").splitlines()[0].rpartition("total=")[2]) / 1e6
    except OSError:
        return None


def main() -> None:
    """The other end of ``fresh``."""
    module, name = sys.argv[1].split(":")
    probe = getattr(importlib.import_module(module), name)
    print(json.dumps(probe(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
