"""A producer or a consumer of the mmap plane: ``python -m benchmarks.dataplane.ours URL``, driven by ``pipe``."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataplane.batches import FIELDS, KINDS, nbytes, out_of_cache, timed, touched
from benchmarks.dataplane.pipe import serve
from tunegym.dataplane import BatchMeta, DataPlaneClient, Tag, attach, connect, read_columns
from tunegym.dataplane.errors import ClosedError

PARTITION, TASK = "rollouts", "train"
NEVER = 1 << 40
_PIECES = min(os.sysconf("SC_IOV_MAX"), 1024)


class Party:
    """One process at the plane."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._plane = connect(url)
        self._plane.register_partition(PARTITION, FIELDS, [TASK])
        self._numbers = itertools.count()
        self._batches: dict[str, dict[str, Any]] = {}
        self._claimed: list[BatchMeta] = []
        self._version = 0
        self._waiting: list[tuple[DataPlaneClient, threading.Thread]] = []

    def _fields(self, kind: str) -> dict[str, Any]:
        if kind not in self._batches:
            self._batches[kind] = KINDS[kind].fields()
        return self._batches[kind]

    # as producer --------------------------------------------------------------------------------------

    def put(self, kind: str) -> float:
        return self._put(kind)[0]

    def _put(self, kind: str) -> tuple[float, BatchMeta]:
        fields, rows = self._fields(kind), KINDS[kind].rows
        ids = [f"rollout-{next(self._numbers):012d}" for _ in range(rows)]
        return timed(partial(self._plane.put_samples, PARTITION, ids, fields, {"weight_version": 1}), rows)

    def write(self, kind: str) -> float:
        """The same bytes with bare system calls into a file at the same place, whose pages were taken beforehand."""
        rows = [row for field in self._fields(kind).values() for row in field]
        parts = [rows[start : start + _PIECES] for start in range(0, len(rows), _PIECES)]
        with tempfile.TemporaryFile(dir=Path(self._url.removeprefix("mmap://")).parent, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes(self._fields(kind)))
            return timed(lambda: [os.writev(file.fileno(), part) for part in parts], len(rows))[0]

    def puts(self, kind: str, times: int) -> list[float]:
        """Seconds of each of several, which nobody wants."""
        done = [self._put(kind) for _ in range(times)]
        for _, meta in done:
            self._plane.clear_samples(PARTITION, meta.sample_ids)
        return [taken for taken, _ in done]

    def wake(self) -> float:
        """Put what a waiting claim lacks; when that began."""
        fields, number = self._fields("single"), next(self._numbers)
        self._until_waiting(1)
        begun = time.monotonic()
        self._plane.put_samples(PARTITION, [f"rollout-{number:012d}"], fields, {"weight_version": 1})
        return begun

    # as consumer --------------------------------------------------------------------------------------

    def claim(self, kind: str, count: int) -> float:
        fields = list(self._fields(kind))
        taken, meta = timed(lambda: self._plane.claim_meta(PARTITION, TASK, fields, count), 1)
        self._claimed.append(meta)
        return taken

    def get(self, kind: str, first: bool = False) -> float:
        """Read what is claimed, or what was claimed first, as it was put: views, jagged or dense."""
        meta = self._claimed[0] if first else BatchMeta.concat(self._claimed)
        fields, jagged = list(self._fields(kind)), KINDS[kind].jagged

        def read() -> dict[str, Any]:
            if jagged:
                return read_columns(self._plane, meta, fields, layout="jagged")
            return {name: rows.dense() for name, rows in self._plane.get_samples(meta, fields).items()}

        taken, found = timed(lambda: touched(read()), meta.size)
        _check({name: list(rows) for name, rows in found.items()}, self._fields(kind), meta.size)
        return taken

    def padded(self, kind: str) -> float:
        """Read what is claimed as arrays of one's own, padded."""
        meta, fields = BatchMeta.concat(self._claimed), list(self._fields(kind))
        taken, found = timed(lambda: touched(read_columns(self._plane, meta, fields)), meta.size)
        _check(found, self._fields(kind), meta.size)
        return taken

    def copy(self, kind: str) -> float:
        """numpy's copy of the same bytes, into memory that is there."""
        flat = [np.concatenate(list(rows)) for rows in self._fields(kind).values()]
        places = [np.ones_like(one) for one in flat]
        return timed(
            lambda: [np.copyto(place, one) for place, one in zip(places, flat, strict=True)], KINDS[kind].rows
        )[0]

    def done(self) -> None:
        """What was claimed is consumed, and goes."""
        self._version += 1
        for meta in self._claimed:
            self._plane.ack(meta, self._version)
        self._plane.commit(PARTITION, TASK, self._version)
        self._claimed.clear()

    def wait(self) -> float:
        """Claim what isn't there yet; when it was there."""
        meta = self._plane.claim_meta(PARTITION, TASK, list(self._fields("single")), 1)
        woken = time.monotonic()
        self._claimed.append(meta)
        return woken

    # those who wait in vain ---------------------------------------------------------------------------

    def begin_waiting(self, claims: int, kind: str, choosy: bool) -> None:
        """So many claims wait for more samples than there will be, or for such as there are none."""
        where, count = (Tag("weight_version") > NEVER, 1) if choosy else (None, NEVER)
        for _ in range(claims):
            client = attach(self._url)
            ask = partial(client.claim_meta, PARTITION, TASK, list(self._fields(kind)), count, where, timeout_s=None)
            thread = threading.Thread(target=_in_vain, args=(ask,), daemon=True)
            thread.start()
            self._waiting.append((client, thread))
        self._until_waiting(claims)

    def _until_waiting(self, claims: int) -> None:
        while self._plane.stats()[PARTITION]["waiting"]["claims"] < claims:
            time.sleep(0.001)

    def end_waiting(self) -> None:
        for client, thread in self._waiting:
            client.close()
            thread.join()
        self._waiting.clear()

    def close(self) -> None:
        self.end_waiting()
        self._plane.close()


def _in_vain(ask: Any) -> None:
    try:
        ask()
    except ClosedError:
        return
    raise AssertionError("it was not to get anything")


def _check(found: dict[str, Any], fields: dict[str, Any], count: int) -> None:
    """The first and the last row are what was put, whatever comes after them."""
    for name, rows in fields.items():
        for at in (0, count - 1):
            row = rows[at]
            assert (found[name][at][: len(row)] == row).all()


def main() -> None:
    out_of_cache()
    party = Party(sys.argv[1])
    try:
        serve(party)
    finally:
        party.close()


if __name__ == "__main__":
    main()
