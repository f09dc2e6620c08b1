from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.randomness import integer, unit

paths = st.lists(st.one_of(st.text(), st.integers()), max_size=4)


@given(st.integers(), st.integers(1, 2**64), paths)
def test_draws_are_in_their_interval_and_repeat(seed: int, bound: int, path: list[str | int]) -> None:
    assert 0.0 <= unit(seed, *path) == unit(seed, *path) < 1.0
    assert 0 <= integer(seed, bound, *path) == integer(seed, bound, *path) < bound


@given(st.tuples(st.integers(), paths), st.tuples(st.integers(), paths))
def test_other_names_give_other_numbers(one: tuple[int, list[str | int]], other: tuple[int, list[str | int]]) -> None:
    assert (unit(one[0], *one[1]) == unit(other[0], *other[1])) == (repr(one) == repr(other))


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
    assert integer(42, 1000, "grid_search", "start") == 431
