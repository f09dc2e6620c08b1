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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappush, heappushpop
from typing import Any, Literal

from tunegym.core.text import printable
from tunegym.tuning.model.scenario import Experiment, violation
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.trial import (
    BASELINE,
    CONFIRM,
    FAILURES,
    SEARCH,
    Failed,
    Measured,
    OpenTrial,
    Outcome,
    Pruned,
    ReportCallback,
    Reports,
    TimedOut,
    Trial,
)
from tunegym.tuning.model.values import Context, Metrics, exact_key
from tunegym.tuning.ports import MetricError, Pruner, Runner, Workload
from tunegym.tuning.stores.trials import JournalStore


class Measurement:
    """Measures open trials of one experiment. ``measure`` may be called from several threads.

    ``nodes`` has the nodes that a trial's jobs ran on, by number, until someone takes them out; ``warmups`` its samples
    that don't count. With ``repeats = "auto"``, ``doubtful`` says whether a second sample may change the ranking.
    """

    def __init__(
        self,
        experiment: Experiment,
        workload: Workload,
        runner: Runner,
        store: JournalStore,
        prune: PruneWatch,
        trials: str,
        doubtful: Callable[[OpenTrial, Metrics], bool] = lambda *_: False,
    ) -> None:
        self._workload = workload
        self._runner = runner
        self._store = store
        self._prune = prune
        self._trials = trials
        self._metrics = experiment.agent_metrics
        self._repeats: int | Literal["auto"] = experiment.repeats
        self._warmup = experiment.warmup
        self._several = experiment.most_samples > 1
        self._doubtful = doubtful
        self._parameters = experiment.parameters
        self.nodes: dict[int, tuple[str, ...]] = {}
        self.warmups: dict[int, tuple[Metrics, ...]] = {}

    def measure(self, trial: OpenTrial) -> Outcome | None:
        """The trial's outcome; None if the run was stopped before there was one."""
        parameters = self._parameters(trial.action, trial.context)
        folder = f"{self._trials}/{trial.number:06d}"
        samples: list[Metrics] = []
        while len(samples) < self._warmup + self._wanted(trial, samples[self._warmup :]):
            at, warm = len(samples) + 1, len(samples) < self._warmup
            place, most = (at, self._warmup) if warm else (at - self._warmup, self._repeats)
            where = f"{folder}/{'warmup' if warm else 'repeat'}-{place}" if self._several else folder
            sample = self._sample(trial, at, parameters, where)
            if sample is None:
                return None
            if not isinstance(sample, Mapping):
                of = f"{'warm-up' if warm else 'repeat'} {place}{'' if most == 'auto' else f' of {most}'}: "
                return type(sample)(f"{of if warm or most != 1 else ''}{sample.reason}")
            samples.append(sample)
            if warm:
                self.warmups[trial.number] = tuple(samples)
        return Measured(tuple(samples[self._warmup :]))

    def _wanted(self, trial: OpenTrial, samples: Sequence[Metrics]) -> int:
        if self._repeats != "auto":
            return self._repeats
        return 2 if len(samples) == 2 or (samples and self._doubtful(trial, samples[0])) else 1

    def _sample(
        self, trial: OpenTrial, at: int, parameters: Mapping[str, Any], folder: str
    ) -> Metrics | Failed | TimedOut | Pruned | None:
        number = trial.number
        job = self._workload.plan(number, at, parameters, folder)
        started = partial(self._store.job_started, number)
        # Later repeats are of a setting that was not pruned; the other phases' trials never are.
        if job.reports and at == self._warmup + 1 and trial.phase == SEARCH:
            result = self._runner.run(job, started, self._prune.watch(trial))
        else:
            result = self._runner.run(job, started)
        if result.nodes:
            self.nodes[number] = (*self.nodes.get(number, ()), *result.nodes)
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
                given = ", ".join(metrics) or "nothing"
                return Failed(f"metric {name}: the workload did not give it (there is: {given})")
        return _cleaned(metrics)


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


class MeasurementCache:
    """Measurements by exact typed action and context, within one fingerprint.

    Two equal trials in flight run once: the first to ``lead`` runs, the others wait for its outcome. Only
    measurements are kept; after a failure the next one that waited leads and runs itself.
    """

    def __init__(self) -> None:
        self._hits: dict[bytes, tuple[int, Measured]] = {}
        self._waiting: dict[bytes, list[OpenTrial]] = {}

    @staticmethod
    def serves(trial: OpenTrial | Trial) -> bool:
        """Whether a trial may use the cache: repeats and the confirmation want new measurements."""
        return trial.phase in (SEARCH, BASELINE)

    def remember(self, trial: Trial) -> None:
        """Take in a trial of an earlier session."""
        if isinstance(trial.outcome, Measured) and trial.cached_from is None and self.serves(trial):
            self._hits.setdefault(exact_key(trial.action, trial.context), (trial.number, trial.outcome))

    def find(self, key: bytes) -> tuple[int, Measured] | None:
        """The measurement under ``key``, if there is one, and the number of the trial that made it."""
        return self._hits.get(key)

    def lead(self, key: bytes, trial: OpenTrial) -> bool:
        """True if ``trial`` must run; False if an equal one already does, and ``trial`` now waits for it."""
        if key in self._waiting:
            self._waiting[key].append(trial)
            return False
        self._waiting[key] = []
        return True

    def settle(self, key: bytes, number: int, outcome: object) -> list[OpenTrial]:
        """Take in the leader's outcome, and return the trials that waited for it: walk them again."""
        if isinstance(outcome, Measured):
            self._hits[key] = number, outcome
        return self._waiting.pop(key, [])


