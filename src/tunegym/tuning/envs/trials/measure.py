"""Step 5 of the walk: a trial's measurement. Plan, run and read, once per repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from tunegym.tuning.envs.trials.prune import PruneWatch
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import Failed, Measured, OpenTrial, Outcome, Pruned, TimedOut
from tunegym.tuning.model.values import Metrics, printable
from tunegym.tuning.ports import MetricError, Runner, TrialStore, Workload


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
