"""TensorBoard: event files beside the results, written anew by every session."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunegym.tuning.agents import policies
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.trackers.points import Point
from tunegym.tuning.trackers.tail import Entry
from tunegym.tuning.trackers.training import TrainingTail, Update

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

FOLDER = "tensorboard"
TRIALS = "trials"
EVENTS = "events.out.tfevents.*"
MOST_HPARAMS = 500
"""The HParams tab needs a folder with a file for each trial; only the first trials have one."""
MOST_WAITING = 100
"""How many trials wait for one with a lower number that is not closed yet."""
BEST = "best_reward"
TRAINING = "training/"
FLUSH_S = 5


class TensorboardSink:
    """Writes a scalar per metric, with the trial's number as its step, and the first trials' parameters.

    A session writes the whole journal again and removes what earlier ones wrote, so no point is there twice, and a
    file that was torn when its writer was killed is gone.

    Points are written in the order of numbers, as TensorBoard takes a step back for a restart and drops all points
    from there on. So a trial waits for those before it, but not for ever: once ``MOST_WAITING`` wait they are
    written, and what they waited for is put into its place at the end.

    A live experiment has points of its episodes instead, with the step's number.

    What the agent tells of its training, in ``policy/training.jsonl``, is written along once the trial that it came
    after was sent, and the rest at the end.

    Args:
        folder: the experiment's ``tensorboard/``.
    """

    def __init__(self, folder: str) -> None:
        from tensorboard.summary.writer import event_file_writer

        self._writers = event_file_writer
        self._folder = Path(folder)
        self._writer: EventFileWriter | None = None
        self._training = TrainingTail(self._folder.parent / policies.FOLDER / policies.TRAINING)
        self._begin(frozenset())

    def _begin(self, refused: Set[int]) -> None:
        self._refused = refused
        self._waiting: dict[int, Any] = {}
        self._late: list[Any] = []
        self._next = 1
        self._best = -math.inf
        self._told_at = 0.0
        self._updates: deque[Update] = deque()
        self._training.rewind()

    def open(self, head: Mapping[str, Any], refused: Set[int] = frozenset()) -> set[int]:
        """Start with empty files."""
        self._let_go()
        for old in [*self._folder.glob(EVENTS), *self._folder.glob(f"{TRIALS}/*/{EVENTS}")]:
            old.unlink(missing_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = self._new_file()
        self._begin(refused)
        return set()

    def send(self, entries: Sequence[Entry]) -> Iterator[int]:
        """Write the trials whose turn it is; one that overtook a lower number waits for it, within bounds."""
        self._updates.extend(self._training.read())
        for entry in entries:
            number = entry.trial.number
            self._told_at = entry.closed_at
            event = _event(entry, scalars_of(entry.trial))  # what can't be written is refused here, not in its turn
            if number <= MOST_HPARAMS:
                self._write_hparams(entry)
            if number < self._next:
                self._late.append(event)
                self._best = max([self._best, *_rewards(event)])
            else:
                self._waiting[number] = event
                self._write_those_next()
            self._write_training(number)
            yield number
        if self._writer is not None:
            self._writer.flush()

    def send_points(self, points: Sequence[Point]) -> Iterator[int]:
        """Write what episodes came to; they come in the order of numbers."""
        self._updates.extend(self._training.read())
        for point in points:
            assert self._writer is not None
            self._told_at = point.at
            self._writer.add_event(_scalars(point.at, point.number, point.values))
            self._write_training(point.number)
            yield point.number
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what still waits: the numbers between are open, and a resume will close them."""
        for number in sorted(self._waiting):
            self._write(self._waiting.pop(number))
        self._updates.extend(self._training.read())
        self._write_training(math.inf)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self._late:
            self._write_again()

    def _let_go(self) -> None:
        """Of a file that could not be written to."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(Exception):
                writer.close()

    def _new_file(self) -> EventFileWriter:
        return self._writers.EventFileWriter(str(self._folder), flush_secs=FLUSH_S)

    def _write_those_next(self) -> None:
        if len(self._waiting) > MOST_WAITING:
            self._next = min(self._waiting)
        while self._next in self._waiting or self._next in self._refused:
            event = self._waiting.pop(self._next, None)
            if event is not None:
                self._write(event)
            self._next += 1

    def _write(self, event: Any) -> None:
        assert self._writer is not None
        for reward in _rewards(event):
            self._best = max(self._best, reward)
            event.summary.value.add(tag=BEST, simple_value=self._best)
        self._writer.add_event(event)

    def _write_training(self, until: float) -> None:
        """What the agent has told of its training up to a trial; its lines have no time, so they get the trial's."""
        while self._writer is not None and self._updates and self._updates[0].trials <= until:
            update = self._updates.popleft()
            scalars = {f"{TRAINING}{name}": value for name, value in update.values.items()}
            self._writer.add_event(_scalars(self._told_at, update.trials, scalars))

    def _write_again(self) -> None:
        """All that was written and what came late, in the order of numbers, in a file that takes the place of ours."""
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        ours = list(self._folder.glob(EVENTS))
        events = [event for file in ours for event in LegacyEventFileLoader(str(file)).Load()]
        events = [event for event in [*events, *self._late] if event.HasField("summary")]
        self._late, self._best = [], -math.inf
        self._writer = self._new_file()
        for event in sorted(events, key=lambda event: event.step):
            kept = [value for value in event.summary.value if value.tag != BEST]
            del event.summary.value[:]
            event.summary.value.extend(kept)
            self._write(event)
        self._writer.close()
        self._writer = None
        for file in ours:
            file.unlink()

    def _write_hparams(self, entry: Entry) -> None:
        """A session of the HParams tab: parameters, metrics and how it ended, in a folder of its own."""
        folder = self._folder / TRIALS / f"{entry.trial.number:06d}"
        writer = self._writers.EventFileWriter(str(folder), flush_secs=FLUSH_S)
        try:
            for event in _hparams(entry):
                writer.add_event(event)
        finally:
            writer.close()