class FolderKeeper:
    """Deletes the folders of closed trials that ``keep`` doesn't cover."""

    def __init__(self, experiment: Experiment, trials: str) -> None:
        self._keep = experiment.keep
        self._objectives = experiment.objectives
        self._recurring = [name for name, one in experiment.env_params.params.items() if isinstance(one.domain, Choice)]
        self._trials = trials
        self._best: dict[bytes, list[tuple[float, float, int]]] = {}
        self._shown: set[bytes] = set()  # finalists in a context that have a folder

    def closed(self, trial: Trial, *, past: bool = False) -> None:
        """Decide about a trial's folder. What an earlier session kept, ``auto`` leaves until a better trial comes."""
        dropped = [] if self._keep.kind == "all" else self._dropped(trial)
        for number in [] if past and self._keep.kind == "auto" else dropped:
            shutil.rmtree(f"{self._trials}/{number:06d}", ignore_errors=True)

    def _dropped(self, trial: Trial) -> list[int]:
        number = trial.number
        auto = self._keep.kind == "auto"
        if not trial.measured:
            return [] if self._keep.kind == "failed" or (auto and trial.status in FAILURES) else [number]
        if self._keep.kind in ("failed", "none") or trial.cached_from is not None:
            return [number]
        if auto and trial.phase != SEARCH:
            place = exact_key(trial.action, trial.context)
            if trial.phase not in (BASELINE, CONFIRM) or place in self._shown:
                return [number]
            self._shown.add(place)
            return []
        place = exact_key({name: trial.context[name] for name in self._recurring}) if auto else b""
        best = self._best.setdefault(place, [])
        # Settings that keep the limits come first; of equals the earlier one stays.
        entry = (-violation(self._objectives, trial.metrics) if auto else 0.0, trial.reward, -number)
        if len(best) < (1 if auto else self._keep.count):
            heappush(best, entry)
            return []
        return [-heappushpop(best, entry)[2]]


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

    Trials are compared under the same context only: there is a pruner for each. Without a pruner, values are collected
    all the same.
    """

    def __init__(
        self,
        experiment: Experiment,
        reward: Callable[[Metrics], float | None],
        pruner: Callable[[], Pruner] | None,
    ) -> None:
        self._metric = experiment.reported_metric
        self._reward = reward
        self._make = pruner if self._metric is not None else None
        self._pruners: dict[bytes, Pruner] = {}
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()
        self._warned = False

    def watch(self, trial: OpenTrial) -> ReportCallback:
        """A function to call with each intermediate value of a new trial."""
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
        """Remove and return the reports of a trial that has ended."""
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
            self._pruner(trial.context, self._make).closed(trial.number, curve, trial.status)

    def _reported(self, number: int, running: _Running, step: int, value: float) -> bool:
        if not math.isfinite(value):
            if not self._warned:
                self._warned = True
                logger.warning("trial %d reported %g at step %d: such values are left out", number, value, step)
            return False
        with self._lock:
            if self._running.get(number) is not running:  # a thread that outlived its function
                return False
            if running.reason is not None or running.error is not None:
                return True
            running.values.add(step, value)
            reward = None if self._make is None else self._reward_of(value)
            return reward is not None and self._hopeless(number, running, step, reward)

    def _hopeless(self, number: int, running: _Running, step: int, reward: float) -> bool:
        assert self._make is not None
        running.rewards.add(step, reward)
        try:
            reason = self._pruner(running.context, self._make).judge(number, running.rewards.points)
        except Exception as error:  # a user's pruner may raise anything; it is not an error of the job
            running.error = error
            return True
        if reason is not None:
            running.reason = f"pruned at step {step}: {reason}"
        return reason is not None

    def _reward_of(self, value: float) -> float | None:
        assert self._metric is not None
        return self._reward({self._metric: value})

    def _pruner(self, context: Context, make: Callable[[], Pruner]) -> Pruner:
        key = exact_key(context)
        if key not in self._pruners:
            self._pruners[key] = make()
        return self._pruners[key]
