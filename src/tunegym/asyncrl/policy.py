"""The actor-critic of ``async_ppo``: two small networks whose weights are one flat vector.

A collector runs it with numpy, so that it needs no torch; the learner runs the same code with torch, for gradients.
``xp`` is the one or the other. One vector is one column in the data plane, one gradient to reduce and one step of Adam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

HIDDEN_GAIN, VALUE_GAIN, ACTION_GAIN = math.sqrt(2.0), 1.0, 0.01  # so that the first policy is nearly uniform
LOG_2PI = math.log(2.0 * math.pi)


def load(checkpoint: str | Path) -> tuple[ActorCritic, np.ndarray]:
    """The network and the weights that ``async_ppo`` left in ``policy/checkpoint.pt``."""
    import torch

    state = torch.load(checkpoint, weights_only=True)["state"]
    return ActorCritic(**state["policy"]), state["vectors"][0].numpy()


@dataclass(frozen=True)
class ActorCritic:
    """A policy and its value function over flat observations."""

    inputs: int  # numbers of an observation
    heads: tuple[int, ...]  # the sizes of the choices of a discrete action; empty for a continuous one
    numbers: int  # of a continuous action
    layers: tuple[int, ...]  # widths of the hidden layers

    @classmethod
    def for_space(cls, inputs: int, actions: spaces.Space[Any], layers: tuple[int, ...]) -> ActorCritic:
        """One that chooses from a ``Discrete`` or ``MultiDiscrete`` that counts from 0, or a ``Box``."""
        if isinstance(actions, spaces.Discrete):
            return cls(inputs, (int(actions.n),), 0, layers)
        if isinstance(actions, spaces.MultiDiscrete):
            return cls(inputs, tuple(int(size) for size in actions.nvec), 0, layers)
        return cls(inputs, (), math.prod(actions.shape or ()), layers)

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the weights in the vector: actor, critic, and the log of a continuous action's deviation."""
        found: list[tuple[int, ...]] = []
        for outputs in (sum(self.heads) or self.numbers, 1):
            widths = (self.inputs, *self.layers, outputs)
            for before, after in pairwise(widths):
                found += [(before, after), (after,)]
        return [*found, (self.numbers,)]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(map(math.prod, self.shapes))

    def first_weights(self, rng: np.random.Generator) -> np.ndarray:
        """Orthogonal layers, and no biases."""
        parts: list[np.ndarray] = []
        last = len(self.layers)
        for at, shape in enumerate(self.shapes):
            if len(shape) == 1:
                parts.append(np.zeros(shape))
                continue
            critic, layer = divmod(at // 2, last + 1)
            gain = HIDDEN_GAIN if layer < last else VALUE_GAIN if critic else ACTION_GAIN
            q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
            q = q * np.sign(np.diag(r))
            parts.append(gain * (q if shape[0] >= shape[1] else q.T))
        return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)

    # the networks, with numpy or torch ----------------------------------------------------------------

    def _parts(self, weights: Any) -> list[Any]:
        parts, at = [], 0
        for shape in self.shapes:
            count = math.prod(shape)
            parts.append(weights[at : at + count].reshape(shape))
            at += count
        return parts

    def _network(self, parts: list[Any], seen: Any, xp: Any) -> Any:
        for at in range(0, len(parts) - 2, 2):
            seen = xp.tanh(seen @ parts[at] + parts[at + 1])
        return seen @ parts[-2] + parts[-1]

    def outputs(self, weights: Any, seen: Any, xp: Any = np) -> tuple[Any, Any]:
        """The actor's outputs, and the log deviation of a continuous action."""
        parts = self._parts(weights)
        half = (len(parts) - 1) // 2
        return self._network(parts[:half], seen, xp), parts[-1]

    def values(self, weights: Any, seen: Any, xp: Any = np) -> Any:
        """The expected return from each observation."""
        parts = self._parts(weights)
        return self._network(parts[(len(parts) - 1) // 2 : -1], seen, xp)[..., 0]

    def judged(self, weights: Any, seen: Any, chosen: Any, xp: Any = np) -> tuple[Any, Any]:
        """Log-probability of each choice, and the entropy there. ``seen`` and ``chosen`` have a row for each step."""
        outputs, deviation = self.outputs(weights, seen, xp)
        if not self.heads:
            away = (chosen - outputs) / xp.exp(deviation)
            log_prob = -0.5 * (away**2 + LOG_2PI) - deviation
            return log_prob.sum(-1), (0.5 + 0.5 * LOG_2PI + deviation).sum() + 0.0 * outputs[..., 0]
        log_probs, entropies = 0.0, 0.0
        for place, logs in enumerate(self._log_probs(outputs, xp)):
            rows = xp.arange(len(logs))
            log_probs = log_probs + logs[rows, chosen[:, place]]
            entropies = entropies - (xp.exp(logs) * logs).sum(-1)
        return log_probs, entropies

    def _log_probs(self, outputs: Any, xp: Any) -> list[Any]:
        """For each head, a row of log-probabilities for each step."""
        found, at = [], 0
        for size in self.heads:
            part = outputs[..., at : at + size]
            part = part - xp.amax(part, axis=-1, keepdims=True)
            found.append(part - xp.log(xp.exp(part).sum(-1))[..., None])
            at += size
        return found

    # acting, with numpy -------------------------------------------------------------------------------

    def act(self, weights: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """A draw from the policy for one observation, and its log-probability."""
        outputs, deviation = self.outputs(weights, seen)
        if self.heads:
            heads = self._log_probs(outputs, np)
            chosen = np.array([(logs + rng.gumbel(size=len(logs))).argmax() for logs in heads], dtype=np.int64)
            return chosen, float(sum(logs[choice] for logs, choice in zip(heads, chosen, strict=True)))
        chosen = (outputs + np.exp(deviation) * rng.standard_normal(self.numbers)).astype(np.float32)
        return chosen, float(self.judged(weights, seen[None], chosen[None])[0][0])

    def greedy(self, weights: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, float | None]:
        """The most probable choice for one observation, and its probability if that is one."""
        outputs, _ = self.outputs(weights, seen)
        if not self.heads:
            return outputs.astype(np.float32), None
        heads = self._log_probs(outputs, np)
        chosen = np.array([logs.argmax() for logs in heads], dtype=np.int64)
        return chosen, float(np.exp(sum(logs.max() for logs in heads)))