def _rewards(event: Any) -> list[float]:
    """The reward of a measured trial; none of any other."""
    return [value.simple_value for value in event.summary.value if value.tag == "reward"]


def scalars_of(trial: Trial) -> dict[str, float]:
    """``measured`` (1 or 0), and of a measured trial reward, means and, with repeats, spreads."""
    scalars: dict[str, float] = {"measured": float(trial.measured)}
    if isinstance(trial.outcome, Measured):
        scalars["reward"] = trial.reward
        scalars |= {f"metrics/{name}": value for name, value in trial.metrics.items()}
        if len(trial.outcome.samples) > 1:
            scalars |= {f"spread/{name}": value for name, value in trial.outcome.spread().items()}
    return {name: value for name, value in scalars.items() if isinstance(value, int | float)}


def _event(entry: Entry, scalars: Mapping[str, float]) -> Any:
    return _scalars(entry.closed_at, entry.trial.number, scalars)


def _scalars(at: float, step: int, scalars: Mapping[str, float]) -> Any:
    event_pb2, summary_pb2 = _proto("event_pb2"), _proto("summary_pb2")
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    return event_pb2.Event(wall_time=at, step=step, summary=summary_pb2.Summary(value=values))


_HPARAMS = "tensorboard.plugins.hparams"


def _proto(name: str, package: str = "tensorboard.compat.proto") -> Any:
    """A module of messages; they are made when it is imported, so no checker knows them."""
    return import_module(f"{package}.{name}")


def _hparams(entry: Entry) -> Iterator[Any]:
    from tensorboard.plugins.hparams import metadata, summary_v2

    event_pb2, summary_pb2 = _proto("event_pb2"), _proto("summary_pb2")
    api_pb2, plugin_data_pb2 = _proto("api_pb2", _HPARAMS), _proto("plugin_data_pb2", _HPARAMS)
    trial = entry.trial
    values: dict[str, Any] = {**trial.action, **{f"context.{name}": value for name, value in trial.context.items()}}
    values["tunegym.status"] = trial.status
    start = summary_v2.hparams_pb(values, trial_id=f"{trial.number:06d}", start_time_secs=entry.opened_at)
    yield event_pb2.Event(wall_time=entry.opened_at, summary=start)
    yield _event(entry, {name: value for name, value in scalars_of(trial).items() if name != "measured"})
    ended = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS if trial.measured else api_pb2.STATUS_FAILURE, end_time_secs=entry.closed_at
    )
    summary = summary_pb2.Summary()
    summary.value.add(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=ended)),
        tensor=metadata.NULL_TENSOR,
    )
    yield event_pb2.Event(wall_time=entry.closed_at, summary=summary)
