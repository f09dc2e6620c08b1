"""Where an algorithm's randomness comes from: its own draws, and torch's shared generator, given back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from tunegym.core.randomness import integer, unit


class Borrowed:
    """The draws of one algorithm, by name; torch runs on one thread for it, because its networks are small.

    What can be drawn from a generator of our own is. Only where Stable-Baselines3 draws inside of torch, whose
    generator everybody shares, that one is borrowed: inside of ``stream`` it starts from a seed that depends on nothing
    but ours and the names, and afterwards it is as it was. A workload that draws from torch on another thread of this
    process just then would notice; numpy's and Python's shared generators are never touched.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._seed = seed
        self._name = name

    def generator(self, *names: str | int) -> np.random.Generator:
        """A generator of our own for these names."""
        return np.random.default_rng(integer(self._seed, 2**63, self._name, *names))

    def unit(self, *names: str | int) -> float:
        """A uniform number in [0, 1) for these names."""
        return unit(self._seed, self._name, *names)

    def integer(self, bound: int, *names: str | int) -> int:
        """A uniform integer in [0, bound) for these names."""
        return integer(self._seed, bound, self._name, *names)

    @contextlib.contextmanager
    def stream(self, *names: str | int) -> Iterator[None]:
        """What torch draws inside depends on ``names`` alone."""
        theirs = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(self.integer(2**32, *names))
            with self.one_thread():
                yield
        finally:
            torch.set_rng_state(theirs)

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Torch uses one thread, and afterwards as many as before."""
        threads = torch.get_num_threads()
        if threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
