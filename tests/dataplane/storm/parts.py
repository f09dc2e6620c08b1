"""What the processes of a storm do. Each may die at any moment.

A **producer** has ids of its own, puts them in order, and writes down how far it is after each put. When it starts
again it puts the batch at which it died once more: a put takes effect wholly or not at all, so either it does so now,
or writes the same again, or is refused since some are used up.

A **consumer** is a rank of its task's trainer, see ``trainer``. ``score`` writes the field that ``train`` waits for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.dataplane.storm.trainer import Trainer, replace

from tunegym.dataplane import BatchMeta, DataPlaneClient, StalenessFilter, attach, write_columns
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    EndOfStreamError,
    EpochError,
    LeaseLostError,
    SampleError,
)

P = "rollouts"
FIELDS = ["tokens", "score"]
REQUIRED = {"score": ["tokens"], "train": ["tokens", "score"]}
PRODUCERS = 4
PUT, CLAIM = 64, 64
CAPACITY = 4096
SHORTEST, LENGTHS = 64, 960
MAX_STALENESS = 128
STUCK_EVERY, STUCK = 40, 1_000_000
"""One sample in so many is of weights that are hopelessly old."""
FIRST_VERSION = {"score": 10**9, "train": 0}
"""A rewind drops as orphaned what weights after its version produced, whichever task rewinds: the versions of a task
that produces no weights must be beyond all of those."""
LEASE_S, LINGER_S = 60.0, 3.0


@dataclass(frozen=True)
class Place:
    """Where the files of a storm are: the plane, and what its processes keep for themselves."""

    plane: Path
    own: Path

    @property
    def url(self) -> str:
        """Of the plane."""
        return f"mmap://{self.plane}"

    def model(self, task: str) -> Path:
        """The folder of a task's model."""
        return self.own / task

    @property
    def weights(self) -> Path:
        """Has the version of the present weights."""
        return self.own / "weights"

    @property
    def stop(self) -> Path:
        """Is there when consumers may end."""
        return self.own / "stop"

    def progress(self, producer: int) -> Path:
        """Has how many samples a producer has put."""
        return self.own / f"producer-{producer}"


def register(plane: DataPlaneClient) -> None:
    """Make the partition, or come to be of its present epoch."""
    plane.register_partition(P, FIELDS, list(REQUIRED), capacity=CAPACITY)


def named(producer: int, first: int, count: int) -> list[str]:
    """Ids of a producer."""
    return [f"p{producer}-{number:07d}" for number in range(first, first + count)]


def number_of(sample_id: str) -> int:
    """The number in an id."""
    return int(sample_id[3:])


def is_stuck(sample_id: str) -> bool:
    """Whether the weights of a sample are hopelessly old."""
    return number_of(sample_id) % STUCK_EVERY == 0


def tokens(sample_id: str) -> np.ndarray:
    """The rows of a sample, which tell whose they are."""
    number = number_of(sample_id)
    return np.full(SHORTEST + number % LENGTHS, number, dtype=np.int64)


# producers --------------------------------------------------------------------------------------------


def produce(place: Place, producer: int, count: int) -> None:
    """Put ``count`` samples."""
    plane = attach(place.url, linger_s=LINGER_S)
    progress = place.progress(producer)
    done = int(progress.read_bytes()) if progress.exists() else 0
    died_here = done
    register(plane)
    while done < count:
        ids = named(producer, done, min(PUT, count - done))
        version = int(place.weights.read_bytes())
        tags = [{"weight_version": version - STUCK if is_stuck(one) else version} for one in ids]
        try:
            plane.put_samples(P, ids, {"tokens": [tokens(one) for one in ids]}, tags=tags)
        except EpochError:  # those weights are gone: be of the present epoch first, then fetch weights, then go on
            register(plane)
            continue
        except SampleError:
            if done != died_here:
                raise
        done += len(ids)
        replace(progress, str(done).encode())
    plane.close()


