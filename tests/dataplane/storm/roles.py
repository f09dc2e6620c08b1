"""What the processes of a storm do. Each may be killed at any moment, and is started again.

A **producer** puts its ids in order, and records how far it is after each put. When it starts again it repeats the put
at which it died: that takes effect, writes the same again, or is refused because samples are used up.

A **scorer** writes the field that the trainer waits for, and acks without a version: its result is in the plane.

The **trainer** has a model: the ids of the samples that it was trained on, in its memory. A checkpoint appends them to
a file, then replaces the record of the version and the file's size, then commits. When the trainer starts again, it
cuts the file to the recorded size, publishes the weights of the checkpoint, and rewinds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from tunegym.dataplane import BatchMeta, DataPlaneClient, StalenessFilter, attach, write_columns
from tunegym.dataplane.errors import ClaimTimeoutError, EndOfStreamError, EpochError, LeaseLostError, SampleError

P = "rollouts"
PRODUCERS, SCORERS = 4, 2
PUT = CLAIM = 64
CAPACITY = 4096
SHORTEST, LENGTHS = 64, 960
CHECKPOINT_EVERY = 4
MAX_STALENESS = 128
STUCK_EVERY, STUCK = 40, 1_000_000
"""One sample in 40 is of weights that are a million versions too old."""
LINGER_S = 3.0


class Place:
    """The folder of the plane, and the files that the processes keep; ``stop`` exists when consumers may end."""

    def __init__(self, plane: Path, own: Path) -> None:
        self.plane, self.own = plane, own
        self.url, self.weights, self.stop = f"mmap://{plane}", own / "weights", own / "stop"

    def checkpoint(self) -> tuple[int, int]:
        """The version of the last checkpoint, and how much of the model's file belongs to it."""
        path = self.own / "checkpoint"
        version, size = orjson.loads(path.read_bytes()) if path.exists() else (0, 0)
        return version, size

    def model(self) -> list[str]:
        """The ids in the last checkpoint."""
        return (self.own / "model").read_bytes()[: self.checkpoint()[1]].decode().split()


def register(plane: DataPlaneClient) -> None:
    """Make the partition, if there is none."""
    plane.register_partition(P, ["tokens", "score"], ["score", "train"], capacity=CAPACITY)


def named(producer: int, first: int, count: int) -> list[str]:
    return [f"p{producer}-{number:07d}" for number in range(first, first + count)]


def is_stuck(sample_id: str) -> bool:
    """Whether the weights of a sample are too old."""
    return int(sample_id[3:]) % STUCK_EVERY == 0


def tokens(sample_id: str) -> np.ndarray:
    number = int(sample_id[3:])
    return np.full(SHORTEST + number % LENGTHS, number, dtype=np.int64)


def replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def produce(place: Place, producer: int, count: int) -> None:
    plane, progress = attach(place.url, linger_s=LINGER_S), place.own / f"producer-{producer}"
    died_at = done = int(progress.read_bytes()) if progress.exists() else 0
    register(plane)
    rollouts = plane.producer(P)
    while done < count:
        ids = named(producer, done, min(PUT, count - done))
        token = rollouts.start(len(ids))
        version = int(place.weights.read_bytes())
        tags = [{"weight_version": version - STUCK if is_stuck(one) else version} for one in ids]
        try:
            rollouts.put_samples(token, ids, {"tokens": [tokens(one) for one in ids]}, tags=tags)
        except EpochError:  # those weights are gone: start again, then fetch weights
            continue
        except SampleError:
            if done != died_at:
                raise
        done += len(ids)
        replace(progress, str(done).encode())
    plane.close()


def consume(place: Place, step: Callable[[DataPlaneClient, BatchMeta | None], None], task: str, *fields: str) -> None:
    """Claim until told to stop. ``step`` gets each claim, or None if there was nothing to claim."""
    plane = attach(place.url, linger_s=LINGER_S)
    while not place.stop.exists():
        try:
            step(plane, plane.claim_meta(P, task, fields, CLAIM, min_batch=1, timeout_s=0.2))
        except (ClaimTimeoutError, EndOfStreamError):
            step(plane, None)
            time.sleep(0.05)  # a rewind may bring more
    plane.close()


def score(place: Place) -> None:
    def step(plane: DataPlaneClient, claimed: BatchMeta | None) -> None:
        if claimed is None:
            return
        settle = plane.ack
        try:
            rows = plane.get_data(claimed)["tokens"].to_list()
            assert all(np.array_equal(row, tokens(one)) for one, row in zip(claimed.sample_ids, rows, strict=True))
            write_columns(plane, claimed, {"score": np.array([float(row.sum()) for row in rows])})
        except (EpochError, SampleError):  # the trainer has rewound, and some may be orphaned
            settle = plane.release
        while claimed.size:
            try:
                settle(claimed)
                claimed = claimed.slice(0, 0)
            except LeaseLostError as error:
                claimed = claimed.drop(error.sample_ids)

    consume(place, step, "score", "tokens")


class Trainer:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._version, size = place.checkpoint()
        self._saved = self._version
        self._trained: list[str] = []
        self._file = os.open(place.own / "model", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, size)
        replace(place.weights, str(self._version).encode())  # before the rewind, which makes producers fetch weights
        with attach(place.url, linger_s=LINGER_S) as plane:
            plane.rewind(P, "train", self._version)
            plane.commit(P, "train", self._version)  # it may have died just before

    def step(self, plane: DataPlaneClient, claimed: BatchMeta | None) -> None:
        if claimed is not None:
            read = plane.get_data(claimed)
            sums = [float(tokens(one).sum()) for one in claimed.sample_ids]
            assert [float(row.sum()) for row in read["tokens"].to_list()] == sums
            assert read["score"].dense().tolist() == sums
            keep, drop = StalenessFilter(MAX_STALENESS).split(claimed, current_weight_version=self._version)
            plane.clear_samples(P, drop.sample_ids, "stale")
            if keep.size:
                plane.ack(keep, version=self._version + 1)
                self._version += 1
                self._trained += keep.sample_ids
                replace(self._place.weights, str(self._version).encode())
        if self._version - self._saved >= (CHECKPOINT_EVERY if claimed is not None else 1):
            self._save(plane)

    def _save(self, plane: DataPlaneClient) -> None:
        os.write(self._file, "".join(f"{one}\n" for one in self._trained).encode())
        replace(self._place.own / "checkpoint", orjson.dumps([self._version, os.fstat(self._file).st_size]))
        plane.commit(P, "train", self._version)
        self._saved = self._version
        self._trained.clear()


def train(place: Place) -> None:
    consume(place, Trainer(place).step, "train", "tokens", "score")


if __name__ == "__main__":  # see Storm: runpy sets ROLE
    name, plane_folder, own_folder, *rest = globals()["ROLE"]
    globals()[name](Place(plane_folder, own_folder), *rest)
