from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, ObsLeafDescriptor, Range

PARAMS = {
    "drop_rate": EnvParam(Choice((0.001, 0.01, 0.1)), weights=(0.5, 0.3, 0.2)),
    "load": EnvParam(Range(1, 1000, "int", log=True)),
    "kind": EnvParam(Choice(("text", "binary"))),
}
NUMBERS = range(1, 200)


def test_same_seed_same_contexts() -> None:
    one, other = EnvParams(PARAMS, seed=7), EnvParams(dict(PARAMS), seed=7)
    backwards = [other.context(number) for number in reversed(NUMBERS)]
    assert [one.context(number) for number in NUMBERS] == backwards[::-1]


def test_other_seed_other_contexts() -> None:
    assert [EnvParams(PARAMS, 7).context(n) for n in NUMBERS] != [EnvParams(PARAMS, 8).context(n) for n in NUMBERS]


@pytest.mark.parametrize("gone", list(PARAMS))
def test_a_parameter_less_does_not_move_the_others(gone: str) -> None:
    fewer = EnvParams({name: param for name, param in PARAMS.items() if name != gone}, seed=7)
    for number in NUMBERS:
        whole = EnvParams(PARAMS, seed=7).context(number)
        whole.pop(gone)
        assert fewer.context(number) == whole


def test_other_order_same_draws() -> None:
    turned = EnvParams(dict(reversed(PARAMS.items())), seed=7)
    assert all(turned.context(number) == EnvParams(PARAMS, seed=7).context(number) for number in NUMBERS)


def test_same_in_another_process() -> None:
    code = (
        "from tunegym.tuning.model.space import EnvParam, EnvParams\n"
        "from tunegym.tuning.model.space import Choice, Range\n"
        "params = EnvParams({'load': EnvParam(Range(0.0, 1.0)), 'kind': EnvParam(Choice(('a', 'b', 'c')))}, 3)\n"
        "print([params.context(number) for number in range(1, 20)])"
    )
    params = EnvParams({"load": EnvParam(Range(0.0, 1.0)), "kind": EnvParam(Choice(("a", "b", "c")))}, 3)
    env = {**os.environ, "PYTHONHASHSEED": "5"}
    there = subprocess.check_output([sys.executable, "-c", code], text=True, env=env).strip()
    assert there == repr([params.context(number) for number in range(1, 20)])


def test_equally_named_streams_are_independent() -> None:
    """Two parameters with the same candidates don't move together."""
    coin = EnvParam(Choice((0, 1)))
    params = EnvParams({"a": coin, "b": coin}, seed=1)
    counts = Counter(tuple(params.context(number).values()) for number in range(1, 4001))
    assert all(900 < counts[pair] < 1100 for pair in [(0, 0), (0, 1), (1, 0), (1, 1)])


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.0, 0.25, 0.75), (1 / 3, 1 / 3, 1 / 3)])
def test_weights(weights: tuple[float, ...]) -> None:
    """Chi-square over 20,000 draws: with 2 degrees of freedom 25 is far beyond any chance."""
    values = ("a", "b", "c")
    param = EnvParam(Choice(values), weights)
    draws = 20_000
    counts = Counter(param.draw(11, "p", number) for number in range(1, draws + 1))
    expected = {value: weight * draws for value, weight in zip(values, weights, strict=True)}
    assert all(counts[value] == 0 for value, count in expected.items() if count == 0)
    assert sum((counts[value] - count) ** 2 / count for value, count in expected.items() if count) < 25


def test_without_weights_evenly() -> None:
    param = EnvParam(Choice(("a", "b", "c", "d")))
    counts = Counter(param.draw(11, "p", number) for number in range(1, 20_001))
    assert sum((counts[value] - 5000) ** 2 / 5000 for value in "abcd") < 30


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6).filter(lambda weights: sum(weights) > 0.01),
    st.integers(),
    st.integers(1, 10**6),
)
def test_drawn_value_is_a_candidate_with_weight(weights: list[float], seed: int, number: int) -> None:
    total = sum(weights)
    param = EnvParam(Choice(tuple(range(len(weights)))), tuple(weight / total for weight in weights))
    drawn = param.draw(seed, "p", number)
    assert isinstance(drawn, int)
    assert weights[drawn] > 0.0


def test_no_env_params() -> None:
    assert not EnvParams({})
    assert EnvParams({}).context(5) == {}
    assert EnvParams(PARAMS)


# leaves of the observation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "box", "dim": 2, "low": 0, "high": 1}, None),
        ({"kind": "box", "low": -1.5}, None),
        ({"kind": "discrete", "n": 1}, None),
        ({"kind": "Box"}, 'kind must be "box" or "discrete", not \'Box\''),
        ({"kind": "box", "dim": 0}, "dim must be an integer of at least 1, not 0"),
        ({"kind": "box", "dim": True}, "dim must be"),
        ({"kind": "box", "n": 3}, "a box has a dim and no n, here n=3"),
        ({"kind": "box", "low": 1.0, "high": 1.0}, "low must be below high"),
        ({"kind": "box", "high": math.nan}, "low must be below high"),
        ({"kind": "box", "low": "0", "high": 1.0}, "low must be below high"),
        ({"kind": "discrete"}, "a discrete leaf needs n, an integer of at least 1, not None"),
        ({"kind": "discrete", "n": 2.0}, "a discrete leaf needs n"),
        ({"kind": "discrete", "n": 2, "dim": 2}, "neither dim nor bounds"),
        ({"kind": "discrete", "n": 2, "high": 1.0}, "neither dim nor bounds"),
    ],
)
def test_descriptor_of_a_leaf(settings: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert ObsLeafDescriptor(**settings) == ObsLeafDescriptor(**settings)
        return
    with pytest.raises(ValueError, match=message):
        ObsLeafDescriptor(**settings)
