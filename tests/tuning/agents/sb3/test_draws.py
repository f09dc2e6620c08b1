"""No silent randomness: what everybody shares is as it was, and no draw depends on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunegym.tuning.agents.sb3 import learners

    monkeypatch.setattr(learners, "PRETRAIN_ROUNDS", 3)


def shared() -> tuple[Any, ...]:
    """Everything that is everybody's."""
    import torch

    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist(), torch.get_num_threads()


def everything(learner: Any, step: Make) -> list[Any]:
    """Use an algorithm for all that it can do; what it chose."""
    from tunegym.tuning.agents.sb3.algorithms import state_of

    old = [step(learner, number, float(number % 3), terminated=True) for number in range(100, 120)]
    learner.warm_up(old)
    learner.pretrain(old)
    chosen = []
    for number in range(1, 13):
        one = step(learner, number, float(number % 4), terminated=True)
        chosen.append(one.decision.chosen.tolist())
        learner.take(one)
        if learner.due():
            learner.train(number)
    seen = np.ones(3, dtype=np.float32)
    learner.restore(state_of(learner.model))
    return [*chosen, learner.greedy(seen)[0].tolist(), learner.judge(seen, one.decision.chosen).chosen.tolist()]


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "sac"])
def test_what_everybody_shares_is_neither_moved_nor_looked_at(agent: str, learner: Make, step: Make) -> None:
    import torch

    threads = torch.get_num_threads()
    chosen = []
    try:
        for count, seed in ((3, 1), (1, 2)):
            torch.set_num_threads(count)
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            before = shared()
            chosen.append(everything(learner(agent, gamma=0.5), step))
            assert shared() == before
    finally:
        torch.set_num_threads(threads)
    assert chosen[0] == chosen[1]


def test_they_are_given_back_also_after_an_error() -> None:
    import torch

    from tunegym.tuning.agents.sb3.algorithms import Draws

    before = shared()
    with pytest.raises(RuntimeError), Draws(1, "x").stream("a"):
        torch.cat([torch.rand(3, 2), torch.rand(3, 1)])
    assert shared() == before


def test_a_stream_depends_on_its_names_alone() -> None:
    import torch

    from tunegym.tuning.agents.sb3.algorithms import Draws

    def drawn(seed: int, name: str, *names: str | int) -> list[float]:
        with Draws(seed, name).stream(*names):
            return torch.rand(3).tolist()

    assert drawn(1, "ppo", "train", 5) == drawn(1, "ppo", "train", 5)
    others = [drawn(1, "ppo", "train", 6), drawn(2, "ppo", "train", 5), drawn(1, "a2c", "train", 5)]
    assert drawn(1, "ppo", "train", 5) not in others
