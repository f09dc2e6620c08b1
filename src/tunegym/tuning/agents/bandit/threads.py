"""One thread for numpy's linear algebra while an agent thinks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep numpy to one thread in here, where it comes with the OpenBLAS of its wheels; else nothing changes.

    An agent often shares its machine with what it measures. Two threads that wait for each other on busy cores take
    fifty times longer for a matrix of 200 rows than one does, and take that time from the measurement.

    The number is the whole process's: with ``slots`` above 1 and ``isolate = false``, a workload that runs in this
    process at the same time has one thread as well for as long.
    """
    found = _openblas()
    if found is None:
        yield
        return
    threads, set_threads = found
    before = threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How to ask for the number of threads and how to set it, in the library that numpy has loaded."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
                threads = library.scipy_openblas_get_num_threads64_
                set_threads = library.scipy_openblas_set_num_threads64_
            except (OSError, AttributeError):  # another build of it
                continue
            threads.argtypes, threads.restype = (), ctypes.c_int
            set_threads.argtypes, set_threads.restype = (ctypes.c_int,), None
            return threads, set_threads
    return None
