"""A store that lives and dies with its process; as strict as the journal."""

from __future__ import annotations

from collections.abc import Iterator

from tunegym.core.errors import StoreError
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.trial import OpenTrial, Trial
from tunegym.tuning.stores.book import TrialBook


class MemoryStore(TrialBook):
    """A ``TrialStore`` for tests and throw-away environments."""

    def __init__(self, fingerprint: str = "") -> None:
        super().__init__()
        self.fingerprint = fingerprint
        self._closed: list[Trial] = []
        self._is_closed = False

    def job_started(self, number: int, handle: JobHandle) -> None:
        """A job needs no record here: nobody could read it after us."""

    def leftovers(self) -> list[JobHandle]:
        """Nothing outlives this store."""
        return []

    def recorded(self) -> Iterator[tuple[str, Trial]]:
        """See ``TrialStore.recorded``."""
        return ((self.fingerprint, trial) for trial in list(self._closed))

    def forgive(self, seconds: float) -> None:
        """Time is not recorded here."""

    def end(self, code: int, reason: str) -> None:
        """The end needs no record here."""

    def close(self) -> None:
        """See ``TrialStore.close``."""
        self._is_closed = True

    def _write_open(self, trial: OpenTrial) -> None:
        self._check_writable()

    def _write_close(self, trial: Trial, *, opened: bool) -> None:
        self._check_writable()
        self._closed.append(trial)

    def _check_writable(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
