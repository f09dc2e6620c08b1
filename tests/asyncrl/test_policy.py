"""The actor-critic: numpy and torch say the same, and choices follow their probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tunegym.asyncrl.policy import ActorCritic

SPACES = [spaces.Discrete(3), spaces.MultiDiscrete([3, 4]), spaces.Box(-1.0, 1.0, (2,))]


@pytest.mark.parametrize("actions", SPACES, ids=lambda space: type(space).__name__)
def test_numpy_and_torch_agree(actions: spaces.Space) -> None:
    policy = ActorCritic.for_space(4, actions, (8, 8))
    rng = np.random.default_rng(1)
    weights = policy.first_weights(rng) + rng.normal(0, 0.1, policy.size).astype(np.float32)
    seen = rng.normal(size=(6, 4)).astype(np.float32)
    drawn = [policy.act(weights, one, rng) for one in seen]
    chosen = np.stack([one for one, _ in drawn])
    log_probs, entropy = policy.judged(weights, seen, chosen)
    both = torch.as_tensor(weights), torch.as_tensor(seen), torch.as_tensor(chosen)
    theirs, their_entropy = policy.judged(*both, torch)
    np.testing.assert_allclose(log_probs, [log_prob for _, log_prob in drawn], atol=1e-5)
    np.testing.assert_allclose(log_probs, theirs, atol=1e-5)
    np.testing.assert_allclose(np.broadcast_to(entropy, 6), their_entropy, atol=1e-5)
    np.testing.assert_allclose(policy.values(weights, seen), policy.values(*both[:2], torch), atol=1e-5)


def test_draws_follow_the_probabilities() -> None:
    policy = ActorCritic.for_space(2, spaces.MultiDiscrete([2, 3]), (4,))
    rng = np.random.default_rng(0)
    weights, seen = policy.first_weights(rng) + rng.normal(0, 1, policy.size), np.array([0.5, -1.0])
    cells = [(first, second) for first in range(2) for second in range(3)]
    again = np.broadcast_to(seen, (len(cells), 2))
    expected = np.exp(policy.judged(weights, again, np.array(cells))[0])
    assert expected.sum() == pytest.approx(1.0)
    draws = [tuple(policy.act(weights, seen, rng)[0]) for _ in range(4000)]
    found = [draws.count(cell) / len(draws) for cell in cells]
    np.testing.assert_allclose(found, expected, atol=0.04)
    chosen, chance = policy.greedy(weights, seen)
    assert tuple(chosen) == cells[int(expected.argmax())]
    assert chance == pytest.approx(expected.max())
