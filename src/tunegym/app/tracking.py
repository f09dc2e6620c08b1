"""The trackers of an experiment: which there are, and that they are left behind when it is over."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from tunegym.core.stopping import Stop
from tunegym.tuning.model.scenario import Experiment, Scenario, Tracking
from tunegym.tuning.trackers import mlflow, tensorboard
from tunegym.tuning.trackers.process import TrackerProcess, TrackerSpec


class Trackers:
    """The trackers that follow one experiment's journal, from now on. A context manager that never raises.

    Build it once the journal is this process's own: a tracker may write files of its own beside it.
    """

    def __init__(self, scenario: Scenario, experiment: Experiment, folder: Path, stop: Stop | None = None) -> None:
        specs = specs_of(scenario.tracking, f"{scenario.name}/{experiment.name}", folder)
        self._stop = stop or Stop()
        self._processes = [TrackerProcess(spec, folder) for spec in specs]

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(interrupted=self._stop.requested or isinstance(error, KeyboardInterrupt))

    def finish(self, *, interrupted: bool = False) -> None:
        """The experiment is over: let them send the rest, in bounded time, all at once."""
        for process in self._processes:
            process.ask_to_finish()
        for process in self._processes:
            process.finish(interrupted=interrupted)


def specs_of(tracking: Tracking, name: str, folder: Path) -> list[TrackerSpec]:
    """The trackers that a scenario asks for; ``name`` is what the experiment is called there."""
    specs: list[TrackerSpec] = []
    if tracking.mlflow is not None:
        options = {"uri": tracking.mlflow, "experiment": name}
        specs.append(TrackerSpec("mlflow", f"{mlflow.__name__}:MlflowSink", options, mlflow.ENVIRONMENT))
    if tracking.tensorboard:
        options = {"folder": str(folder / tensorboard.FOLDER)}
        specs.append(TrackerSpec("tensorboard", f"{tensorboard.__name__}:TensorboardSink", options))
    return specs
