"""Early stopping saves work, and loses neither the optimum nor a trial."""

from __future__ import annotations

from typing import Any

import pytest
from tests.app.conftest import Write, document
from tests.soundness import assert_sound

import tunegym as face

STAGES = 27
POINTS = 61
OPTIMUM = 52

STAGED = """
import math
from pathlib import Path

def level(x):
    return 1 - abs(x * 17 % 61 - 30) / 31  # 52 is the best of 0..60, and its neighbours are no better than others

def value(x, stage):
    return level(x) * (1 - math.exp(-stage / 6)) + 0.03 * math.sin(3 * x + stage)  # curves cross now and then

def train(x, report):
    for stage in range(1, 28):
        with Path(__file__).with_name("work.log").open("a") as log:
            log.write("#")
        report(stage, value(x, stage))
    return {"score": value(x, 27)}
"""


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
@pytest.mark.parametrize(("seed", "slots"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 4)])
def test_pruning_saves_work_and_keeps_the_optimum(write: Write, pruner: str, seed: int, slots: int) -> None:
    """At least 40 % of the stages, as the function itself counts them, whatever the order in which values come."""
    write("staged_function.py", STAGED)

    def run(pruner: str | None) -> tuple[int, Any]:
        """How many stages were worked on, and the results: a grid over all points from a start that the seed draws."""
        log = write("work.log", "")
        args = {"callable": "staged_function:train", "x": {"low": 0, "high": POINTS - 1, "step": 1}}
        keys = {"agent_config": {"start_action": "random"}, "agent_metrics": ["score"], "pruner": pruner}
        scenario = document(seed=seed, slots=slots, args=args, **keys)
        assert face.run(scenario, output=str(pruner)) == 0
        (results,) = assert_sound(str(pruner)).values()
        return log.stat().st_size, results

    full, unpruned = run(None)
    assert full == POINTS * STAGES
    assert unpruned.best.action == {"x": OPTIMUM}
    work, pruned = run(pruner)
    assert work <= 0.6 * full
    assert pruned.best.action == {"x": OPTIMUM}
    assert pruned.best.reward == unpruned.best.reward
    assert work == sum(len(trial.reports) for trial in pruned)
    count = sum(trial.status == "pruned" for trial in pruned)
    assert pruned.counts().row["pruned"] == str(count)
    assert f"{count} x pruned: what it reported was hopeless" in pruned.summary().lines[1]
