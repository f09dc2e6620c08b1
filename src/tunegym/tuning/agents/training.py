"""Around an algorithm of a library: its randomness, its threads and its errors.

Libraries draw from numpy's and torch's generators, which the whole process shares. ``Draws`` seeds them for as long as
the library works, so that its draws depend on our seed alone, and puts them back as they were.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import torch
from gymnasium import spaces

from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import TrainingError

logger = logging.getLogger(__name__)

DIVERGED = "the network is no longer of finite numbers; a smaller learning_rate, ent_coef or vf_coef keeps it from that"


def check_memory(space: spaces.Space[Any], size: int) -> None:
    """Refuse a replay buffer of ``size`` steps whose observations, of ``space``, could fill the memory hours later."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    each = 2 * sum(int(np.prod(one.shape or ())) * np.dtype(one.dtype).itemsize for one in parts)
    there = psutil.virtual_memory().total
    if each * size > there:
        raise TrainingError(
            f"a replay buffer of {size} steps takes {each * size / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f} GB of memory; a buffer_size of up to {there // (2 * each)} would be fine"
        )


class Draws:
    """The random draws of one algorithm, by name.

    Torch runs on one thread meanwhile, because the networks are small. A workload that draws from the shared generators
    on another thread of this process just then would notice.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._seed = seed
        self._name = name

    def unit(self, *names: str | int) -> float:
        """A uniform number in [0, 1) for these names."""
        return unit(self._seed, self._name, *names)

    def integer(self, bound: int, *names: str | int) -> int:
        """A uniform integer in [0, bound) for these names."""
        return integer(self._seed, bound, self._name, *names)

    @contextlib.contextmanager
    def stream(self, *names: str | int) -> Iterator[None]:
        """The library's draws inside depend on ``names`` alone."""
        theirs = np.random.get_state(legacy=False)
        with self.one_thread(), self.torch_stream(*names):
            np.random.seed(self.integer(2**32, *names, "numpy"))
            try:
                yield
            finally:
                np.random.set_state(theirs)

    @contextlib.contextmanager
    def torch_stream(self, *names: str | int) -> Iterator[None]:
        """Torch's draws inside depend on ``names`` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.integer(2**32, *names))
            yield

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Torch uses one thread, and afterwards as many as before."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def training() -> Iterator[None]:
    """Turn exceptions of the algorithm into ``TrainingError``. Only wrap its own calls: a bug of ours is none."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and "nan" in text:  # how torch says it, with all the numbers
            raise TrainingError(DIVERGED) from error
        logger.warning("the algorithm raised:", exc_info=True)
        raise TrainingError(f"{type(error).__name__}: {text[:300]}") from error
