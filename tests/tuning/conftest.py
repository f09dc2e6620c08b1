"""An engine around a plain Python function."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.clock import Clock as SystemClock
from tunegym.core.errors import StoreError
from tunegym.tuning.envs.trials.engine import Parts, TrialEngine
from tunegym.tuning.model.expression import Constraint, parse
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Space
from tunegym.tuning.model.trial import CallJob, Job, JobHandle, JobResult, ReportCallback, Trial
from tunegym.tuning.model.values import Metrics
from tunegym.tuning.ports import MetricError
from tunegym.tuning.rewards import identity
from tunegym.tuning.runners.worker_main import Report, TrialPruned
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.trials import JournalStore


class Lab:
    """A workload and its runner in one: a job is a call of ``function(**parameters)``.

    The function returns metrics; ValueError is a failed job, TimeoutError one that was ended, and
    InterruptedError one that the end of the run cut short. One that takes ``report`` is given it.
    """

    def __init__(self, function: Callable[..., Any], fingerprint: str = "f") -> None:
        self._function = function
        self._fingerprint = fingerprint
        self.runs: list[dict[str, Any]] = []
        self.stopped = threading.Event()
        self.leftovers: list[JobHandle] = []
        self._reports = "report" in inspect.signature(function).parameters

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> CallJob:
        name = f"{number}.{repeat}"
        arguments = dict(parameters)
        return CallJob(name, folder, "lab:f", arguments, isolate=False, timeout_s=1.0, reports=self._reports)

    def read(self, job: Job, result: JobResult) -> Metrics:
        if result.error is not None:
            raise MetricError(result.error)
        return result.value

    def fingerprint(self) -> str:
        return self._fingerprint

    def fingerprint_parts(self) -> dict[str, str]:
        return {"callable": self._fingerprint}

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
        assert isinstance(job, CallJob)
        if self.stopped.is_set():
            return JobResult("interrupted")
        Path(job.folder).mkdir(parents=True, exist_ok=True)
        self.runs.append(dict(job.arguments))
        started({"job": job.name})
        try:
            given = {"report": Report(watch or (lambda *_: False))} if job.reports else {}
            return JobResult("exited", 0, value=self._function(**job.arguments, **given))
        except TrialPruned:
            return JobResult("pruned")
        except TimeoutError:
            return JobResult("timed_out")
        except InterruptedError:
            return JobResult("interrupted")
        except ValueError as error:
            return JobResult("exited", 1, error=str(error))

    def stop(self) -> None:
        self.stopped.set()

    kill = stop

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        self.leftovers = list(handles)
        return len(self.leftovers)

    def close(self) -> None:
        pass


@dataclass
class Bench:
    """One engine and what is around it."""

    engine: TrialEngine
    store: JournalStore
    lab: Lab
    folder: Path

    def trials(self) -> list[Trial]:
        """Every closed trial by number."""
        return sorted((trial for _, trial in self.store.recorded()), key=lambda trial: trial.number)

    def step(self, **action: Any) -> Trial:
        self.engine.begin(action)
        finished = self.engine.next_finished()
        assert finished is not None
        return finished[1]


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes engines. ``store`` is "fresh", or "journal": the one in ``folder``, which several may open in turn."""
    made: list[Bench] = []

    def make(
        function: Callable[..., Any],
        *,
        knobs: Mapping[str, Knob] | None = None,
        env_params: Mapping[str, EnvParam] | None = None,
        seed: int = 0,
        slots: int = 1,
        store: str = "fresh",
        folder: Path = tmp_path / "experiment",
        reward: Callable[..., Any] = identity,
        constraints: Sequence[Callable[[Mapping[str, Any]], Any] | str] = (),
        stopping: Callable[[], bool] = lambda: False,
        clock: Any = None,
        spent_s: float = 0.0,
        listeners: Sequence[Any] = (),
        fingerprint: str = "f",
        fixed: Mapping[str, Any] | None = None,
        agent_metrics: tuple[str, ...] = ("m",),
        pruner: Callable[[], Any] | None = None,
        **settings: Any,
    ) -> Bench:
        space = Space(knobs if knobs is not None else {"x": Choice(tuple(range(10)))}, fixed or {})
        names = [*space.knobs, *space.fixed, *(env_params or {})]
        checks = [
            parse(check, names) if isinstance(check, str) else Constraint(f"c{index}", check)
            for index, check in enumerate(constraints)
        ]
        experiment = Experiment(
            name="e",
            workload="python",
            workload_args={},
            space=space,
            constraints=tuple(checks),
            env_params=EnvParams(env_params or {}, seed),
            agent="test",
            agent_config=None,
            agent_metrics=agent_metrics,
            **settings,
        )
        place = folder if store == "journal" else tmp_path / f"store-{len(made)}"
        journal = JournalStore(place, Head.of(experiment, "token"), SessionRecord(fingerprint), clock or SystemClock())
        lab = Lab(function, fingerprint)
        parts = Parts(experiment, lab, lab, journal, reward(agent_metrics), checks, folder, pruner)
        engine = TrialEngine(parts, slots=slots, listeners=listeners, stopping=stopping, spent_s=spent_s, clock=clock)
        made.append(Bench(engine, journal, lab, folder))
        return made[-1]

    yield make
    for one in made:
        one.lab.stop()
        with contextlib.suppress(StoreError):
            one.engine.close(interrupted=True)
        with contextlib.suppress(StoreError):
            one.store.close()
