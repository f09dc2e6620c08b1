"""Which settings a policy may recommend: such as worked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunegym.tuning.agents.sb3.agents import SettingHistory
from tunegym.tuning.model.trial import Failed, Measured, Pruned, Trial

HERE, THERE = {"load": 1}, {"load": 2}


def tried(*trials: tuple[dict[str, Any], Any, bool], between: bool = False) -> SettingHistory:
    """Of (context, value of x, whether it worked)."""
    known = SettingHistory(continuous=between)
    for number, (context, x, worked) in enumerate(trials, 1):
        outcome = Measured(({"v": 1.0},)) if worked else Failed("it crashed")
        known.add(Trial(number, context, {"x": x}, outcome, 0.0, 0.0), np.array([x], dtype=np.float64))
    return known


def works(known: SettingHistory, context: dict[str, Any], x: Any) -> bool:
    return known.works(context, {"x": x}, np.array([x], dtype=np.float64))


def test_what_worked_anywhere_works_unless_it_failed_here() -> None:
    known = tried((HERE, 1, True), (THERE, 1, False), (HERE, 2, False))
    assert works(known, HERE, 1)
    assert not works(known, THERE, 1)
    assert works(known, {"load": 3}, 1)
    assert not works(known, HERE, 2)


def test_the_others_are_those_that_work_here() -> None:
    known = tried((HERE, 1, True), (THERE, 1, False), (THERE, 2, True), (HERE, 3, False), (HERE, 1, True))
    assert [action["x"] for action, _ in known.working(HERE)] == [2, 1]
    assert [action["x"] for action, _ in known.working(THERE)] == [2]
    assert [element.tolist() for _, element in known.working(THERE)] == [[2.0]]


def test_in_between_the_nearest_one_tells() -> None:
    known = tried((HERE, 0.0, True), (HERE, 1.0, False), between=True)
    assert works(known, HERE, 0.4)
    assert not works(known, HERE, 0.6)
    known.add(Trial(9, HERE, {"x": 0.7}, Measured(({"v": 1.0},)), 0.0, 0.0), np.array([0.7]))
    assert works(known, HERE, 0.6)
    assert not works(tried(between=True), HERE, 0.5)


def test_a_pruned_trial_is_no_failure() -> None:
    """It ran, and was ended because it was slow."""
    known = tried((HERE, 1, True))
    for number in (2, 3):
        known.add(Trial(number, HERE, {"x": 1}, Pruned("slow"), 0.0, 0.0), np.array([1.0]))
    assert works(known, HERE, 1)
