"""Around an algorithm of a library: its randomness, its threads, its errors, and its training on a live system.

Libraries draw from numpy's and torch's generators, which the whole process shares. ``Draws`` seeds them for as long as
the library works, so that its draws depend on our seed alone, and puts them back as they were.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch
from gymnasium import spaces

from tunegym.core.errors import ActionError, BudgetError, ServerLostError
from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.ports import LiveEnv

logger = logging.getLogger(__name__)

DIVERGED = "the network is no longer of finite numbers; a smaller learning_rate, ent_coef or vf_coef keeps it from that"
HORIZON = 100_000
"""Assumed budget where only time bounds it."""
LINES = 1000
"""Approximate number of points in the training curves of a budget."""
STARTS = 100
"""Random steps of off-policy algorithms before they learn, at most a tenth of the budget."""
EPISODE = {"rew": "r", "len": "l"}
"""Return and length of an episode: in the curves' names, and in its record."""


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


class LiveTraining(ABC):
    """Learns until the budget ends, and keeps the policy on disk. ``run`` raises what ``LiveAgent.run`` expects."""

    def __init__(self, env: LiveEnv, name: str, config: Any, seed: int) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._files = PolicyFiles(env.folder, name, unit="step")
        self._draws = Draws(seed, name)
        self._most = env.experiment.most_trials
        self._horizon = self._most or HORIZON
        self._trained = False
        self._first = self._saved = self._logged = env.taken

    def run(self) -> None:
        """Learn to the end; the steps collected by then are learned from, whatever the end."""
        with self._draws.one_thread():
            with training():
                self._prepare()
            cause = self._learn()
            if isinstance(cause, ActionError):  # only a diverged policy chooses such
                raise TrainingError(f"{DIVERGED} ({cause.message})") from cause
            if cause is not None and not isinstance(cause, BudgetError | ServerLostError):
                raise cause
            with training():
                self._finish()
        if isinstance(cause, ServerLostError):
            raise cause

    @abstractmethod
    def _restore(self) -> int:
        """Build the algorithm; returns how many steps its checkpoint has seen, 0 without one."""

    @abstractmethod
    def _remember(self) -> int | None:
        """Fill the replay buffer from the record; returns the number of steps, None if there is no such buffer."""

    @abstractmethod
    def _learn(self) -> Exception | None:
        """Train to the end of the budget; returns the live system's exception that ended it, if any."""

    @abstractmethod
    def _train_on_rest(self) -> None:
        """Learn from steps that no update had: an on-policy algorithm couldn't do so later."""

    @abstractmethod
    def _save_policy(self, taken: int) -> None:
        """Write the checkpoint after so many steps, and the model. Raises ``TrainingError`` if the network diverged."""

    def _prepare(self) -> None:
        saved = self._restore()
        self._trained = saved > 0
        if self._first:
            self._files.report_resume(self._first, min(saved, self._first), self._remember())

    def _record_update(self, values: Mapping[str, float], episodes: Sequence[Mapping[str, float]]) -> None:
        """Log and save after an update; ``episodes`` are the records of the last ones."""
        self._trained = True
        taken = self._env.taken
        if taken - self._logged >= max(self._horizon, taken) // LINES:
            self._logged = taken
            means = {f"rollout/ep_{name}_mean": [one[key] for one in episodes] for name, key in EPISODE.items()}
            known = {name: float(np.mean(column)) for name, column in means.items() if column}
            self._files.log(taken, {**known, **values})
        if taken - self._saved >= self._config.checkpoint_every:
            self._save()

    def _save(self) -> None:
        self._saved = self._env.taken
        self._save_policy(self._saved)

    def _finish(self) -> None:
        """Learn from the rest, also of a stopped run."""
        self._train_on_rest()
        if not self._trained:
            logger.warning("%s has learned nothing: %d steps are too few for an update", self._name, self._env.taken)
        elif self._env.taken > self._saved:
            self._save()
