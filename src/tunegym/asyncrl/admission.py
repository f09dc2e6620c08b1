"""Which rollouts may start: a staleness policy's admission, for many producers at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunegym.dataplane import Admission, BatchMeta, StalenessPolicy
from tunegym.dataplane.model import WEIGHT_VERSION


class Gate:
    """Admits producers by their names: they wait here rather than produce what would be dropped. Thread-safe.

    A producer's life: ``start`` until it is admitted (with newer weights, if there are any), produce, put, ``ready``.
    ``abandon`` takes back what a dead one had started. If its last put arrived nevertheless, it counts again as soon as
    the trainer claims it: then admission was one too generous for a moment, and the staleness filter has the last word.
    """

    def __init__(self, policy: StalenessPolicy, version: int = 0, outstanding: Mapping[str, int] | None = None) -> None:
        self._there = dict(outstanding or {})  # version by sample, of those that are ready and not claimed
        self._admission = Admission(policy, version, Counter(self._there.values()))
        self._changed = threading.Condition()
        self._started: dict[str, tuple[str, int]] = {}  # owner and version by sample
        self._abandoned: set[str] = set()
        self.closed = False  # whether it admits nothing any more
        self.waited_s: dict[str, float] = {}  # how long each producer waited for admission

    @property
    def version(self) -> int:
        """The trainer's version."""
        return self._admission.current_version

    @property
    def cut(self) -> int:
        """How many samples were started by producers that died, and never arrived."""
        return len(self._abandoned)

    def start(
        self, owner: str, sample_ids: Sequence[str], version: int, timeout_s: float | None = None
    ) -> tuple[list[str], int | None]:
        """Wait until some of the samples may be started with weights of ``version``.

        Returns:
            The admitted samples, and the trainer's version; None once the gate is closed. No sample is admitted if that
            is another than ``version``: fetch those weights and ask again. Nor is one after ``timeout_s``.
        """
        began, admission = time.monotonic(), self._admission
        with self._changed:
            other = lambda: self.closed or self.version != version  # noqa: E731
            self._changed.wait_for(lambda: other() or admission.room(version) > 0, timeout_s)
            self.waited_s[owner] = self.waited_s.get(owner, 0.0) + time.monotonic() - began
            granted = [] if other() else list(sample_ids)[: admission.start(len(sample_ids), version)]
            self._started |= dict.fromkeys(granted, (owner, version))
            return granted, None if self.closed else self.version

    def ready(self, sample_ids: Sequence[str]) -> None:
        """Started samples were put."""
        with self._changed:
            found = {one: self._started.pop(one)[1] for one in sample_ids if one in self._started}
            self._there |= found
            self._admission.ready(_samples(found))
            self._changed.notify_all()

    @property
    def there(self) -> set[str]:
        """The samples that are ready and not claimed, as far as it knows."""
        with self._changed:
            return set(self._there)

    def lose(self, sample_ids: Iterable[str]) -> None:
        """Samples that were ready are lost, with the node that held them. Those that the trainer has are its own."""
        with self._changed:
            self._admission.drop(_samples({one: self._there.pop(one) for one in sample_ids if one in self._there}))
            self._changed.notify_all()

    def abandon(self, owner: str, sample_ids: Sequence[str] | None = None) -> None:
        """Samples of a producer will not arrive: those that it names, or all that it had started, if it died."""
        with self._changed:
            for one, (who, version) in list(self._started.items()):
                if who == owner and (sample_ids is None or one in sample_ids):
                    del self._started[one]
                    self._admission.abandon(1, version)
                    if sample_ids is None:
                        self._abandoned.add(one)
            self._changed.notify_all()

    def close(self) -> None:
        """Admit nothing any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    # the trainer --------------------------------------------------------------------------------------

    def claimed(self, meta: BatchMeta) -> None:
        """The trainer has these samples, whatever their producers said. Comes before ``drop`` and ``advance``."""
        self.ready(meta.sample_ids)
        with self._changed:
            for one in meta.sample_ids:
                self._there.pop(one, None)
            back = [at for at, one in enumerate(meta.sample_ids) if one in self._abandoned]
            self._abandoned.difference_update(meta.sample_ids)
            self._admission.found(meta.subset(back))

    def give_back(self, meta: BatchMeta) -> None:
        """The trainer claimed these samples, and did not use them."""
        with self._changed:
            self._there |= dict(zip(meta.sample_ids, map(int, meta.tag(WEIGHT_VERSION)), strict=True))

    def drop(self, meta: BatchMeta) -> None:
        """Samples were dropped."""
        with self._changed:
            self._admission.drop(meta)
            self._changed.notify_all()

    def advance(self, version: int, *settled: BatchMeta) -> None:
        """There is a newer version, made from these samples."""
        with self._changed:
            self._admission.advance(version, *settled)
            self._changed.notify_all()


@dataclass(frozen=True)
class RemoteGate:
    """A ``Gate`` in a Ray actor, whose ``max_concurrency`` is one for each producer, and one for the trainer."""

    actor: Any

    def __getattr__(self, call: str) -> Callable[..., Any]:
        import ray

        if call.startswith("_"):
            raise AttributeError(call)
        return lambda *arguments: ray.get(getattr(self.actor, call).remote(*arguments))


def _samples(versions: Mapping[str, int]) -> BatchMeta:
    return BatchMeta("", tuple(versions), (), tags=tuple({WEIGHT_VERSION: one} for one in versions.values()))
