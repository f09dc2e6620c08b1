from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.soundness import read_rows

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Cancelled, Failed, Infeasible, Measured, Outcome, TimedOut, Trial
from tunegym.tuning.stores.views import TrialViews

NASTY = [
    "a,b", 'say "hi"', "two\nlines", "cr\rlf\r\n", " leading", "trailing ", "", '"', ",", "'", "tab\there", "é€😀",
    "#hash", "=1+1", "-", "a;b", "\\n", '"quoted"', "line\u2028separator",
]  # fmt: skip


def trial(number: int, outcome: Outcome | None = None, **more: Any) -> Trial:
    outcome = outcome or Measured(({"score": number / 4, "extra": 1.0},))
    return Trial(number, {"load": number * 10}, {"x": number}, outcome, -float(number), 0.25, **more)


@pytest.fixture
def views(tmp_path: Path) -> Iterator[TrialViews]:
    views = TrialViews(tmp_path, ["x"], ["load"], ["score"])
    yield views
    views.close()


def test_a_row_for_every_outcome(views: TrialViews, tmp_path: Path) -> None:
    """Row by row the same steps in both, whatever became of the trial."""
    outcomes = [None, Infeasible("no"), Failed("x"), TimedOut(), Cancelled()]
    for number, outcome in enumerate(outcomes, start=1):
        views.add(trial(number, outcome))
    views.add(trial(6, cached_from=1))
    views.close()
    assert (tmp_path / "trajectory.csv").read_text().splitlines()[1:] == [
        "1,measured,false,-1.0,1,10,0.25,0.25,search",
        "2,infeasible,false,-2.0,2,20,,0.25,search",
        "3,failed,false,-3.0,3,30,,0.25,search",
        "4,timed_out,false,-4.0,4,40,,0.25,search",
        "5,cancelled,false,-5.0,5,50,,0.25,search",
        "6,measured,true,-6.0,6,60,1.5,0.25,search",
    ]
    assert (tmp_path / "env.csv").read_text().splitlines()[1:] == [f"{n},{n * 10},search" for n in range(1, 7)]


def rows(folder: Path) -> list[list[str]]:
    """The steps in each file."""
    return [[row["step"] for row in read_rows(folder / name)] for name in ("trajectory.csv", "env.csv")]


def test_a_reader_never_sees_fewer_rows(views: TrialViews, tmp_path: Path) -> None:
    """Trial 2 was left open: until it has ended, the files of the last session stay."""
    for number in (1, 3):
        views.add(trial(number))
    views.close()
    assert rows(tmp_path) == [["1", "3"]] * 2
    again = TrialViews(tmp_path, ["x"], ["load"], ["score"], past=3)
    for number in (1, 3, 2):
        again.flush()
        assert rows(tmp_path) == [["1", "3"]] * 2
        again.add(trial(number))
    again.flush()
    assert rows(tmp_path) == [["1", "2", "3"]] * 2
    again.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env.csv", "trajectory.csv"]


@pytest.mark.parametrize("fits", range(4))
def test_a_full_disk_leaves_the_same_rows(
    views: TrialViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    """Wherever in the second file the space ends; and what was refused is written once there is space."""
    views.add(trial(1))
    views.flush()
    views.add(trial(2))
    sizes, write = iter([1000, fits]), os.write
    with monkeypatch.context() as patch:
        # Descriptor -1 can't be written.
        patch.setattr(os, "write", lambda file, data: write(file if (n := next(sizes, 0)) else -1, data[:n]))
        with pytest.raises(StoreError, match="CSV views can't be written"):
            views.flush()
    assert rows(tmp_path) == [["1"]] * 2
    views.flush()
    assert rows(tmp_path) == [["1", "2"]] * 2


@pytest.mark.parametrize("text", NASTY)
def test_quoting(tmp_path: Path, text: str) -> None:
    """Any string, as a value or as a name, comes back from Python's reader and from pandas'."""
    views = TrialViews(tmp_path, ["x", text], [f"p{text}"], ["score"])
    measured = Measured(({"score": 1.0},))
    views.add(Trial(1, {f"p{text}": text}, {"x": text, text: "v"}, measured, 0.0, 0.0))
    views.add(Trial(2, {f"p{text}": "z"}, {"x": "z", text: "v"}, measured, 0.0, 0.0))
    views.close()
    trajectory, env = read_rows(tmp_path / "trajectory.csv"), read_rows(tmp_path / "env.csv")
    assert [row["action.x"] for row in trajectory] == [text, "z"]
    assert [row[f"context.p{text}"] for row in trajectory] == [text, "z"]
    assert [row[f"p{text}"] for row in env] == [text, "z"]
    frame = pd.read_csv(tmp_path / "trajectory.csv", keep_default_na=False)
    assert list(frame["action.x"]) == [text, "z"]
    assert f"action.{text}" in frame.columns
