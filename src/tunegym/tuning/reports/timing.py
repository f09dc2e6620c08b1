"""Time and cost: when trials closed, what they took, and what of it was in vain or saved."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.stores import reader

CPU = "cpu_s"


def closing_times(path: Path) -> dict[int, float]:
    """Seconds from the experiment's start to each trial's close; time between sessions doesn't count."""
    times: dict[int, float] = {}
    before = spent = 0.0
    for record in reader.records(path):
        if record["record"] == "session":
            before, spent = before + spent, 0.0
        else:
            spent = max(spent, record.get("since", 0.0))
            if record["record"] == "close":
                times[record["number"]] = before + spent
    return times


class Cost:
    """Adds up what trials took."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: float | None = None
        self._own: dict[int, float] = {}
        self._served: list[tuple[int, float]] = []

    def add(self, trial: Trial) -> None:
        """Count a closed trial."""
        self._seconds[trial.status] += trial.duration_s
        if not isinstance(trial.outcome, Measured):
            return
        if trial.cached_from is not None:
            self._served.append((trial.cached_from, trial.duration_s))
            return
        self._own[trial.number] = trial.duration_s
        found = [sample[CPU] for sample in trial.outcome.samples if CPU in sample]
        if found:
            self._cpu_s = (self._cpu_s or 0.0) + sum(found)

    def as_dict(self, wall_s: float) -> dict[str, Any]:
        """Plain data.

        ``trials_s`` is the sum over trials (more than ``wall_s`` where they run in parallel), ``not_measured_s``
        what of it went into trials without a measurement, ``saved_s`` what the cached ones would have taken, and
        ``cpu_s`` the CPU time of the measurements, None where no workload told.
        """
        seconds = dict(self._seconds)
        return {
            "wall_s": wall_s,
            "trials_s": sum(seconds.values()),
            "by_status_s": seconds,
            "not_measured_s": sum(total for status, total in seconds.items() if status != Measured.status),
            "saved_s": sum(max(0.0, self._own.get(source, took) - took) for source, took in self._served),
            "cpu_s": self._cpu_s,
        }
