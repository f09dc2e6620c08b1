"""The library's buffers, which draw from a generator that they are given instead of numpy's shared one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples

_FIELDS = ("observations", "actions", "values", "log_probs", "advantages", "returns")


class OwnRollout(RolloutBuffer):
    """One update's trials, shuffled by ``rng``; whoever makes it fills it whole."""

    def __init__(self, size: int, model: Any, rng: np.random.Generator) -> None:
        super().__init__(size, model.observation_space, model.action_space, device="cpu", n_envs=1)
        self._rng = rng

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """Every trial once, in batches."""
        order = self._rng.permutation(self.buffer_size)
        if not self.generator_ready:
            for name in _FIELDS:
                setattr(self, name, self.swap_and_flatten(getattr(self, name)))
            self.generator_ready = True
        size = batch_size or self.buffer_size
        for start in range(0, self.buffer_size, size):
            yield self._get_samples(order[start : start + size])


class OwnReplay(ReplayBuffer):
    """The newest trials, of which batches are drawn by ``rng``, which may be replaced before each training."""

    rng: np.random.Generator

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Trials at random, some perhaps twice."""
        del env
        return self._get_samples(self.rng.integers(0, self.size(), size=batch_size))

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> ReplayBufferSamples:
        del env
        # What was only cut off has a next state that counts.
        ended = self.dones[batch_inds] * (1 - self.timeouts[batch_inds])
        fields = (
            self.observations[batch_inds, 0],
            self.actions[batch_inds, 0],
            self.next_observations[batch_inds, 0],
            ended,
            self.rewards[batch_inds],
        )
        return ReplayBufferSamples(*(self.to_torch(one) for one in fields))
