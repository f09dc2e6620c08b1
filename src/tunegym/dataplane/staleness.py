"""How far producers may run ahead of the trainer: one policy defines filter, admission and capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunegym.dataplane.errors import SampleError, SpecError, TagError
from tunegym.dataplane.filters import DropCounts, StalenessFilter
from tunegym.dataplane.model import WEIGHT_VERSION, BatchMeta, checked_integer


@dataclass(frozen=True)
class StalenessPolicy:
    """How old samples may become, and the filter, admission and capacity that follow.

    The trainer makes version *v + 1* of the weights out of version *v* and ``batch_size`` samples, in the order in
    which they became ready for it. A sample of version *u* may be trained by the weights of version *u* to
    *u + max_staleness*. It is **outstanding** from its start at a producer until the version that it was trained into
    is there, or it was dropped or abandoned.

    Admission: a sample may be started if afterwards at most ``(oldest + max_staleness + 1 - current) * batch_size``
    samples are outstanding, where ``oldest`` is the oldest version of the samples that are started and not ready, the
    new one included. Then the other samples never suffice for the versions that would make such a sample stale, and
    once it is ready, newer ones queue behind it: with admission nothing is dropped as stale, however slow a producer
    is. A batch can always be filled: at the oldest possible age ``batch_size`` samples are still allowed. Where claims
    take another order than the oldest first, ready samples can be overtaken, too: ``oldest`` is then the oldest of all
    outstanding ones, and fewer are admitted.

    Attributes:
        batch_size: samples per version.
        max_staleness: for how many versions a sample stays usable; 0 for on-policy.
        group_size: samples that are started, claimed and dropped together; None for no groups.
        commit_every: versions between two checkpoints: acked samples stay resident until a commit covers them.
        capacity: of the partition; None for the smallest that suffices.
        in_order: whether claims take the oldest first, as they do without an ``order`` and ``where``.

    Raises:
        SpecError: a number is invalid, or the settings would deadlock.
    """

    batch_size: int
    max_staleness: int
    group_size: int | None = None
    commit_every: int = 1
    capacity: int | None = None
    in_order: bool = True

    def __post_init__(self) -> None:
        lowest = {"batch_size": 1, "max_staleness": 0, "group_size": 1, "commit_every": 1, "capacity": 1}
        for name, least in lowest.items():
            if getattr(self, name) is not None or name not in ("group_size", "capacity"):
                object.__setattr__(self, name, checked_integer(name, getattr(self, name), least))
        if self.batch_size % self.unit:
            raise SpecError(
                f"a batch of {self.batch_size} can't be made of groups of {self.unit}",
                hint="give a batch_size that is a multiple of group_size: the trainer would wait forever for the rest",
            )
        needed = self.most_outstanding + self.commit_every * self.batch_size
        if self.capacity is None:
            object.__setattr__(self, "capacity", needed)
        elif self.capacity < needed:
            raise SpecError(
                f"a capacity of {self.capacity} is too small: admission lets {self.most_outstanding} samples be"
                f" outstanding, and {needed - self.most_outstanding} wait for a commit",
                hint=f"give at least {needed}, or a smaller max_staleness or commit_every; a producer with the sample"
                " that the trainer waits for could find the partition full",
            )

    @property
    def unit(self) -> int:
        """The number of samples that start together."""
        return self.group_size or 1

    @property
    def most_outstanding(self) -> int:
        """The most samples that can be outstanding at once."""
        return (self.max_staleness + 1) * self.batch_size

    def filter(self, counts: DropCounts | None = None) -> StalenessFilter:
        """The filter that drops samples that became stale anyway."""
        return StalenessFilter(self.max_staleness, counts=counts)

    def limits(self) -> dict[str, Any]:
        """Keyword arguments for ``register_partition``."""
        return {"capacity": self.capacity, "group_size": self.group_size}

    def room(
        self,
        current_version: int,
        *,
        outstanding: int = 0,
        oldest_version: int | None = None,
        version: int | None = None,
    ) -> int:
        """The number of samples that may be started now, in whole groups.

        Args:
            current_version: of the trainer.
            outstanding: the number of outstanding samples.
            oldest_version: the oldest version among those that are not ready; None if all are. If you don't know which
                are ready, or claims are not ``in_order``, use the oldest of all: that is safe and admits fewer.
            version: of the weights that would produce them; None for the current one. With weights that are too old
                the result is 0: fetch the current ones.
        """
        version = current_version if version is None else version
        if version > current_version:
            raise TagError(f"version {version} is in the future: the current version is {current_version}")
        oldest = version if oldest_version is None else min(version, oldest_version)
        allowed = (oldest + self.max_staleness + 1 - current_version) * self.batch_size
        return max(0, allowed - outstanding) // self.unit * self.unit

    def admits(self, count: int, current_version: int, **state: Any) -> bool:
        """Whether ``count`` samples may be started now, with the arguments of ``room``."""
        return count <= self.room(current_version, **state)


class Admission:
    """Counts outstanding samples, for the process that admits producers. Not thread-safe.

    Args:
        policy: the policy.
        current_version: of the trainer.
        outstanding: ready samples by version, after a restart. If there are more than the policy admits (a rewind gives
            samples back), some may become stale.
    """

    def __init__(
        self, policy: StalenessPolicy, current_version: int = 0, outstanding: Mapping[int, int] | None = None
    ) -> None:
        self.policy = policy
        self.current_version = current_version
        self._started: Counter[int] = Counter()
        self._ready: Counter[int] = Counter(dict(outstanding or {}))

    @property
    def outstanding(self) -> int:
        """The number of outstanding samples."""
        return self._started.total() + self._ready.total()

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of samples that are started and not ready; of all, if claims are not ``in_order``."""
        return min(self._started if self.policy.in_order else self._started + self._ready, default=None)

    def room(self, version: int | None = None) -> int:
        """See ``StalenessPolicy.room``."""
        return self.policy.room(
            self.current_version, outstanding=self.outstanding, oldest_version=self.oldest_version, version=version
        )

    def start(self, count: int, version: int | None = None) -> int:
        """Start up to ``count`` samples with weights of ``version``, in whole groups; how many are admitted."""
        version = self.current_version if version is None else int(version)
        granted = min(self.room(version), count // self.policy.unit * self.policy.unit)
        if granted > 0:
            self._started[version] += granted
        return max(0, granted)

    def ready(self, meta: BatchMeta) -> None:
        """Started samples were put with all fields that the trainer requires.

        Calling this is optional: without it fewer samples are admitted.

        Raises:
            TagError: a sample has no version.
            SampleError: more samples of a version than were started.
        """
        found = versions_of(meta)
        self._started = _without(self._started, found)
        self._ready += found

    def abandon(self, count: int, version: int) -> None:
        """Started samples will never be ready: their producer failed, or they took too long."""
        self._started = _without(self._started, Counter({int(version): count}))

    def found(self, meta: BatchMeta) -> None:
        """Samples that are not outstanding are there all the same, such as those that were abandoned too early."""
        self._ready += versions_of(meta)

    def drop(self, meta: BatchMeta) -> None:
        """Samples were dropped; others may be started in their place before the next version.

        Raises:
            TagError: a sample has no version.
            SampleError: more samples of a version than are outstanding.
        """
        self._gone(versions_of(meta))

    def advance(self, version: int, *settled: BatchMeta) -> None:
        """The trainer produced a newer version from these samples (trained, or dropped without replacement).

        Raises:
            SpecError: fewer than ``batch_size`` samples per version, so that others would age too fast.
        """
        steps, count = version - self.current_version, sum(meta.size for meta in settled)
        if steps < 0:
            raise SpecError(
                f"version {version} is before the current one, {self.current_version}",
                hint="after a rewind make a new Admission, with the samples that are outstanding then",
            )
        if count < steps * self.policy.batch_size:
            raise SpecError(
                f"{count} samples for {steps} versions, but the policy says {self.policy.batch_size} per version",
                hint="claim replacements for dropped samples, or use a policy with a smaller batch_size",
            )
        self._gone(versions_of(*settled))
        self.current_version = int(version)

    def _gone(self, gone: Counter[int]) -> None:
        unsaid = gone - self._ready
        self._started, self._ready = _without(self._started, unsaid), self._ready - gone


def _without(there: Counter[int], gone: Counter[int]) -> Counter[int]:
    for version, count in gone.items():
        if count > there[version]:
            raise SampleError(
                f"{count} samples of version {version}, but only {there[version]} are outstanding",
                hint="start() each sample, count it once, and don't put abandoned ones",
            )
    return there - gone


def versions_of(*metas: BatchMeta) -> Counter[int]:
    """How many samples of some batches each version of the weights produced."""
    return Counter(int(version) for meta in metas for version in meta.tag(WEIGHT_VERSION))
