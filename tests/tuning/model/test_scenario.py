"""Settings that the constraints of an experiment allow."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.expression import Constraint, parse
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Range, Space

SPACE = Space({"x": Range(0, 9, "int", step=1), "mode": Choice(("a", "b"))}, {"limit": 5})
CONTEXTS = EnvParams({"load": EnvParam(Choice((1, 2)))})


def experiment(*constraints: Constraint, space: Space = SPACE) -> Experiment:
    return Experiment(
        name="e",
        workload="python",
        workload_args={},
        space=space,
        env_params=CONTEXTS,
        agent="random_search",
        agent_config=None,
        agent_metrics=("m",),
        constraints=constraints,
    )


def names(space: Space = SPACE) -> list[str]:
    return [*space.knobs, *space.fixed, "load"]


@given(st.sets(st.integers(0, 9)), st.integers(0, 2**32), st.integers(1, 1000), st.sampled_from([1, 2]))
def test_a_draw_is_allowed_if_anything_is(allowed: set[int], seed: int, number: int, load: int) -> None:
    """It is the plain draw if that is allowed, and the same again for the same arguments."""
    text = f"x * load in {sorted(x * load for x in allowed)} and mode == 'a'" if allowed else "x > limit * 2"
    constrained = experiment(parse(text, names()))
    drawn, plain = (tested.draw_allowed({"load": load}, seed, "test", number) for tested in (constrained, experiment()))
    assert (drawn is None) == (not allowed)
    assert plain == SPACE.draw(seed, "test", number)
    if drawn is not None:
        assert drawn["x"] in allowed
        assert drawn["mode"] == "a"
        assert drawn == constrained.draw_allowed({"load": load}, seed, "test", number)
        assert drawn == plain or not constrained.allows(plain or {}, {"load": load})


def test_allowed_settings_come_equally_often() -> None:
    constrained = experiment(parse("x >= 8", names()))
    draws = [constrained.draw_allowed({"load": 1}, 0, "test", number) for number in range(2000)]
    counts = Counter(repr(draw) for draw in draws)
    assert len(counts) == 4
    assert min(counts.values()) > 400


def test_the_only_setting_of_a_large_grid_is_found() -> None:
    space = Space({name: Range(0, 45, "int", step=1) for name in ("x", "y", "z")})
    constrained = experiment(parse("x == 3 and y == 5 and z == 7", names(space)), space=space)
    assert constrained.draw_allowed({"load": 1}, 0, "test", 1) == {"x": 3, "y": 5, "z": 7}


def test_functions_are_not_asked() -> None:
    """They may be slow, or have effects: only a trial calls them."""
    calls: list[object] = []
    constrained = experiment(Constraint("module:function", lambda parameters: bool(calls.append(parameters))))
    assert constrained.draw_allowed({"load": 1}, 0, "test", 1) is not None
    assert not calls
