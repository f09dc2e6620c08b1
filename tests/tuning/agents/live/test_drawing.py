"""Random actions by number."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.testing.sample_servers import SPACES
from tunegym.tuning.agents.live.drawing import BLOCK, ActionDraws
from tunegym.tuning.spaces import SpaceError, describe, element_of

EDGES: dict[str, spaces.Space[Any]] = {
    "half": spaces.Box(np.array([0.0, -np.inf, -np.inf]), np.array([np.inf, 3.0, np.inf]), dtype=np.float64),
    "widest": spaces.Box(-1.7e308, 1.7e308, (2,), dtype=np.float64),
    "narrow": spaces.Box(np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1)), (2,), dtype=np.float32),
    "bytes": spaces.Box(0, 255, (2,), dtype=np.uint8),
    "longs": spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), dtype=np.int64),
    "single": spaces.Box(-1.0, 1.0, (), dtype=np.float32),
    "empty": spaces.Dict({}),
    "none": spaces.Tuple([]),
}

SMALL = {name: space for name, space in {**SPACES, "half": EDGES["half"]}.items() if name != "everything"}
"""Those that are quick to spell."""


def drawn(space: spaces.Space[Any], count: int, seed: int = 0) -> list[Any]:
    return list(islice(ActionDraws(space, seed, "test").since(0), count))


@pytest.mark.parametrize("space", [*SPACES.values(), *EDGES.values()], ids=[*SPACES, *EDGES])
def test_every_draw_is_of_the_space(space: spaces.Space[Any]) -> None:
    own = element_of(space)
    for action in drawn(space, BLOCK + 3):
        assert space.contains(own(action)), action


@pytest.mark.parametrize("space", SMALL.values(), ids=list(SMALL))
def test_a_draw_depends_on_seed_and_number_alone(space: spaces.Space[Any]) -> None:
    whole = [repr(action) for action in drawn(space, 3 * BLOCK)]
    draws = ActionDraws(space, 0, "test")
    for taken in (0, 1, BLOCK - 1, BLOCK, BLOCK + 7):
        assert [repr(action) for action in draws.after(taken)] == whole[taken : (taken // BLOCK + 1) * BLOCK]
        assert [repr(action) for action in islice(draws.since(taken), 300)] == whole[taken : taken + 300]
    assert [repr(action) for action in drawn(space, 300, seed=1)] != whole[:300]


def test_every_value_is_drawn() -> None:
    assert {int(action) for action in drawn(spaces.Discrete(7, start=-3), 500)} == set(range(-3, 4))
    rows = np.stack(drawn(spaces.MultiDiscrete([2, 3], start=[5, -1]), 500))
    assert {tuple(row) for row in rows.tolist()} == {(a, b) for a in (5, 6) for b in (-1, 0, 1)}
    numbers = np.stack(drawn(spaces.Box(2.0, 4.0, (1,)), 4000))
    assert abs(numbers.mean() - 3.0) < 0.05
    assert numbers.min() < 2.01
    assert numbers.max() > 3.99


def test_a_space_that_nobody_draws_from_is_named() -> None:
    with pytest.raises(SpaceError, match="Text"):
        ActionDraws(spaces.Text(5), 0, "test")
    assert describe(spaces.Discrete(2))
