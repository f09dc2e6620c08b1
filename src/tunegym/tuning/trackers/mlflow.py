"""MLflow: one run per trial, or one run for all episodes, in one experiment per ``<scenario>/<experiment>``."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunegym.core.text import printable
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import spelled
from tunegym.tuning.trackers.feed import EPISODES, Item

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # we try again ourselves
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Settings of the client in its own process, unless the user sets them."""

STATUSES = {"measured": "FINISHED", "cancelled": "KILLED", "pruned": "KILLED"}
"""MLflow's word for an outcome; any other is ``FAILED``."""

RUN, NUMBER = "tunegym.run", "tunegym.number"
"""The tags by which a trial is known."""

PAGE = 200
MOST_PARAMS, MOST_METRICS = 100, 800
"""How much one request may hold."""
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 5000
"""Texts of this length pass every store's limit."""


class MlflowSink:
    """Stores every item in MLflow.

    A trial is known by its tags: the run's token and its number. One that was only begun (its sender was killed) is
    completed, not made again.

    Args:
        uri: the tracking URI; nothing global is set.
        experiment: the MLflow experiment's name; made if it isn't there.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client: MlflowClient = MlflowClient(tracking_uri=uri)
        self._name = experiment
        self._experiment_id = ""
        self._head = Head(experiment=experiment, run="")
        self._episodes: str | None = None
        self._begun: dict[int, str] = {}

    def open(self, head: Head) -> set[int]:
        """The numbers of this run's items that are there and complete."""
        self._head = head
        found = self._client.get_experiment_by_name(self._name)
        self._experiment_id = self._client.create_experiment(self._name) if found is None else found.experiment_id
        self._begun, self._episodes = {}, None
        complete: set[int] = set()
        page: str | None = None
        while True:
            runs = self._client.search_runs(
                [self._experiment_id], f"tags.`{RUN}` = '{head.run}'", max_results=PAGE, page_token=page
            )
            for run in runs:
                if NUMBER not in run.data.tags:  # the one of all episodes
                    self._episodes = run.info.run_id
                    history = self._client.get_metric_history(run.info.run_id, EPISODES)
                    complete |= {metric.step for metric in history}
                elif run.info.status in ("RUNNING", "SCHEDULED"):
                    self._begun[int(run.data.tags[NUMBER])] = run.info.run_id
                else:
                    complete.add(int(run.data.tags[NUMBER]))
            page = runs.token
            if not page:
                return complete

    def send(self, items: Sequence[Item]) -> Iterator[int]:
        """Make a run for each trial; add means over episodes to the one run of all."""
        means = [item for item in items if item.trial is None]
        if means:
            yield from self._send_means(means)
        for item in items:
            if item.trial is not None:
                self._send_trial(item, item.trial)
                yield item.number

    def close(self) -> None:
        """Everything was sent already."""
        if self._episodes is not None:
            self._client.set_terminated(self._episodes)

    def _send_means(self, items: Sequence[Item]) -> Iterator[int]:
        from mlflow.entities import Metric

        if self._episodes is None:
            tags = {RUN: self._head.run, "tunegym.live": "true"}
            run = self._client.create_run(self._experiment_id, tags=tags, run_name="episodes")
            self._episodes = run.info.run_id
            params = {"agent": text(self._head.agent or ""), "seed": text(self._head.seed)}
            self._log(self._episodes, [], params)
        self._client.update_run(self._episodes, status="RUNNING")
        # EPISODES comes last in each item: one that has it has all its values.
        values = [(item, name, one) for item in items for name, one in metrics_of(item.values).items()]
        self._log(self._episodes, [Metric(name, one, _ms(item.at), item.number) for item, name, one in values])
        yield from (item.number for item in items)

    def _send_trial(self, item: Item, trial: Trial) -> None:
        from mlflow.entities import Metric

        run_id = self._begun.get(trial.number)
        if run_id is None:
            run = self._client.create_run(
                self._experiment_id,
                start_time=_ms(item.opened_at),
                tags={RUN: self._head.run, NUMBER: str(trial.number)},
                run_name=f"trial {trial.number:06d}",
            )
            run_id = run.info.run_id
        at = _ms(item.at)
        metrics = [Metric(name, value, at, trial.number) for name, value in metrics_of(item.values).items()]
        metrics += [Metric("reported", value, at, step) for step, value in trial.reports]
        self._log(run_id, metrics, params_of(trial), tags_of(trial))
        self._client.set_terminated(run_id, STATUSES.get(trial.status, "FAILED"), at)  # last: it is complete

    def _log(
        self, run_id: str, metrics: Sequence[Any], params: Mapping[str, str] = {}, tags: Mapping[str, str] = {}
    ) -> None:
        """In as many requests as it takes."""
        from mlflow.entities import Param, RunTag

        pairs = [Param(name, value) for name, value in params.items()]
        marks = [RunTag(name, value) for name, value in tags.items()]
        requests = max(1, -(-len(metrics) // MOST_METRICS), -(-len(pairs) // MOST_PARAMS))
        for at in range(requests):
            some = metrics[at * MOST_METRICS : (at + 1) * MOST_METRICS]
            more = pairs[at * MOST_PARAMS : (at + 1) * MOST_PARAMS]
            self._client.log_batch(run_id, some, more, marks if at == 0 else [], synchronous=True)


def params_of(trial: Trial) -> dict[str, str]:
    """Action and context, the latter under ``context.``."""
    values = {**trial.action, **{f"context.{name}": value for name, value in trial.context.items()}}
    return {name: text(value) for name, value in keyed(values).items()}


def metrics_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The values of an item that are numbers, under MLflow's names: a trial's metrics have no prefix there."""
    named: dict[str, float] = {}
    for name, value in values.items():
        kind, _, rest = name.partition("/")
        if kind == "metrics":
            name = "metric.reward" if rest == "reward" else rest
        elif kind == "spread":
            name = f"spread.{rest}"
        if isinstance(value, int | float) and math.isfinite(value):
            named[name] = float(value)
    return keyed(named)


def tags_of(trial: Trial) -> dict[str, str]:
    """How the trial ended, and which phase of the experiment it belongs to."""
    tags = {"tunegym.status": trial.status, "tunegym.phase": trial.phase}
    if trial.cached_from is not None:
        tags["tunegym.cached_from"] = str(trial.cached_from)
    if trial.reason:
        tags["tunegym.reason"] = text(trial.reason, LONGEST_TAG)
    return tags


# names and values as MLflow takes them: it refuses odd ones, and a refused one would be lost ---------------

_REFUSED = re.compile(r"[^\w.\- /]")


def key(name: str) -> str:
    """A name that MLflow takes: what it refuses becomes ``_``."""
    name = _REFUSED.sub("_", name)[:LONGEST_KEY]
    if not name.strip(" .") or name.startswith(("..", "/")) or posixpath.normpath(name) != name:
        name = re.sub(r"[/. ]", "_", name)  # it may become a file's path
    return name or "_"


def keyed(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` under names that MLflow takes; where two become the same, the later one gets a number."""
    found: dict[str, Any] = {}
    taken: set[str] = set()  # some databases don't tell capital letters from small ones
    for name, value in values.items():
        fresh = key(name)
        while fresh.lower() in taken:
            fresh = f"{fresh[: LONGEST_KEY - 12]}_{len(taken) + 1}"
        taken.add(fresh.lower())
        found[fresh] = value
    return found


def text(value: object, longest: int = LONGEST_PARAM) -> str:
    """A value as MLflow shows it: strings bare, anything else as TOML spells it; cut where it is too long."""
    shown = value if isinstance(value, str) else spelled(value)
    shown = printable(shown).replace("\0", "\\0")
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
