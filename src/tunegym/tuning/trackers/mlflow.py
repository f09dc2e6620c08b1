"""MLflow: one run per trial, or one for all of a live experiment, in one experiment per ``<scenario>/<experiment>``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.trackers.mlflow_names import LONGEST_TAG, finite, keyed, text
from tunegym.tuning.trackers.points import EPISODES, Point
from tunegym.tuning.trackers.tail import Entry

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # we try again ourselves
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""What the client is set to, in its own process, unless the user says otherwise."""

STATUSES = {"measured": "FINISHED", "cancelled": "KILLED", "pruned": "KILLED"}
"""MLflow's word for an outcome; any other is ``FAILED``."""

RUN, NUMBER = "tunegym.run", "tunegym.number"
"""The tags by which a trial is known."""

PAGE = 200
TOGETHER = 4
"""How many trials are sent at the same time to a server, which takes a few requests for each."""
MOST_PARAMS, MOST_METRICS = 100, 800
"""How much one request may hold."""
MOST_POINTS = 100
"""The same for points, of a few metrics each."""


class MlflowSink:
    """Tells an MLflow store of every trial.

    A trial is known by its tags: the run's token and its number. One that was only begun (its sender was killed)
    is completed, not made again.

    Args:
        uri: the tracking URI; nothing global is set.
        experiment: the MLflow experiment's name; made if it isn't there.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client: MlflowClient = MlflowClient(tracking_uri=uri)
        self._name = experiment
        self._pool = ThreadPoolExecutor(TOGETHER if uri.startswith("http") else 1)
        self._experiment_id = ""
        self._token = ""
        self._run_id: str | None = None
        self._begun: dict[int, str] = {}
        self._sending: list[Future[int]] = []

    def open(self, head: Mapping[str, Any], refused: Set[int] = frozenset()) -> set[int]:
        """The numbers of this run's trials that are there and complete.

        Waits for what is still being sent, as long as the client lets it take: a run that is made after we have
        looked would be made twice.
        """
        self._settle()
        self._token = head["run"]
        self._experiment_id = self._found_or_made()
        if head.get("live"):
            return self._open_live(head)
        self._begun = {}
        complete: set[int] = set()
        page: str | None = None
        while True:
            runs = self._client.search_runs(
                [self._experiment_id], f"tags.`{RUN}` = '{self._token}'", max_results=PAGE, page_token=page
            )
            for run in runs:
                number = int(run.data.tags[NUMBER])
                if run.info.status in ("RUNNING", "SCHEDULED"):
                    self._begun[number] = run.info.run_id
                else:
                    complete.add(number)
            page = runs.token
            if not page:
                return complete

    def send(self, entries: Sequence[Entry]) -> Iterator[int]:
        """Make a run for each trial, a few at a time."""
        self._sending = [self._pool.submit(self._send, entry) for entry in entries]
        for sent in self._sending:
            yield sent.result()

    def send_points(self, points: Sequence[Point]) -> Iterator[int]:
        """Add to the curves of the one run."""
        from mlflow.entities import Metric

        assert self._run_id is not None
        for start in range(0, len(points), MOST_POINTS):
            some = points[start : start + MOST_POINTS]
            metrics = [
                Metric(name, value, _ms(point.at), point.number)
                for point in some
                for name, value in keyed(finite(point.values)).items()
            ]
            self._client.log_batch(self._run_id, metrics, synchronous=True)
            yield from (point.number for point in some)

    def close(self) -> None:
        """Everything was sent already."""
        if self._run_id is not None:
            self._client.set_terminated(self._run_id)

    def _open_live(self, head: Mapping[str, Any]) -> set[int]:
        """The one run, found or made, and the numbers of its points; each has all its values once it has the last."""
        from mlflow.entities import Param

        found = self._client.search_runs([self._experiment_id], f"tags.`{RUN}` = '{self._token}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return {metric.step for metric in self._client.get_metric_history(self._run_id, EPISODES)}
        tags = {RUN: self._token, "tunegym.live": "true"}
        self._run_id = self._client.create_run(self._experiment_id, tags=tags, run_name="episodes").info.run_id
        told = {"agent": head.get("agent") or "", "seed": head.get("seed")}
        params = [Param(name, text(value)) for name, value in told.items()]
        self._client.log_batch(self._run_id, params=params, synchronous=True)
        return set()

    def _settle(self) -> None:
        """Take back what was not begun, and wait for the rest."""
        sending, self._sending = self._sending, []
        wait([sent for sent in sending if not sent.cancel()])

    def _found_or_made(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._name)
        if found is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(self._name)
        except MlflowException:
            found = self._client.get_experiment_by_name(self._name)  # somebody else may have been quicker
            if found is None:
                raise
            return found.experiment_id

    def _send(self, entry: Entry) -> int:
        from mlflow.entities import Metric, Param, RunTag

        trial, closed_at = entry.trial, _ms(entry.closed_at)
        run_id = self._begun.get(trial.number) or self._begin(entry)
        metrics = [Metric(name, value, closed_at, trial.number) for name, value in metrics_of(trial).items()]
        metrics += [Metric("reported", value, closed_at, step) for step, value in trial.reports]
        params = [Param(name, value) for name, value in params_of(trial).items()]
        tags = [RunTag(name, value) for name, value in tags_of(trial).items()]
        self._client.log_batch(run_id, metrics[:MOST_METRICS], params[:MOST_PARAMS], tags, synchronous=True)
        for start in range(MOST_PARAMS, len(params), MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + MOST_PARAMS], synchronous=True)
        for start in range(MOST_METRICS, len(metrics), MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS], synchronous=True)
        self._client.set_terminated(run_id, STATUSES.get(trial.status, "FAILED"), closed_at)  # last: it is complete
        return trial.number

    def _begin(self, entry: Entry) -> str:
        number = entry.trial.number
        run = self._client.create_run(
            self._experiment_id,
            start_time=_ms(entry.opened_at),
            tags={RUN: self._token, NUMBER: str(number)},
            run_name=f"trial {number:06d}",
        )
        self._begun[number] = run.info.run_id
        return run.info.run_id


def params_of(trial: Trial) -> dict[str, str]:
    """Action and context, the latter under ``context.``."""
    values = {**trial.action, **{f"context.{name}": value for name, value in trial.context.items()}}
    return {name: text(value) for name, value in keyed(values).items()}


def metrics_of(trial: Trial) -> dict[str, float]:
    """Reward, means and, with repeats, spreads of a measured trial; none for any other: a penalty is no metric."""
    if not isinstance(trial.outcome, Measured):
        return {}
    values: dict[str, Any] = {"reward": trial.reward, **_apart(trial.metrics)}
    if len(trial.outcome.samples) > 1:
        values |= {f"spread.{name}": value for name, value in trial.outcome.spread().items()}
    return keyed(finite(values))


def _apart(metrics: Mapping[str, float]) -> dict[str, float]:
    """A metric that is called ``reward`` is not the reward."""
    return {f"metric.{name}" if name == "reward" else name: value for name, value in metrics.items()}


def tags_of(trial: Trial) -> dict[str, str]:
    """How the trial ended."""
    tags = {"tunegym.status": trial.status}
    if trial.cached_from is not None:
        tags["tunegym.cached_from"] = str(trial.cached_from)
    if trial.reason:
        tags["tunegym.reason"] = text(trial.reason, LONGEST_TAG)
    return tags


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
