from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.randomness import even_unit, integer, unit

paths = st.lists(st.one_of(st.text(), st.integers()), max_size=4)


@given(st.integers(), st.integers(1, 2**64), paths)
def test_draws_are_in_their_interval_and_repeat(seed: int, bound: int, path: list[str | int]) -> None:
    assert 0.0 <= unit(seed, *path) == unit(seed, *path) < 1.0
    assert 0 <= integer(seed, bound, *path) == integer(seed, bound, *path) < bound


@given(st.tuples(st.integers(), paths), st.tuples(st.integers(), paths))
def test_other_names_give_other_numbers(one: tuple[int, list[str | int]], other: tuple[int, list[str | int]]) -> None:
    assert (unit(one[0], *one[1]) == unit(other[0], *other[1])) == (repr(one) == repr(other))


@given(st.integers(), st.integers(0, 1000), st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_even_draws_take_every_part_equally_often(seed: int, block: int, parts: int) -> None:
    drawn = [even_unit(seed, 24 * block + place, "env_params", "load") for place in range(24)]
    assert sorted(int(one * parts) for one in drawn) == sorted(list(range(parts)) * (24 // parts))


def test_even_draws_are_uniform_and_their_order_is_random() -> None:
    """The first numbers of 4,000 seeds; 60 is far beyond any chance with 15 degrees of freedom."""
    drawn = [(int(4 * even_unit(seed, 1, "load")), int(4 * even_unit(seed, 2, "load"))) for seed in range(4000)]
    first, pairs = Counter(one for one, _ in drawn), Counter(drawn)
    assert all(abs(first[part] - 1000) < 150 for part in range(4))
    # Of 24 parts the second number can't have the first one's again.
    expected = {(a, b): 4000 * (6 / 24) * ((5 if a == b else 6) / 23) for a in range(4) for b in range(4)}
    assert sum((pairs[pair] - count) ** 2 / count for pair, count in expected.items()) < 60


def test_same_in_another_process() -> None:
    draws = "[unit(s, 'env_params', 'é', n) for s in (0, -7) for n in (1, 2)]"
    code = f"from tunegym.core.randomness import unit; print({draws})"
    here = [unit(seed, "env_params", "é", number) for seed in (0, -7) for number in (1, 2)]
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env).strip() == repr(here)


def test_draws_stay_as_they_are() -> None:
    """A later tunegym resumes a journal of today: the draws must not move."""
    assert unit(42, "env_params", "drop_rate", 1) == 0.31267346313911726
    assert even_unit(42, 1, "env_params", "drop_rate") == 0.5546947276307965
    assert integer(42, 1000, "grid_search", "start") == 431
