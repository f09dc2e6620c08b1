"""Search without learning: choices by number, over knobs and over a live system's actions, and the whole grid."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.sample_servers import SPACES

from tunegym.tuning.agents.base import AgentConfig
from tunegym.tuning.agents.search import BLOCK, GridConfig, GridSearch, RandomSearch, draw_actions
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, EnvParam, Range
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.spaces import element_of

Benches = Callable[..., Any]

KNOBS = {"mode": Choice(("a", "b", "c")), "n": Range(3, 64, "int", log=True), "f": Range(-1.0, 1.0)}
GRID = {"a": Choice(("x", "y")), "b": Range(0.0, 1.0, step=0.25), "c": Choice((1, 1.0, True))}


def measure(**_: Any) -> dict[str, float]:
    return {"m": 1.0}


def drawn(agent: RandomSearch, numbers: Any) -> list[dict[str, Any]]:
    return [agent.select_action(Observation(number, {})) for number in numbers]


def test_a_draw_depends_on_seed_knob_and_number_alone(bench: Benches) -> None:
    one = bench(measure, knobs=KNOBS)
    forwards = drawn(RandomSearch(one.engine, None, 3), range(1, 100))
    assert drawn(RandomSearch(one.engine, None, 3), reversed(range(1, 100))) == forwards[::-1]
    assert drawn(RandomSearch(one.engine, None, 4), range(1, 100)) != forwards
    assert drawn(RandomSearch(one.engine, AgentConfig(random_seed=3), 4), range(1, 100)) == forwards
    fewer = bench(measure, knobs={name: KNOBS[name] for name in ("f", "mode")})
    part = drawn(RandomSearch(fewer.engine, None, 3), range(1, 100))
    assert part == [{"f": action["f"], "mode": action["mode"]} for action in forwards]


# actions of live systems ------------------------------------------------------------------------------

HALF = spaces.Box(np.array([0.0, -np.inf, -np.inf]), np.array([np.inf, 3.0, np.inf]), dtype=np.float64)
EDGES = {**SPACES, "half": HALF, "number": spaces.Box(-1.0, 1.0, (), dtype=np.float32), "none": spaces.Tuple([])}


@pytest.mark.parametrize("start_action", ["first", "random"])
def test_random_search_proposes_what_the_expressions_allow(bench: Benches, start_action: Any) -> None:
    """At any width, and in a context that allows less than another one."""
    chosen = []
    for slots in (1, 3):
        search = bench(
            lambda x, load: {"m": x * load},
            knobs={"x": Range(0, 100, "int")},
            env_params={"load": EnvParam(Choice((1, 50)))},
            constraints=["x >= 2 * load"],
            budget=Budget(agent_steps=40),
            slots=slots,
        )
        RandomSearch(search.engine, AgentConfig(start_action=start_action), 1).run()
        assert all(trial.measured for trial in search.trials())
        chosen.append([trial.action for trial in search.trials()])
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("space", EDGES.values(), ids=list(EDGES))
def test_live_actions_depend_on_seed_and_number_alone(space: spaces.Space[Any]) -> None:
    own = element_of(space)
    whole = list(islice(draw_actions(space, 0, "test"), BLOCK + 20))
    assert all(space.contains(own(action)) for action in whole)
    for taken in (1, BLOCK - 1, BLOCK, BLOCK + 7):
        rest = islice(draw_actions(space, 0, "test", taken), BLOCK + 20 - taken)
        assert [repr(action) for action in rest] == [repr(action) for action in whole[taken:]]


# grids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_grid_tries_every_point_once(bench: Benches, slots: int, seed: int | None) -> None:
    """In order from the first point, or round from a random one; then it ends by itself."""
    one = bench(measure, knobs=GRID, slots=slots)
    config = GridConfig() if seed is None else GridConfig(start_action="random", random_seed=seed)
    assert GridSearch(one.engine, config).run() == 0
    chosen = [repr(dict(trial.action)) for trial in one.trials()]
    whole = [repr(one.engine.space.point(index)) for index in range(30)]
    start = whole.index(chosen[0])
    assert chosen == whole[start:] + whole[:start]
    assert seed is not None or start == 0
