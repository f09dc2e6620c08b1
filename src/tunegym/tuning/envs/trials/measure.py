"""Step 5 of the walk: a trial's measurement.

``MeasurementCache`` serves one that was made before, under exactly these typed values. Otherwise ``Measurement`` plans,
runs and reads, once per repeat; ``PruneWatch`` collects what a running trial reports and asks the pruner about it.
``FolderKeeper`` deletes the folders that ``keep`` doesn't cover.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Any

from tunegym.tuning.model.scenario import Experiment, Keep
from tunegym.tuning.model.trial import Failed, Measured, OpenTrial, Outcome, Pruned, Reports, TimedOut, Trial, Watch
from tunegym.tuning.model.values import Context, Metrics, exact_key, printable
from tunegym.tuning.ports import MetricError, Pruner, Runner, TrialStore, Workload


class Measurement:
    """Measures open trials of one experiment. ``measure`` may be called from several threads."""

    def __init__(
        self,
        experiment: Experiment,
        workload: Workload,
        runner: Runner,
        store: TrialStore,
        prune: PruneWatch,
        trials: str,
    ) -> None:
        self._workload = workload
        self._runner = runner
        self._store = store
        self._prune = prune
        self._trials = trials
        self._metrics = experiment.agent_metrics
        self._repeats = experiment.repeats
        self._parameters = experiment.parameters

    def folder(self, number: int) -> str:
        """Where trial ``number`` leaves its files."""
        return f"{self._trials}/{number:06d}"

    def measure(self, trial: OpenTrial) -> Outcome | None:
        """The trial's outcome; None if the run was stopped before there was one."""
        parameters = self._parameters(trial.action, trial.context)
        if self._repeats == 1:
            sample = self._sample(trial, 1, parameters, self.folder(trial.number))
            return Measured((sample,)) if isinstance(sample, Mapping) else sample
        samples: list[Metrics] = []
        for repeat in range(1, self._repeats + 1):
            folder = f"{self.folder(trial.number)}/repeat-{repeat}"
            sample = self._sample(trial, repeat, parameters, folder)
            if isinstance(sample, Mapping):
                samples.append(sample)
            elif sample is None:
                return None
            else:
                return type(sample)(f"repeat {repeat} of {self._repeats}: {sample.reason}")
        return Measured(tuple(samples))

    def _sample(
        self, trial: OpenTrial, repeat: int, parameters: Mapping[str, Any], folder: str
    ) -> Metrics | Failed | TimedOut | Pruned | None:
        number = trial.number
        job = self._workload.plan(number, repeat, parameters, folder)
        started = partial(self._store.job_started, number)
        if job.reports and repeat == 1:  # later repeats are of a setting that was not pruned
            result = self._runner.run(job, started, self._prune.watch(trial))
        else:
            result = self._runner.run(job, started)
        if result.ending == "interrupted":
            return None
        if result.ending == "pruned":
            reason = self._prune.reason(number)
            return Pruned(f"{reason}; {result.error}" if result.error else reason)
        if result.ending == "timed_out":
            return TimedOut(result.error or f"ended after timeout_s = {job.timeout_s:g}")
        try:
            metrics = self._workload.read(job, result)
        except MetricError as error:
            return Failed(str(error))
        # A measurement has every agent metric as a finite number, whatever the workload says.
        for name in self._metrics:
            if name not in metrics:
                return Failed(f"metric {name}: the workload did not give it")
        return metrics if all(map(_plain, metrics, metrics.values())) else _cleaned(metrics)


def _plain(name: Any, value: Any) -> bool:
    """The usual case, quickly."""
    return type(value) is float and type(name) is str and name.isascii() and math.isfinite(value)


def _cleaned(metrics: Mapping[Any, Any]) -> Metrics | Failed:
    """Metrics that the journal can hold, or why there are none."""
    cleaned: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            cleaned[printable(str(name))] = number = float(value)
        except (TypeError, ValueError, OverflowError):
            return Failed(f"metric {name}: {value!r} is not a number")
        if not math.isfinite(number):
            return Failed(f"metric {name}: is {'NaN' if math.isnan(number) else 'infinite'}")
    return cleaned


@dataclass(frozen=True, slots=True)
class Hit:
    """A measurement and the number of the trial that made it."""

    number: int
    outcome: Measured


