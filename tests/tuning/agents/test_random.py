from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.random import RandomSearch
from tunegym.tuning.model.space import Choice, Range
from tunegym.tuning.model.trial import Observation

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


def test_first_start(bench: Benches) -> None:
    """Every knob's first value, then as ever."""
    one = bench(measure, knobs=KNOBS)
    first = drawn(RandomSearch(one.engine, AgentConfig(start_action="first")), range(1, 20))
    assert first[0] == {"mode": "a", "n": 3, "f": -1.0}
    assert first[1:] == drawn(RandomSearch(one.engine), range(2, 20))


def test_covers_its_space_evenly(bench: Benches) -> None:
    """Chi-square with 2 degrees of freedom: 25 is far beyond any chance."""
    one = bench(measure, knobs=KNOBS)
    actions = drawn(RandomSearch(one.engine, None, 1), range(1, 6001))
    counts = Counter(action["mode"] for action in actions)
    assert sum((counts[mode] - 2000) ** 2 / 2000 for mode in "abc") < 25
    assert {action["n"] for action in actions} == set(range(3, 65))
    assert abs(sum(action["f"] for action in actions)) < 200
    assert all(one.engine.space.accept(action) == action for action in actions)
