"""A run's results as a user reads them back: found, loaded, as tables, and asked for settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.tuning.reports.conftest import write_journal

import tunegym
from tunegym.core.errors import ConfigError, StoreError
from tunegym.tuning.model.space import Choice, EnvParam
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.reports.results import RunResults, find_run, find_runs, load, recommend
from tunegym.tuning.reports.trials import TrialResults

SCENARIO = 'name = "s"\nscenario_dir = "/somewhere"\n[[experiments]]\nname = "e"\n[[experiments]]\nname = "later"\n'


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "scenario.toml").write_text(SCENARIO)
    return folder


@pytest.fixture
def run(bench: Callable[..., Any], tmp_path: Path) -> Any:
    """A run with all kinds of trials in experiment ``e``, still being written, and one that hasn't begun."""

    def function(x: int, load: str) -> dict[str, float]:
        if x == 9:
            raise ValueError("too much")
        return {"m": float(x), "side": 1.0}

    return bench(
        function,
        env_params={"load": EnvParam(Choice(("a", "b")))},
        store="journal",
        folder=make_run(tmp_path / "results" / "s" / "2024") / "e",
        constraints=[lambda p: p["x"] != 4],
        repeats=2,
    )


def test_load(run: Any, tmp_path: Path) -> None:
    """By the scenario's names, also while it is being written; trials by number, iterated in the order of closing."""
    for x in (9, 3, 4, 8):
        run.step(x=x)
    results = load(run.folder.parent)
    assert (results.folder, results.scenario["name"]) == (run.folder.parent, "s")
    assert list(results.experiments) == ["e", "later"]
    experiment, later = results.experiments.values()
    assert list(experiment.trials) == run.trials()
    assert experiment.best is not None
    assert experiment.best.trials == (4,)
    assert (later.trials, later.best) == ((), None)
    run.step(x=7)
    assert len(tunegym.load(run.folder.parent).experiments["e"].trials) == 5
    write_journal(tmp_path, [Trial(n, {}, {"x": n}, Measured(({"m": 1.0},)), 1.0, 0.1) for n in (2, 1)])
    swapped = TrialResults("e", tmp_path)
    assert ([one.number for one in swapped.trials], [one.number for one in swapped]) == ([1, 2], [2, 1])


def test_to_pandas(run: Any) -> None:
    """The columns and rows of the CSV view with the right types, and more: every metric, spreads, reasons."""
    assert len(load(run.folder).experiments["e"].to_pandas()) == 0
    run.step(x=9)
    frame: Any = load(run.folder).experiments["e"].to_pandas()
    assert frame["observation.m"].isna().all(), "the columns are there all the same, so that a script need not ask"
    for x in (3, 4, 8):
        run.step(x=x)
    run.store.close()
    frame = load(run.folder).experiments["e"].to_pandas()
    view: Any = pd.read_csv(run.folder / "trajectory.csv")
    assert list(frame.columns)[: len(view.columns)] == list(view.columns)
    assert {"observation.side", "spread.m", "spread.side", "reason"} <= set(frame.columns)
    pd.testing.assert_frame_equal(frame[list(view.columns)], view, rtol=1e-4, atol=1e-5)
    assert frame["cached"].dtype == bool
    assert list(frame["action.x"]) == [9, 3, 4, 8]
    assert frame["reason"][0] == "repeat 1 of 2: too much"
    assert list(frame["status"]) == ["failed", "measured", "infeasible", "measured"]


def test_find_run(tmp_path: Path) -> None:
    """A run's folder, an experiment's in it, or the newest in a folder of runs, beside a user's own scenario."""
    (tmp_path / "scenario.toml").write_text('name = "mine"\n')
    run = make_run(tmp_path / "results" / "2024")
    (run / "e").mkdir()
    (run / "e" / "journal.jsonl").write_text("")
    for place in (run, run / "e", run.parent, run.parent.parent):
        assert find_run(place) == run
    for name, at in (("renamed", 3.0), ("2025", 2.0), ("a copy", 1.0)):  # written in another order than they were run
        write_journal(make_run(tmp_path / "results" / name) / "e", [], at=at)
    newest = tmp_path / "results" / "renamed"
    assert [one.name for one in find_runs(run.parent)] == ["a copy", "2025", "renamed", "2024"], "it has no journal yet"
    shutil.rmtree(run)
    assert find_run(newest.parent) == find_run(tmp_path) == newest == load(tmp_path).folder


# recommend ------------------------------------------------------------------------------------------------

TRIALS = [Trial(n, {"load": "low"}, {"x": n}, Measured(({"m": 3.0 - n},)), 3.0 - n, 0.1) for n in (1, 2)]
LOAD = {"load": {"values": ["low", "high"]}}
JOURNAL = {"trials": TRIALS, "knobs": {"x": {"values": [1, 2]}}, "env_params": LOAD}


def test_recommend_of_several_experiments(runs: Callable[..., RunResults]) -> None:
    folder = runs("run", left=JOURNAL, right=JOURNAL, later={"trials": None}).folder
    with pytest.raises(ConfigError, match="left, right"):
        recommend(folder)
    with pytest.raises(ConfigError, match='did you mean "right"'):
        recommend(folder, experiment="rigth")
    assert recommend(folder, experiment="right").experiment == "right"
    assert recommend(folder / "left").experiment == "left"
    with pytest.raises(StoreError, match="Nothing can be recommended"):
        recommend(folder, experiment="later")


CHOICE = '{"context": {"load": "low"}, "action": %s, "chance": null}'
TABLE = '{"format": 1, "agent": "a", "trials": 1, "choices": [%s]}'


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("is damaged", '{"format": 1, "agent"'),
        ("format 7", '{"format": 7}'),
        ("doesn't belong to this journal", TABLE % CHOICE % '{"y": 1}'),
        ("it has x=3 at", TABLE % CHOICE % '{"x": 3}'),
    ],
)
def test_a_policy_that_can_not_be_used(written: Callable[..., RunResults], why: str, text: str) -> None:
    folder = written(**JOURNAL).folder
    (folder / "e" / "policy").mkdir()
    (folder / "e" / "policy" / "policy.json").write_text(text)
    found = recommend(folder, {"load": "low"})
    assert (found.policy, dict(found.action)) == (False, {"x": 1})
    assert "this is from the trials, since the policy can't be used: " in str(found.note)
    assert why in str(found.note)


def test_a_policys_choice_is_recommended_only_where_it_was_measured(written: Callable[..., RunResults]) -> None:
    folder = written(**{**JOURNAL, "knobs": {"x": {"values": [1, 2, 3]}}}).folder
    (folder / "e" / "policy").mkdir()
    for x, recommended in ((2, 2), (3, 1)):
        (folder / "e" / "policy" / "policy.json").write_text(TABLE % CHOICE % f'{{"x": {x}}}')
        found = recommend(folder, {"load": "low"})
        assert (found.policy, dict(found.action), found.measured) == (x == recommended, {"x": recommended}, 1)
        assert found.policy or "the agent's policy chooses x=3" in str(found.note)
