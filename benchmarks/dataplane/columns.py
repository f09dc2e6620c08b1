"""The bytes alone, without a ledger: put into segments and read out again, beside numpy's own copy of the same bytes.

``python -m benchmarks.dataplane.columns [folder]``. Every source is out of the caches when it is copied. Rates count
the bytes of the rows, not of what they are padded with: the mean of the process's CPU time, threads included, and the
best of the time on the wall.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tunegym.dataplane.encoding import encode
from tunegym.dataplane.gathering import Rows
from tunegym.dataplane.storage.live import LiveSegments
from tunegym.dataplane.storage.mmap import MmapStorage

TIMES = 40
ROWS = 512
_EVICT = np.ones(96 << 20, dtype=np.uint8)


def out_of_cache() -> None:
    np.add(_EVICT, 1, out=_EVICT)


def rates(nbytes: int, work: Callable[[Any], Any], prepare: Callable[[], Any]) -> tuple[float, float]:
    """GB/s, by CPU and by the best on the wall."""
    taken, used = [], []
    for _ in range(TIMES):
        given = prepare()
        out_of_cache()
        start, begin = time.perf_counter(), time.process_time()
        result = work(given)
        used.append(time.process_time() - begin)
        taken.append(time.perf_counter() - start)
        del result, given
    return nbytes / statistics.mean(used) / 1e9, nbytes / min(taken) / 1e9


def measure(folder: Path, name: str, values: Any) -> None:
    column = encode(values)
    flat = np.ascontiguousarray(column.values)
    nbytes = flat.nbytes
    warm = np.ones_like(flat)
    storage, live = MmapStorage(folder), LiveSegments(folder)
    before: list[Any] = []

    def put(values: Any) -> None:
        location, _ = storage.write("p", {"field": encode(values)})
        live.keep(location)
        storage.settle(location)
        before.append(location)

    def fresh() -> Any:
        live.free(before[:-1])  # as a consumer that keeps up
        del before[:-1]
        return values

    def located() -> Any:
        put(fresh())
        return before[-1]

    def gathered(location: Any) -> Rows:
        return Rows([storage.read(location, "field", range(ROWS))])

    copy = rates(nbytes, lambda source: np.copyto(warm, source), lambda: flat)
    found = {
        "put": rates(nbytes, put, fresh),
        "padded": rates(nbytes, lambda location: gathered(location).padded(), located),
        "jagged": rates(nbytes, lambda location: gathered(location).jagged(), located),
    }
    print(f"{name} ({nbytes / 1e6:.1f} MB); numpy's copy: CPU {copy[0]:.2f} GB/s, best {copy[1]:.2f}")
    for what, (used, best) in found.items():
        ratios = f"{used / copy[0]:.2f} and {best / copy[1]:.2f} of the copy"
        print(f"  {what:8s} CPU {used:8.2f} GB/s, best {best:8.2f}: {ratios}")
    storage.close()
    live.free(before)
    live.sweep()


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="columns-", dir=parent))
    rng = np.random.default_rng(1)
    lengths = rng.integers(200, 1501, ROWS)
    try:
        measure(folder, "512 jagged rows, int64", [rng.integers(0, 50_000, length) for length in lengths])
        measure(folder, "512 jagged rows, float32", [rng.random(length, dtype=np.float32) for length in lengths])
        measure(folder, "512 x 4,096, float32", rng.random((ROWS, 4096), dtype=np.float32))
        measure(folder, "512 rows of 98 KB", [rng.random(24_500, dtype=np.float32) for _ in range(ROWS)])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
