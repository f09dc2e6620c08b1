"""What stays in ``trials/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.tuning.model.scenario import Keep

Benches = Callable[..., Any]

XS = (3, 9, 5, 1, 7, 5, 2)
"""9 fails, the second 5 is served from the cache and has no folder; so numbers 5, 3, 1 are the best ones."""


def function(x: int) -> dict[str, float]:
    if x == 9:
        raise ValueError("no")
    return {"m": float(x)}


def kept(one: Any) -> list[int]:
    trials = one.folder / "trials"
    return sorted(int(path.name) for path in trials.iterdir()) if trials.is_dir() else []


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep("all"), [1, 2, 3, 4, 5, 7]),
        (Keep("failed"), [2]),
        (Keep("best", 1), [5]),
        (Keep("best", 3), [1, 3, 5]),
        (Keep("best", 50), [1, 3, 4, 5, 7]),
        (Keep("none"), []),
    ],
)
@pytest.mark.parametrize("split", [0, 4])
def test_policies(bench: Benches, keep: Keep, expected: list[int], split: int) -> None:
    """The same at the end of one session and of two."""
    one = bench(function, store="journal", keep=keep)
    for x in XS[:split]:
        one.step(x=x)
    if split:
        one.store.close()
        one = bench(function, store="journal", keep=keep)
    for x in XS[split:]:
        one.step(x=x)
    assert kept(one) == expected


def test_folder_of_an_open_trial_stays(bench: Benches) -> None:
    """What stays open for a resume is not closed, so nothing of it is dropped."""

    def interrupted(x: int) -> dict[str, float]:
        raise InterruptedError

    one = bench(interrupted, keep=Keep("none"))
    one.engine.begin({"x": 1})
    assert one.engine.next_finished() is None
    assert kept(one) == [1]
