"""The library's buffers for several lanes, which draw from a generator of their own instead of numpy's shared one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

_FIELDS = ("actions", "values", "log_probs", "advantages", "returns")
_COLUMNS = (*_FIELDS, "rewards", "episode_starts")


class _Shuffled:
    """What rollouts have in common, whatever their observations are."""

    rng: np.random.Generator

    def cut(self: Any) -> None:
        """Let what is there be the whole rollout: no more will come."""
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[: self.pos])
        if isinstance(self.observations, dict):
            self.observations = {key: rows[: self.pos] for key, rows in self.observations.items()}
        else:
            self.observations = self.observations[: self.pos]
        self.buffer_size, self.full = self.pos, True

    def get(self: Any, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Every step once, in batches."""
        count = self.buffer_size * self.n_envs
        order = self.rng.permutation(count)
        if not self.generator_ready:
            for name in _FIELDS:
                setattr(self, name, self.swap_and_flatten(getattr(self, name)))
            if isinstance(self.observations, dict):
                self.observations = {key: self.swap_and_flatten(rows) for key, rows in self.observations.items()}
            else:
                self.observations = self.swap_and_flatten(self.observations)
            self.generator_ready = True
        size = batch_size or count
        for start in range(0, count, size):
            yield self._get_samples(order[start : start + size])


class Rollout(_Shuffled, RolloutBuffer):
    """An update's steps, whose observations are arrays."""

    def __init__(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rng = rng


class DictRollout(_Shuffled, DictRolloutBuffer):
    """An update's steps, whose observations are arrays by name."""

    def __init__(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rng = rng


class _Drawn:
    """What replay buffers have in common, whatever their observations are."""

    rng: np.random.Generator

    def _places(self: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rng.integers(0, self.size(), size=count), self.rng.integers(0, self.n_envs, size=count)

    def _outcomes(self: Any, at: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
        # What was only cut off has a next state that counts.
        ended = self.dones[at] * (1 - self.timeouts[at])
        return {
            "actions": self.to_torch(self.actions[at]),
            "dones": self.to_torch(ended.reshape(-1, 1)),
            "rewards": self.to_torch(self.rewards[at].reshape(-1, 1)),
        }


class Replay(_Drawn, ReplayBuffer):
    """The newest steps, whose observations are arrays."""

    def __init__(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rng = rng

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Steps at random, some perhaps twice."""
        del env
        at = self._places(batch_size)
        seen, after = self.to_torch(self.observations[at]), self.to_torch(self.next_observations[at])
        return ReplayBufferSamples(observations=seen, next_observations=after, **self._outcomes(at))


class DictReplay(_Drawn, DictReplayBuffer):
    """The newest steps, whose observations are arrays by name."""

    def __init__(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rng = rng

    def sample(self, batch_size: int, env: Any = None) -> DictReplayBufferSamples:
        """Steps at random, some perhaps twice."""
        del env
        at = self._places(batch_size)
        seen = {key: self.to_torch(rows[at]) for key, rows in self.observations.items()}
        after = {key: self.to_torch(rows[at]) for key, rows in self.next_observations.items()}
        return DictReplayBufferSamples(observations=seen, next_observations=after, **self._outcomes(at))
