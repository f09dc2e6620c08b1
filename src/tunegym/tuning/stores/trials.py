"""The store of trials: numbers, open trials, and how each is written down.

Written first, believed after: a record that can't be written has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.trial import SEARCH, Cancelled, JobHandle, OpenTrial, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import JournalFile
from tunegym.tuning.stores.records import CloseRecord, JobRecord, OpenRecord, SessionRecord
from tunegym.tuning.stores.views import TrialViews


class JournalStore(JournalFile):
    """The record of one experiment: a journal, and the CSV views, which are written again at every opening.

    Only the store hands out numbers. One thread (the driver's) calls it, except ``job_started``, which any thread may
    call. Once a call has returned, its record survives the death of the process.

    Attributes:
        fingerprint: the workload's, in this session; only trials of the same one may be served from the cache.
        highest: the highest used number; 0 before the first.
    """

    def __init__(self, folder: Path, head: Head, session: SessionRecord, clock: Clock | None = None) -> None:
        super().__init__(folder, head, session, clock)
        self.fingerprint = session.fingerprint
        self._used = set(self.past.used)
        self.highest = max(self._used, default=0)
        self._free = (number for number in count(1) if number not in self._used)
        self._lane_numbers: dict[int, int] = {}
        self._open = {number: trial for number, (trial, _) in self.past.open.items()}
        self._views: TrialViews | None = None
        try:
            self._views = TrialViews(
                folder,
                knobs=list(head.knobs),
                env_params=list(head.env_params),
                metrics=head.metrics,
                past=self.highest,
                nodes=session.runner != "local",
            )
            for _, trial in self.recorded():
                self._views.add(trial)
        except BaseException:
            self.close()
            raise
        self._start()

    # numbers and trials -------------------------------------------------------------------------------

    def hold(self, lane: int) -> int:
        """The lowest number that is neither used nor held by another lane. Asking again keeps it."""
        number = self._lane_numbers.get(lane)
        if number is None:
            number = self._lane_numbers[lane] = next(self._free)
        return number

    def open(
        self,
        lane: int,
        context: Context,
        action: Action,
        weight_version: int | None = None,
        phase: str = SEARCH,
    ) -> OpenTrial:
        """Write down the decision for the lane's number, before anything runs. The number is used now."""
        trial = OpenTrial(self.hold(lane), context, action, weight_version, phase)
        self.append(
            OpenRecord(
                at=self.wall(),
                since=self.since(),
                number=trial.number,
                context=dict(context),
                action=dict(action),
                weight_version=weight_version,
                phase=phase,
            )
        )
        del self._lane_numbers[lane]
        self._used.add(trial.number)
        self.highest = max(self.highest, trial.number)
        self._open[trial.number] = trial
        return trial

    def close_trial(self, trial: Trial) -> None:
        """Write down the outcome of an open trial. Closing a number that is not open is an error."""
        if trial.number not in self._open:
            raise StoreError(f"trial {trial.number} is not open, so it can't be closed")
        self._write_close(trial, opened=True)
        del self._open[trial.number]

    def cancel_held(self, contexts: Callable[[int], Context], reward: Callable[[], float]) -> list[Trial]:
        """Record as ``Cancelled`` every unused number below the highest used one."""
        unused = [number for number in range(1, self.highest) if number not in self._used]
        self._used.update(unused)
        self._lane_numbers.clear()
        self._free = count(self.highest + 1)
        reason = Cancelled("the experiment ended before this number was used")
        cancelled = [Trial(number, contexts(number), {}, reason, reward(), 0.0) for number in unused]
        for trial in cancelled:
            self._write_close(trial, opened=False)
        return cancelled

    def open_trials(self) -> list[OpenTrial]:
        """Open trials, lowest number first."""
        return [self._open[number] for number in sorted(self._open)]

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """Every closed trial in the order of closing, with the fingerprint that it was measured under."""
        for record in reader.entries(self.path):
            if isinstance(record, reader.ClosedTrial):
                yield record.fingerprint, record.trial

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self.append(CloseRecord.of(trial, self.wall(), self.since(), opened))
        assert self._views is not None
        self._views.add(trial)

    # the session --------------------------------------------------------------------------------------

    def job_started(self, number: int, handle: JobHandle) -> None:
        """Write down the handle of an open trial's job, so that a later session can end its processes."""
        self.append(JobRecord(number=number, handle=dict(handle)))

    def leftovers(self) -> list[JobHandle]:
        """The handles of the jobs that open trials of earlier sessions had."""
        return [handle for handles in self.past.handles.values() for handle in handles]

    def _work(self) -> None:
        if self._views is not None:
            self._views.flush()

    def _finish(self) -> None:
        if self._views is not None:
            self._views.close()