# consumers --------------------------------------------------------------------------------------------


def consume(place: Place, task: str, rank: int) -> None:
    """Train until there is nothing left to do."""
    plane = attach(place.url, lease_s=LEASE_S, linger_s=LINGER_S)
    trainer = Trainer(place.model(task), rank)
    first = FIRST_VERSION[task]
    with trainer.locked():
        version = trainer.return_to_checkpoint()
        if task == "train":  # whoever is told by the rewind to fetch weights must find these
            replace(place.weights, str(version).encode())
        plane.rewind(P, task, first + version)
        plane.commit(P, task, first + version)  # it may have died just before
    while not place.stop.exists():
        try:
            claimed = plane.claim_meta(P, task, REQUIRED[task], CLAIM, min_batch=1, timeout_s=0.2)
        except (ClaimTimeoutError, EndOfStreamError) as error:
            with trainer.locked():
                _checkpoint(plane, trainer, task, now=True)
            if isinstance(error, EndOfStreamError):  # unless somebody rewinds
                time.sleep(0.05)
            continue
        if not _worked(plane, task, claimed):
            _give_back(plane, claimed)
            continue
        with trainer.locked() as same:
            if not same or not _trained(plane, place, trainer, task, claimed):
                _give_back(plane, claimed)
            _checkpoint(plane, trainer, task)
    plane.close()


def _worked(plane: DataPlaneClient, task: str, claimed: BatchMeta) -> bool:
    """Read what was claimed, and write back what the next task waits for; whether that could be."""
    while True:
        try:
            read = plane.get_data(claimed)
            sums = []
            for one, row in zip(claimed.sample_ids, read["tokens"].to_list(), strict=True):
                assert np.array_equal(row, tokens(one)), f"{one} has other tokens: {row}"
                sums.append(float(row.sum()))
            if task == "score":
                write_columns(plane, claimed, {"score": np.array(sums)})
            else:
                assert read["score"].dense().tolist() == sums, f"other scores of {claimed.sample_ids}"
        except EpochError:
            continue
        except SampleError:  # some were orphaned meanwhile
            return False
        return True


def _trained(plane: DataPlaneClient, place: Place, trainer: Trainer, task: str, claimed: BatchMeta) -> bool:
    """One step; whether the samples were still this rank's."""
    version = trainer.state.version
    if task == "train":
        claimed, drop = StalenessFilter(MAX_STALENESS).split(claimed, current_weight_version=version)
        if drop.size:
            plane.clear_samples(P, drop.sample_ids, "stale")
    if not claimed.size:
        return True
    try:
        plane.ack(claimed, version=FIRST_VERSION[task] + version + 1)
    except LeaseLostError:
        return False
    trainer.learned(claimed.sample_ids)
    if task == "train":
        replace(place.weights, str(trainer.state.version).encode())
    return True


def _checkpoint(plane: DataPlaneClient, trainer: Trainer, task: str, *, now: bool = False) -> None:
    version = trainer.save(now=now)
    if version is not None:
        plane.commit(P, task, FIRST_VERSION[task] + version)


def _give_back(plane: DataPlaneClient, claimed: BatchMeta) -> None:
    """Release what is still held of a claim: one that is partly lost is released in parts."""
    try:
        plane.release(claimed)
    except LeaseLostError:
        if claimed.size > 1:
            _give_back(plane, claimed.slice(0, claimed.size // 2))
            _give_back(plane, claimed.slice(claimed.size // 2))


def main(arguments: Sequence[str]) -> None:
    """Be one of them: ``producer PLANE OWN NUMBER COUNT``, or ``consumer PLANE OWN TASK RANK``."""
    role, plane, own, *rest = arguments
    place = Place(Path(plane), Path(own))
    if role == "producer":
        produce(place, int(rest[0]), int(rest[1]))
    else:
        consume(place, rest[0], int(rest[1]))
