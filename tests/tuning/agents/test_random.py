from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.sample_servers import SPACES

from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.agents.random import BLOCK, ActionDraws, RandomSearch
from tunegym.tuning.model.space import Choice, Range
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.spaces import SpaceError, describe, element_of

Benches = Callable[..., Any]

KNOBS = {"mode": Choice(("a", "b", "c")), "n": Range(3, 64, "int", log=True), "f": Range(-1.0, 1.0)}


def measure(**_: Any) -> dict[str, float]:
    return {"m": 1.0}


def drawn(agent: RandomSearch, numbers: Any) -> list[dict[str, Any]]:
    return [agent.select_action(Observation(number, {})) for number in numbers]


def test_a_draw_belongs_to_its_number(bench: Benches) -> None:
    """Not to the moment: asked in any order, by any instance, it is the same."""
    one = bench(measure, knobs=KNOBS)
    forwards = drawn(RandomSearch(one.engine, None, 3), range(1, 100))
    assert drawn(RandomSearch(one.engine, None, 3), reversed(range(1, 100))) == forwards[::-1]
    assert drawn(RandomSearch(one.engine, None, 4), range(1, 100)) != forwards
    assert drawn(RandomSearch(one.engine, AgentConfig(random_seed=3), 4), range(1, 100)) == forwards


def test_another_knob_does_not_move_the_draws(bench: Benches) -> None:
    whole = drawn(RandomSearch(bench(measure, knobs=KNOBS).engine), range(1, 50))
    fewer = {name: KNOBS[name] for name in ("f", "mode")}
    part = drawn(RandomSearch(bench(measure, knobs=fewer).engine), range(1, 50))
    assert part == [{"f": action["f"], "mode": action["mode"]} for action in whole]


def test_covers_its_space_evenly(bench: Benches) -> None:
    """Chi-square with 2 degrees of freedom: 25 is far beyond any chance."""
    one = bench(measure, knobs=KNOBS)
    actions = drawn(RandomSearch(one.engine, None, 1), range(1, 6001))
    counts = Counter(action["mode"] for action in actions)
    assert sum((counts[mode] - 2000) ** 2 / 2000 for mode in "abc") < 25
    assert {action["n"] for action in actions} == set(range(3, 65))
    assert abs(sum(action["f"] for action in actions)) < 200
    assert all(one.engine.space.accept(action) == action for action in actions)


# actions of live systems ---------------------------------------------------------------------------

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


def actions_of(space: spaces.Space[Any], count: int, seed: int = 0) -> list[Any]:
    return list(islice(ActionDraws(space, seed, "test").since(0), count))


@pytest.mark.parametrize("space", [*SPACES.values(), *EDGES.values()], ids=[*SPACES, *EDGES])
def test_every_draw_is_of_the_space(space: spaces.Space[Any]) -> None:
    own = element_of(space)
    for action in actions_of(space, BLOCK + 3):
        assert space.contains(own(action)), action


@pytest.mark.parametrize("space", SMALL.values(), ids=list(SMALL))
def test_a_draw_depends_on_seed_and_number_alone(space: spaces.Space[Any]) -> None:
    whole = [repr(action) for action in actions_of(space, 3 * BLOCK)]
    draws = ActionDraws(space, 0, "test")
    for taken in (0, 1, BLOCK - 1, BLOCK, BLOCK + 7):
        assert [repr(action) for action in draws.after(taken)] == whole[taken : (taken // BLOCK + 1) * BLOCK]
        assert [repr(action) for action in islice(draws.since(taken), 300)] == whole[taken : taken + 300]
    assert [repr(action) for action in actions_of(space, 300, seed=1)] != whole[:300]


def test_every_value_is_actions_of() -> None:
    assert {int(action) for action in actions_of(spaces.Discrete(7, start=-3), 500)} == set(range(-3, 4))
    rows = np.stack(actions_of(spaces.MultiDiscrete([2, 3], start=[5, -1]), 500))
    assert {tuple(row) for row in rows.tolist()} == {(a, b) for a in (5, 6) for b in (-1, 0, 1)}
    numbers = np.stack(actions_of(spaces.Box(2.0, 4.0, (1,)), 4000))
    assert abs(numbers.mean() - 3.0) < 0.05
    assert numbers.min() < 2.01
    assert numbers.max() > 3.99


def test_a_space_that_nobody_draws_from_is_named() -> None:
    with pytest.raises(SpaceError, match="Text"):
        ActionDraws(spaces.Text(5), 0, "test")
    assert describe(spaces.Discrete(2))
