"""The journal: the truth about one experiment, in one append-only file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tunegym.core.clock import Clock
from tunegym.core.errors import StoreError
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.stores import reader, records
from tunegym.tuning.stores.appending import Appender
from tunegym.tuning.stores.book import TrialBook
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.views import CsvViews


class JournalStore(TrialBook):
    """The ``TrialStore`` that a run uses.

    Every record is handed to the operating system before the call returns, and is on the disk within a second
    and at ``close``. Opening an existing journal takes over from a dead writer: a torn last line is cut off,
    and the views are written anew.

    Raises:
        StoreLockedError: somebody else writes it.
        StoreError: it can't be written, or belongs to another experiment than ``head`` describes.
    """

    def __init__(self, folder: Path, head: Head, session: Session, clock: Clock | None = None) -> None:
        self.fingerprint = session.fingerprint
        self._journal = Appender(folder, head, session, _scan, clock)
        self.head = self._journal.head
        self.past = self._journal.past
        try:
            super().__init__(self.past.used, self.past.open)
            self._views = CsvViews(folder, list(head.knobs), list(head.env_params), head.metrics)
            for _, trial in reader.trials(self._journal.path):
                self._views.add(trial)
        except BaseException:
            self._journal.close()
            raise
        self._journal.start(self._views.flush)

    def job_started(self, number: int, handle: JobHandle) -> None:
        """See ``TrialStore.job_started``."""
        self._journal.append({"record": "job", "number": number, "handle": handle})

    def leftovers(self) -> list[JobHandle]:
        """See ``TrialStore.leftovers``."""
        return [handle for handles in self.past.handles.values() for handle in handles]

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return reader.trials(self._journal.path)

    def end(self, code: int, reason: str) -> None:
        """Write down that the experiment came to its end."""
        self._journal.append(records.end_record(code, reason, self._journal.wall(), self._journal.since()))

    def close(self) -> None:
        """See ``TrialStore.close``. Raises what kept records from the disk, if anything did."""
        self._journal.close(self._views.close)

    def forgive(self, seconds: float) -> None:
        """See ``TrialStore.forgive``."""
        self._journal.forgive(seconds)

    def _write_open(self, trial: OpenTrial) -> None:
        self._journal.append(records.open_record(trial, self._journal.wall(), self._journal.since()))

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self._journal.append(records.close_record(trial, self._journal.wall(), self._journal.since(), opened))
        self._views.add(trial)


def _scan(path: Path) -> reader.Journal:
    past = reader.scan(path)
    if past.kind == "live":
        raise StoreError(f"{path} is that of a live experiment", hint="start a new run")
    return past
