"""``tunegym.recommend``: which experiment is asked, and policies that can't be used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunegym.core.errors import ConfigError, TunegymError
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import RunResults, recommend

KNOBS = {"x": {"values": [1, 2]}}
LOAD = {"load": {"values": ["low", "high"]}}
TRIALS = [Trial(n, {"load": "low"}, {"x": n}, Measured(({"m": 3.0 - n},)), 3.0 - n, 0.1) for n in (1, 2)]
JOURNAL = {"trials": TRIALS, "knobs": KNOBS, "env_params": LOAD}


def test_several_experiments(runs: Callable[..., RunResults]) -> None:
    folder = runs("run", left=JOURNAL, right=JOURNAL, later={"trials": None}).folder
    with pytest.raises(ConfigError, match="left, right"):
        recommend(folder)
    with pytest.raises(ConfigError, match="did you mean right"):
        recommend(folder, experiment="rigth")
    assert recommend(folder, experiment="right").experiment == "right"
    assert recommend(folder / "left").experiment == "left"
    with pytest.raises(TunegymError, match="no trial was measured"):
        recommend(folder, {"load": 1}, experiment="later")


CHOICE = (
    '{"format": 1, "agent": "a", "trials": 1, "choices": [{"context": {"load": "low"}, "action": %s, "chance": null}]}'
)
POLICIES = {
    "is damaged": '{"format": 1, "agent"',
    "format 7": '{"format": 7}',
    "doesn't belong to this journal": CHOICE % '{"y": 1}',
    "it has x=3 at": CHOICE % '{"x": 3}',
}


@pytest.mark.parametrize("why", POLICIES)
def test_a_policy_that_can_not_be_used(written: Callable[..., RunResults], why: str) -> None:
    folder = written(**JOURNAL).folder
    (folder / "e" / "policy").mkdir()
    (folder / "e" / "policy" / "policy.json").write_text(POLICIES[why])
    found = recommend(folder, {"load": "low"})
    assert (found.source, dict(found.action)) == ("trials", {"x": 1})
    assert found.note is not None
    assert found.note.startswith("this is from the trials, since the policy can't be used: ")
    assert why in found.note


def test_a_saved_policy_answers(written: Callable[..., RunResults]) -> None:
    folder = written(**JOURNAL).folder
    (folder / "e" / "policy").mkdir()
    (folder / "e" / "policy" / "policy.json").write_text(CHOICE % '{"x": 2}')
    found = recommend(folder, {"load": "low"})
    assert (found.source, dict(found.action)) == ("policy", {"x": 2})
