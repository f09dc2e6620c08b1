"""The generators that torch and numpy share with everybody: borrowed, and given back as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from tunegym.core.randomness import integer


class Borrowed:
    """Runs what draws from a global generator on a stream of its own.

    Stable-Baselines3 draws from torch's and numpy's global generators. Inside of ``stream`` they start from a seed that
    depends on nothing but ours and the stream's names; afterwards they are as they were, so that neither an
    in-process workload nor another agent notices. Networks are small: torch runs on one thread meanwhile.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._seed = seed
        self._name = name

    @contextlib.contextmanager
    def stream(self, *names: str | int) -> Iterator[None]:
        """Draws inside depend on ``names`` alone."""
        seed = integer(self._seed, 2**32, self._name, *names)
        theirs, numpys, threads = torch.get_rng_state(), np.random.get_state(), torch.get_num_threads()
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            if threads != 1:
                torch.set_num_threads(1)
            yield
        finally:
            torch.set_rng_state(theirs)
            np.random.set_state(numpys)
            if threads != 1:
                torch.set_num_threads(threads)
