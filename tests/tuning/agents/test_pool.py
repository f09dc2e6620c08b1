"""Trials of all contexts as evidence for one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.tuning.agents.pool import Pool
from tunegym.tuning.model.space import Choice, EnvParam, Range, Space

SPACE = Space({"x": Range(0, 9, dtype="int")})
LISTED = {"c": EnvParam(Choice(("a", "b")))}
LOADS = {"c": EnvParam(Range(1.0, 10_000.0, log=True))}


def pool_of(params: Any, *trials: tuple[Any, int, float]) -> Pool:
    pool = Pool(params, SPACE, 1)
    for context, x, value in trials:
        pool.add({"c": context}, {"x": x}, np.array([float(x)]), value)
    return pool


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(-5, 5)), max_size=30), st.data())
def test_ranks_are_those_within_the_context(trials: Any, data: Any) -> None:
    """They come out the same whatever the order, and however good one context is as a whole."""
    ranks = pool_of(LISTED, *trials).ranks()
    for (context, _, value), rank in zip(trials, ranks, strict=True):
        rivals = [other for where, _, other in trials if where == context]
        below, same = sum(one < value for one in rivals), sum(one == value for one in rivals) - 1
        assert rank == pytest.approx((below + 0.5 * same + 1) / (len(rivals) + 1))
    moved = [(context, x, value + (1000.0 if context == "b" else 0.0)) for context, x, value in trials]
    assert pool_of(LISTED, *moved).ranks() == pytest.approx(ranks)
    mixed = data.draw(st.permutations(list(enumerate(trials))))
    shuffled = pool_of(LISTED, *(trial for _, trial in mixed)).ranks()
    assert sorted(shuffled) == pytest.approx(sorted(ranks))


def test_neighbours_in_a_range_are_the_own_context() -> None:
    """On the range's own scale."""
    pool = pool_of(LOADS, (1.0, 0, 1.0), (1.5, 1, 2.0), (9000.0, 2, 1000.0), (10_000.0, 3, 999.0))
    assert pool.ranks() == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3], abs=0.01)
    weights = pool.weights({"c": 1.2})
    assert weights[:2].min() > 1.1 * weights[2:].max()


def test_failures_rank_last() -> None:
    assert list(np.argsort(pool_of(LISTED, ("a", 1, -1e9), ("a", 2, -np.inf), ("a", 3, 0.0)).ranks())) == [1, 0, 2]


def test_contexts_that_contradict_count_less() -> None:
    """Own trials count most, then those of a context that agrees; one that says the opposite hardly counts."""
    draw = np.random.default_rng(0)
    params = {"c": EnvParam(Choice(("a", "like", "against")))}
    trials = [(("a", "like", "against")[n % 3], int(draw.integers(10)), 0.0) for n in range(90)]
    told = [(c, x, float(-x if c == "against" else 10 * x if c == "like" else x)) for c, x, _ in trials]
    weights = dict(zip((one[0] for one in told), pool_of(params, *told).weights({"c": "a"}), strict=True))
    assert weights["a"] == 1.0
    assert weights["like"] > 0.15
    assert weights["against"] == 0.0
    assert pool_of(params, *told[:5]).weights({"c": "a"}).min() > 0.8, "unless little is known"