class MeasurementCache:
    """By exact typed action and context, within one fingerprint, in constant time.

    Two equal trials in flight run once: the first to ``lead`` runs, the others wait for its outcome. Only
    measurements are kept; after a failure the next one that waited leads and runs itself.
    """

    def __init__(self) -> None:
        self._hits: dict[bytes, Hit] = {}
        self._waiting: dict[bytes, deque[OpenTrial]] = {}

    @staticmethod
    def key(trial: OpenTrial | Trial) -> bytes:
        """What the cache knows a trial by."""
        return exact_key(trial.action, trial.context)

    def remember(self, trial: Trial) -> None:
        """Take in a trial of an earlier session."""
        if isinstance(trial.outcome, Measured) and trial.cached_from is None:
            self._hits.setdefault(self.key(trial), Hit(trial.number, trial.outcome))

    def find(self, key: bytes) -> Hit | None:
        """The measurement under ``key``, if there is one."""
        return self._hits.get(key)

    def lead(self, key: bytes, trial: OpenTrial) -> bool:
        """True if ``trial`` must run; False if an equal one already does, and ``trial`` now waits for it."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(trial)
        return False

    def settle(self, key: bytes, number: int, outcome: object) -> list[OpenTrial]:
        """The leader's outcome is known. Returns those who waited: all are served after a measurement,
        otherwise the first of them must lead now (``lead`` it again).
        """  # noqa: D205
        waiting = self._waiting.pop(key, deque())
        if isinstance(outcome, Measured):
            self._hits[key] = Hit(number, outcome)
        return list(waiting)


class FolderKeeper:
    """Deletes the folders of closed trials that ``keep`` doesn't cover."""

    def __init__(self, keep: Keep, trials: str) -> None:
        self._keep = keep
        self._trials = trials
        self._best: list[tuple[float, int]] = []

    def closed(self, trial: Trial) -> None:
        """Decide about the folder of a trial that just closed; also one of an earlier session."""
        if self._keep.kind == "all":
            return
        for number in self._dropped(trial):
            folder = Path(f"{self._trials}/{number:06d}")
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    def _dropped(self, trial: Trial) -> list[int]:
        number = trial.number
        if self._keep.kind == "failed":
            return [number] if isinstance(trial.outcome, Measured) else []
        if self._keep.kind == "none":
            return [number]
        if not isinstance(trial.outcome, Measured) or trial.cached_from is not None:
            return [number]
        entry = (trial.reward, -number)  # of equals the earlier one stays
        if len(self._best) < self._keep.count:
            heappush(self._best, entry)
            return []
        return [-heappushpop(self._best, entry)[1]]


logger = logging.getLogger(__name__)

MOST_VALUES = 1000
"""About how many values of one trial are kept; of more, every second, fourth, eighth, ... is."""


class Curve:
    """Values by step, thinned where there are many. The newest is always the last one."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self._stride = 1
        self._count = 0
        self._passing = False

    def add(self, step: int, value: float) -> None:
        """Take in the newest."""
        if self._passing:
            self.points.pop()
        self._passing = self._count % self._stride != 0
        self._count += 1
        self.points.append((step, value))
        if len(self.points) > MOST_VALUES and not self._passing:
            self.points = self.points[::2]
            self._stride *= 2


class _Running:
    """A trial that is being measured."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.values = Curve()
        self.rewards = Curve()
        self.reason: str | None = None
        self.error: Exception | None = None


class PruneWatch:
    """Collects the intermediate values of running trials, and asks a pruner about them. Thread-safe.

    Trials are compared under the same context only: there is a pruner for each.

    Args:
        experiment: whose trials they are.
        reward: of metrics, or None where they have none.
        pruner: makes one; None if nothing is pruned. Values are collected all the same.
    """

    def __init__(
        self,
        experiment: Experiment,
        reward: Callable[[Metrics], float | None],
        pruner: Callable[[], Pruner] | None,
    ) -> None:
        self._metric = experiment.judged_metric
        self._reward = reward
        self._make = pruner if self._metric is not None else None
        self._pruners: dict[bytes, Pruner] = {}
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()
        self._warned = False

    def watch(self, trial: OpenTrial) -> Watch:
        """What is to be called with each intermediate value of a trial that begins."""
        running = _Running(trial.context)
        with self._lock:
            self._running[trial.number] = running
        return partial(self._reported, trial.number, running)

    def reason(self, number: int) -> str:
        """Why a running trial was ended; raises what its pruner raised instead of an answer."""
        running = self._running[number]
        if running.error is not None:
            raise running.error
        return running.reason or "pruned"

    def take(self, number: int) -> Reports:
        """What a trial reported that runs no longer; it is forgotten here."""
        if not self._running:
            return ()
        with self._lock:
            running = self._running.pop(number, None)
        return () if running is None else tuple(running.values.points)

    def closed(self, trial: Trial) -> None:
        """Take in a closed trial, of this session or an earlier one."""
        if self._make is None or not trial.reports:
            return
        with self._lock:
            rewards = [(step, self._reward_of(value)) for step, value in trial.reports]
            curve = [(step, reward) for step, reward in rewards if reward is not None]
            self._pruner(trial.context).closed(trial.number, curve, trial.status)

    def _reported(self, number: int, running: _Running, step: int, value: float) -> bool:
        if not math.isfinite(value):
            self._warn_of(number, step, value)
            return False
        with self._lock:
            if self._running.get(number) is not running:  # a thread that goes on after its function has ended
                return False
            if running.reason is not None or running.error is not None:
                return True
            running.values.add(step, value)
            return self._make is not None and self._hopeless(number, running, step, value)

    def _hopeless(self, number: int, running: _Running, step: int, value: float) -> bool:
        reward = self._reward_of(value)
        if reward is None:
            return False
        running.rewards.add(step, reward)
        try:
            reason = self._pruner(running.context).judge(number, running.rewards.points)
        except Exception as error:  # a user's pruner may raise anything; it is not an error of the job
            running.error = error
            return True
        if reason is not None:
            running.reason = f"pruned at step {step}: {reason}"
        return reason is not None

    def _reward_of(self, value: float) -> float | None:
        assert self._metric is not None
        return self._reward({self._metric: value})

    def _pruner(self, context: Context) -> Pruner:
        assert self._make is not None
        key = exact_key(context)
        if key not in self._pruners:
            self._pruners[key] = self._make()
        return self._pruners[key]

    def _warn_of(self, number: int, step: int, value: float) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("trial %d reported %g at step %d: such values are left out", number, value, step)
