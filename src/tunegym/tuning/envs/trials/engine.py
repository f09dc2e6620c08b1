"""The trial engine: the one path that every trial walks, at any width.

A trial is held, observed, begun (written down first), measured, scored and closed. ``Parts`` names the seams.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from tunegym.core.clock import Clock
from tunegym.core.errors import BudgetError
from tunegym.tuning.envs.score import BudgetClock, Tally, TrialScore
from tunegym.tuning.envs.trials.measure import FolderKeeper, Measurement, MeasurementCache, PruneWatch
from tunegym.tuning.model.expression import Constraint
from tunegym.tuning.model.scenario import Experiment, Objective
from tunegym.tuning.model.space import ObsLeafDescriptor, Space
from tunegym.tuning.model.trial import (
    CONFIRM,
    REPEAT,
    SEARCH,
    Cancelled,
    Infeasible,
    Observation,
    OpenTrial,
    Outcome,
    Trial,
)
from tunegym.tuning.model.values import Action, Context, Metrics, exact_key
from tunegym.tuning.ports import Listener, Pruner, Reward, Runner, Workload
from tunegym.tuning.stores.trials import JournalStore

if TYPE_CHECKING:
    from tunegym.tuning.envs.structure import ContextLeaves, FindEncoding

logger = logging.getLogger(__name__)

NEAR = 2.0
"""A reward is about as good as another if it is at most so many standard deviations worse."""

Measure = Callable[[OpenTrial], Outcome | None]


class _Lanes:
    """Measurements in flight: one on the caller's own thread, or several on a thread each."""

    def __init__(self, measure: Measure, slots: int) -> None:
        self._measure = measure
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="tunegym-lane") if slots > 1 else None
        self._done: SimpleQueue[tuple[OpenTrial, Outcome | BaseException | None]] = SimpleQueue()

    def start(self, trial: OpenTrial) -> None:
        """Measure on a free thread, or right now."""
        if self._pool is None:
            self._done.put((trial, self._measure(trial)))
        else:
            self._pool.submit(self._run, trial)

    def wait(self) -> tuple[OpenTrial, Outcome | BaseException | None]:
        """The next to finish."""
        return self._done.get()

    def close(self) -> None:
        """Wait for the threads; stop the runner first to end them early."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, trial: OpenTrial) -> None:
        try:
            self._done.put((trial, self._measure(trial)))
        except BaseException as error:  # handed to the driver's thread, which raises it
            self._done.put((trial, error))


@dataclass(frozen=True)
class Parts:
    """The seams of a trial engine."""

    experiment: Experiment
    workload: Workload
    runner: Runner
    store: JournalStore
    reward: Reward
    constraints: Sequence[Constraint]
    folder: Path
    pruner: Callable[[], Pruner] | None = None  # makes one for each context; None if no trial is ended early
    encodings: FindEncoding | None = None  # finds a class of encodings by its name; None for the built-in ones


class TrialEngine:
    """Implements the ``Env`` port over a store, a workload and a runner. One thread drives it.

    Building it takes in the store's past; ``take_over`` then finishes the open trials. ``stopping`` is asked before a
    trial starts. Earlier sessions used ``spent_s`` of ``max_time``.

    ``Phases`` measures before and after the agent: it changes ``experiment`` and ``first`` to what the agent sees.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        slots: int = 1,
        listeners: Sequence[Listener] = (),
        stopping: Callable[[], bool] = lambda: False,
        spent_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        experiment = parts.experiment
        self.experiment = experiment
        self.folder = parts.folder
        self.tally = Tally(experiment.env_params)
        self.slots = slots
        self.first = 1
        self._store = parts.store
        self._runner = parts.runner
        self._clock = clock or Clock()
        self._constraints = tuple(parts.constraints)
        self._listeners = tuple(listeners)
        self._stopping = stopping
        self._encodings = parts.encodings
        trials = str(parts.folder / "trials")
        self._score = TrialScore(parts.reward, experiment.penalties, experiment.reward)
        self._prune = PruneWatch(experiment, self._score.intermediate, parts.pruner)
        self._keeper = FolderKeeper(experiment, trials)
        self._cache = MeasurementCache() if experiment.cache else None
        self.budget = BudgetClock(experiment.budget, self.tally, self._clock, spent_s)
        self._measurement = Measurement(
            experiment, parts.workload, parts.runner, parts.store, self._prune, trials, self._doubtful
        )
        self._lanes = _Lanes(self._measurement.measure, slots)
        self._flights: dict[int, tuple[int, float, bytes]] = {}
        self._closed: deque[tuple[int, Trial]] = deque()
        self._last: dict[int, tuple[Metrics, bool]] = {}
        self._lock = threading.RLock()
        self._recall(parts.store.fingerprint)

    # the Env port -------------------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """The knobs that an action must give."""
        return self.experiment.space

    @property
    def objectives(self) -> Sequence[Objective]:
        """The goal of each metric."""
        return self.experiment.objectives

    def exhausted(self, lane: int = 0, *, search: bool = True) -> str | None:
        """Why the lane's next trial may not start, or None."""
        if self._stopping():
            return "the run is stopping"
        with self._lock:
            return self.budget.exhausted(self._store.hold(lane), search=search)

    def observe(self, lane: int = 0) -> Observation:
        """The context of the lane's next trial; reserves its number."""
        with self._lock:
            number = self._store.hold(lane)
            metrics, measured = self._last.get(lane, ({}, False))
            return Observation(number, dict(self.context(number)), metrics, measured)

    def begin(
        self,
        action: Action,
        lane: int = 0,
        weight_version: int | None = None,
        context: Context | None = None,
        phase: str = SEARCH,
    ) -> OpenTrial:
        """Write the decision down, then act on it."""
        accepted = self.space.accept(action)
        with self._lock:
            number = self._store.hold(lane)
            reason = self.exhausted(lane, search=phase in (SEARCH, REPEAT))
            if reason is not None:
                raise BudgetError(f"trial {number} may not start: {reason}")
            self._start_clock()
            context = self.context(number) if context is None else context
            trial = self._store.open(lane, context, accepted, weight_version, phase)
            for listener in self._listeners:
                listener.trial_opened(trial)
            self._walk(trial, lane, self._clock.monotonic())
            return trial

    def next_finished(self) -> tuple[int, Trial] | None:
        """Wait for a trial to close: its lane and the trial; None if the run stops before one does."""
        while not self._closed:
            if not self._flights:
                return None
            trial, outcome = self._lanes.wait()
            with self._lock:
                if isinstance(outcome, BaseException):
                    self._abandon(trial)
                    raise outcome
                if outcome is None:
                    self._abandon(trial)
                else:
                    self._finish(trial, outcome)
        return self._closed.popleft()

    def history(self) -> Iterator[Trial]:
        """The trials of the search and the baseline so far, in the order of closing.

        Before a session's first trial it costs no budget.
        """
        return (trial for _, trial in self._store.recorded() if trial.phase != CONFIRM)

    # what a Gymnasium face shows of a context ---------------------------------------------------------

    def structured_observation_descriptors(self) -> Mapping[str, ObsLeafDescriptor]:
        """One leaf for each env_param."""
        return self._leaves.descriptors()

    @cached_property
    def _leaves(self) -> ContextLeaves:
        from tunegym.tuning.envs.structure import ContextLeaves  # most agents act on native values: no numpy for them

        return ContextLeaves(self.experiment.env_params, self._encodings)

    def encode_observation(self, observation: Observation) -> Mapping[str, Any]:
        """The context that ``observation`` shows, encoded."""
        return self._leaves.encode(observation.context)

    # more than the port -------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Finish the trials that earlier sessions left open, before the agent decides anything.

        Same number, same context, same action, after the leftover jobs of a killed driver have been ended.
        """
        # Before the first trial no job was started.
        ended = self._runner.end_leftovers(self._store.leftovers()) if self._store.highest else 0
        if ended:
            logger.warning("ended %d processes that a killed run had left behind", ended)
        waiting = self._store.open_trials()
        if waiting:
            self._start_clock()
        for lane, trial in enumerate(waiting):
            if self._stopping():
                break
            while len(self._flights) >= self.slots:
                if self.next_finished() is None:
                    break
            self._walk(trial, lane % self.slots, self._clock.monotonic())
        while self.next_finished() is not None:
            pass
        self._last.clear()
        self.budget.pause()  # the agent comes next, and may take its time to get ready

    def run_all(self, planned: Iterable[tuple[Action, Context | None]], phase: str) -> list[Trial]:
        """Run trials of a phase in this order, all slots wide, and wait for them; None is the drawn context.

        Returns those that were closed: fewer if the budget ends or the run stops.
        """
        waiting, free, closed = deque(planned), set(range(self.slots)), list[Trial]()
        while True:
            while waiting and free:
                lane = min(free, key=self._store.hold)  # so that no number is left out
                try:
                    self.begin(waiting[0][0], lane, context=waiting[0][1], phase=phase)
                except BudgetError:
                    waiting.clear()
                else:
                    waiting.popleft()
                    free.remove(lane)
            finished = self.next_finished()
            if finished is None:
                self._last.clear()
                return closed
            free.add(finished[0])
            closed.append(finished[1])

    def context(self, number: int) -> Context:
        """The context that trial ``number`` has, had or would have."""
        return self.experiment.env_params.context(number)

    def close(self, *, interrupted: bool = False) -> None:
        """End what runs.

        Interrupted, open trials stay open for a resume. Otherwise the experiment is over: what still runs and
        every number held below the highest used one becomes ``Cancelled``.
        """
        if self._flights:
            self._runner.stop()
        self._lanes.close()
        if interrupted:
            return
        for trial in self._store.open_trials():
            lane, started, _ = self._flights.pop(trial.number, (0, self._clock.monotonic(), b""))
            self._close(trial, Cancelled("the experiment ended while it ran"), lane, started)
        penalty = self._score.penalty(Cancelled())
        for trial in self._store.cancel_held(self.context, lambda: penalty):
            self._tell(trial)

    # the walk -----------------------------------------------------------------------------------------

    def _start_clock(self) -> None:
        """Trials run from here on; the time before doesn't count."""
        idle = self.budget.start()
        if idle:
            self._store.forgive(idle)

    def _walk(self, trial: OpenTrial, lane: int, started: float) -> None:
        """Step 5: constraint, cache, or a measurement."""
        key = b""
        refusal = self._refusal(trial) if self._constraints else None
        if refusal is not None:
            self._close(trial, Infeasible(refusal), lane, started)
            return
        cache = self._cache if MeasurementCache.serves(trial) else None
        if cache is not None:
            key = exact_key(trial.action, trial.context)
            hit = cache.find(key)
            if hit is not None:
                self._close(trial, hit[1], lane, started, cached_from=hit[0])
                return
        self._flights[trial.number] = (lane, started, key)
        if cache is not None and not cache.lead(key, trial):
            return
        try:
            self._lanes.start(trial)
        except BaseException:
            self._abandon(trial)
            raise

    def _doubtful(self, trial: OpenTrial, sample: Metrics) -> bool:
        """Whether a second sample may change the ranking: the first is about as good as the best in its context."""
        best, reward = self.tally.best_in(trial.context), self._score.intermediate(sample)
        if trial.phase != SEARCH or best is None or reward is None:
            return False
        noise = self.tally.noise(reward)
        if noise is None:
            return reward >= best.reward
        return noise > 0 and reward >= best.reward - NEAR * noise

    def _refusal(self, trial: OpenTrial) -> str | None:
        parameters = self.experiment.parameters(trial.action, trial.context)
        reasons = (constraint.refuse(parameters) for constraint in self._constraints)
        return next((reason for reason in reasons if reason is not None), None)

    def _finish(self, trial: OpenTrial, outcome: Outcome) -> None:
        """Steps 6 and 7 for a trial that ran, then the trials that waited for its measurement."""
        lane, started, key = self._flights.pop(trial.number)
        closed = self._close(trial, outcome, lane, started)
        if self._cache is None or not key:
            return
        # The scored outcome settles: a measurement that can't be scored is a failure, and is never served.
        for follower in self._cache.settle(key, trial.number, closed.outcome):
            lane, started, _ = self._flights.pop(follower.number)
            self._walk(follower, lane, started)

    def _close(
        self, trial: OpenTrial, outcome: Outcome, lane: int, started: float, cached_from: int | None = None
    ) -> Trial:
        outcome, reward = self._score.score(outcome)
        closed = Trial(
            number=trial.number,
            context=trial.context,
            action=trial.action,
            outcome=outcome,
            reward=reward,
            duration_s=self._clock.monotonic() - started,
            cached_from=cached_from,
            reports=self._prune.take(trial.number),
            nodes=self._measurement.nodes.pop(trial.number, ()),
            weight_version=trial.weight_version,
            phase=trial.phase,
            warmup=self._measurement.warmups.pop(trial.number, ()),
        )
        self._store.close_trial(closed)
        if closed.reports:
            self._prune.closed(closed)
        self._last[lane] = (closed.metrics, closed.measured)
        self._closed.append((lane, closed))
        self._tell(closed)
        return closed

    def _tell(self, trial: Trial) -> None:
        self.tally.add(trial)
        self.budget.failures.add(trial.status, trial.reason)
        self._keeper.closed(trial)
        for listener in self._listeners:
            listener.trial_closed(trial)

    def _abandon(self, trial: OpenTrial) -> None:
        """The run stops, or is broken: the trial and those that waited for it stay open in the store."""
        _, _, key = self._flights.pop(trial.number)
        self._prune.take(trial.number)
        self._measurement.nodes.pop(trial.number, None)
        self._measurement.warmups.pop(trial.number, None)
        if self._cache is not None and key:
            for follower in self._cache.settle(key, trial.number, None):
                self._flights.pop(follower.number)

    # the past -----------------------------------------------------------------------------------------

    def _recall(self, fingerprint: str) -> None:
        """Take in the trials of earlier sessions."""
        for measured_under, trial in self._store.recorded():
            self.tally.add(trial)
            if trial.measured:
                self.budget.failures.add(trial.status)
            self._score.remember(trial)
            self._keeper.closed(trial, past=True)
            if measured_under == fingerprint:
                self._prune.closed(trial)
                if self._cache is not None:
                    self._cache.remember(trial)
