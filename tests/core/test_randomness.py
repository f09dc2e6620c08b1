from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunegym.core.randomness import integer, unit

names = st.one_of(st.text(), st.integers())


@given(st.integers(), st.lists(names, max_size=4))
def test_unit_is_in_its_interval(seed: int, path: list[str | int]) -> None:
    value = unit(seed, *path)
    assert 0.0 <= value < 1.0
    assert value == unit(seed, *path)


@given(st.integers(), st.integers(1, 2**64), st.lists(names, max_size=4))
def test_integer_is_below_its_bound(seed: int, bound: int, path: list[str | int]) -> None:
    value = integer(seed, bound, *path)
    assert 0 <= value < bound
    assert value == integer(seed, bound, *path)


def test_same_in_another_process() -> None:
    """Whatever that one hashes strings with."""
    draws = "[unit(s, 'env_params', 'é', n) for s in (0, -7) for n in (1, 2)]"
    code = f"from tunegym.core.randomness import unit; print({draws})"
    here = [unit(seed, "env_params", "é", number) for seed in (0, -7) for number in (1, 2)]
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env).strip() == repr(here)


def test_stays_what_it_was() -> None:
    """A journal of today is resumed by the tunegym of tomorrow: the draws must not move."""
    assert unit(42, "env_params", "drop_rate", 1) == 0.31267346313911726
    assert integer(42, 1000, "grid_search", "start") == 431


@pytest.mark.parametrize(
    "other",
    [(1, "a", "b"), (0, "a", "c"), (0, "b", "a"), (0, "ab"), (0, "a"), (0, "a", "b", 1), (0, "a', 'b"), (0, "a,b")],
)
def test_other_names_other_numbers(other: tuple[int, str]) -> None:
    assert unit(0, "a", "b") != unit(*other)


def test_a_number_is_not_its_text() -> None:
    assert unit(0, "n", 1) != unit(0, "n", "1")


def test_uniform() -> None:
    """Chi-square over 20 cells: with 19 degrees of freedom 60 is far beyond any chance."""
    draws = 20_000
    for counts in (
        Counter(int(unit(3, "u", n) * 20) for n in range(draws)),
        Counter(integer(3, 20, "i", n) for n in range(draws)),
    ):
        expected = draws / 20
        assert sum((counts[cell] - expected) ** 2 / expected for cell in range(20)) < 60


def test_neighbours_are_independent() -> None:
    """Neither trial to trial nor name to name."""
    ours = np.array([unit(0, "a", n) for n in range(5000)])
    other = np.array([unit(0, "b", n) for n in range(5000)])
    assert abs(np.corrcoef(ours, other)[0, 1]) < 0.07
    assert abs(np.corrcoef(ours[1:], ours[:-1])[0, 1]) < 0.07


def test_no_global_generator_is_touched() -> None:
    before = random.getstate(), repr(np.random.get_state())
    unit(1, "a")
    integer(1, 5, "a")
    assert (random.getstate(), repr(np.random.get_state())) == before
