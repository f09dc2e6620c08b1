"""An answer in words and numbers: intervals, gains, what ``best.toml`` and the page have of it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from tests.tuning.reports.conftest import trial

from tunegym.tuning.answers.answer import Answer, Evidence, Gain, Noise, Verdict
from tunegym.tuning.answers.intervals import Interval
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.reports.results import RunResults
from tunegym.tuning.reports.verdicts import answer_chart, better, cells, interval_text, toml_of

UNKNOWN = (-math.inf, math.inf)


def interval(mean: float, low: float, high: float) -> Interval:
    return Interval(mean, low, high, 3, 0.95)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (interval(4.748, 4.6, 4.9), "4.748 ±0.15"),
        (interval(4.0, *UNKNOWN), "4"),
        (interval(4.0, 4.0, 4.0), "4"),
        (None, ""),
    ],
)
def test_plus_minus_is_half_of_the_interval(given: Interval | None, shown: str) -> None:
    assert interval_text(given) == shown


@pytest.mark.parametrize(
    ("percent", "shown"),
    [
        (interval(12.0, 9.04, 15.0), "12 % (9 to 15 %)"),
        (interval(-3.0, -5.0, -1.0), "-3 % (-5 to -1 %)"),
        (interval(12.0, *UNKNOWN), "12 %"),
        (None, "0.5 (0.1 to 0.9)"),
    ],
)
def test_how_much_better(percent: Interval | None, shown: str) -> None:
    assert better(Gain(interval(0.5, 0.1, 0.9), "m" if percent else None, percent)) == shown
    assert better(None) == ""


def evidence(x: int, mean: float, context: Any, gain: float | None) -> Evidence:
    """A setting; the baseline if it gains nothing."""
    reward = interval(mean, mean - 0.5, mean + 0.5)
    made = None if gain is None else Gain(interval(1.0, 0.5, 1.5), "m", interval(gain, gain - 3, gain + 3))
    return Evidence({"x": x, "y": "<b>"}, context, reward, {"m": reward}, {"m": 0.25}, 3, 0, (7, 9), gain is None, made)


def verdict(context: Any = None) -> Verdict:
    found = [evidence(2, 5.0, context, 25.0), evidence(3, 4.9, context, 22.0), evidence(1, 4.0, context, None)]
    where = "" if context is None else f"At load={context['load']}: "
    return Verdict(context, found[0], tuple(found), (found[1],), True, ("a note",), f"{where}x=2: 25 % more.")


def made(*contexts: str) -> Answer:
    drift = Noise({"x": 1}, {}, 0.043, interval(1.0, -1.0, 3.0), "busy")
    per_context = tuple(verdict({"load": one}) for one in contexts)
    return Answer(verdict(), per_context, {"x": 1, "y": "<b>"}, drift, "7 of 240 settings")


GOALS = {"m": "max"}


def test_the_columns_of_a_table() -> None:
    chosen, _, base = verdict().finalists
    columns = {"reward (max)": "5", "m (max)": "5 ±0.5", "spread": "0.25", "gain on baseline": "25 % (22 to 28 %)"}
    assert cells(chosen, ["m"], GOALS, "m") == columns | {"samples": "3", "failed": ""}
    assert cells(chosen, ["m"], GOALS, None)["reward (max)"] == "5 ±0.5", "the reward is not the metric"
    assert cells(base, ["m"], GOALS, "m")["gain on baseline"] == "baseline"


def test_best_toml_has_the_answer_its_ties_and_its_gain() -> None:
    one = verdict({"load": "low"})
    document = toml_of(one.finalists[0], one, [Objective("m", limit=10.0)])
    percent = {"metric": "m", "percent": 25.0, "percent_interval": [22.0, 28.0]}
    assert document == {
        "trial": 7,
        "reward": 5.0,
        "interval": [4.5, 5.5],
        "gain": {"reward": 1.0, "interval": [0.5, 1.5], **percent},
        "failed": 0,
        "violation": 0.5,
        "metrics": {"m": 5.0},
        "intervals": {"m": [4.5, 5.5]},
        "spread": {"m": 0.25},
        "measured": 3,
        "settings": {"x": 2, "y": "<b>"},
        "confirmed": True,
        "context": {"load": "low"},
        "answer": "At load=low: x=2: 25 % more.",
        "ties": [{"x": 3, "y": "<b>"}],
    }
    assert not {"answer", "ties", "gain"} & toml_of(one.finalists[2], one, []).keys(), "of the baseline"


def test_the_picture() -> None:
    """Over several contexts the gain; in one the metric. Labels have only the knobs that differ."""
    trials = [trial(1, 1, 1.0, phase="baseline"), *(trial(n, 1, 1.0) for n in (2, 3))]
    told = answer_chart(made("low", "high"), trials, ["m"], GOALS, "m")
    assert [one["context"] for one in told["verdicts"]] == [None, "load=low", "load=high"]
    assert [one["title"] for one in told["verdicts"]] == ["% better than the baseline", "m (max)", "m (max)"]
    overall, low, _ = told["verdicts"]
    assert [(row["label"], row["role"], row["baseline"]) for row in overall["rows"]] == [
        ("x=2", "answer", False),
        ("x=3", "tie", False),
        ("x=1", "other", True),
    ]
    assert [(row["mean"], row["low"]) for row in overall["rows"]] == [(25.0, 22.0), (22.0, 19.0), (0.0, None)]
    assert [(row["mean"], row["low"]) for row in low["rows"]] == [(5.0, 4.5), (4.9, 4.4), (4.0, 3.5)]
    assert (told["phases"], told["confidence"]) == ("1 baseline, 2 search", "95")
    assert told["noise"] == "one setting spreads by 4.3 %; from start to end it drifted by 1 % (-1 to 3 %); busy"
    assert len(answer_chart(made("only"), trials, ["m"], GOALS, "m")["verdicts"]) == 1
    nothing = Answer(Verdict(None, None, (), (), False, (), "Too few."), (), None, None, "")
    assert answer_chart(nothing, [], [], {}, None)["verdicts"][0]["rows"] == []


def test_every_place_says_how_much_better(written: Callable[..., RunResults], monkeypatch: pytest.MonkeyPatch) -> None:
    """The closing table and line, ``status``, ``compare`` and the facts."""
    results = written([trial(n, n, float(n)) for n in (1, 2, 3)], goals=GOALS)
    monkeypatch.setattr("tunegym.tuning.reports.trials.answer", lambda *_: made("low", "high"))
    one: Any = results.experiments["e"]
    summary = one.summary()
    assert summary.lines[0] == "e: x=2: 25 % more."
    assert summary.table.columns[0] == "context"
    assert [row[0] for row in summary.table.rows] == ["over all", "over all", *["load=low"] * 2, *["load=high"] * 2]
    assert {row[summary.table.columns.index("gain on baseline")] for row in summary.table.rows} == {
        "25 % (22 to 28 %)",
        "baseline",
    }
    assert summary.facts["best"]["gain"]["percent"] == 25.0
    assert [one["context"] for one in summary.facts["per_context"]] == [{"load": "low"}, {"load": "high"}]
    counts = one.counts()
    assert counts.notes == ("e: x=2: 25 % more.",)
    assert counts.row["best"] == "x=2 y=<b>", "values of several contexts don't compare"
    entry, row = one.compared([one])
    assert (row["best reward (max)"], row["gain on baseline"]) == ("5 ±0.5", "25 % (22 to 28 %)")
    assert (entry["best"]["interval"], entry["baseline"]) == ([4.5, 5.5], {"x": 1, "y": "<b>"})


def test_best_toml_is_ready_to_use(written: Callable[..., RunResults]) -> None:
    """Nested settings, the fixed ones beside them, mean and spread; empty if nothing was measured."""
    trials = [
        Trial(n, {"net.load": n % 2}, {"server.threads": threads}, Measured(({"m": value},)), value, 0.1)
        for n, (threads, value) in enumerate([(4, 1.0), (4, 3.0), (4, 2.0), (4, 2.0), (1, 0.0), (1, 0.0)], 1)
    ]
    knobs, env_params = {"server.threads": {"values": [1, 4]}}, {"net.load": {"values": [0, 1]}}
    results: Any = written(trials, knobs=knobs, env_params=env_params).experiments["e"]
    results.write_best({"server.port": 80, "list": [1, 2]})
    document = tomllib.loads((results.folder / "best.toml").read_text())
    best = document["best"]
    assert (best["settings"], best["fixed"]) == ({"server": {"threads": 4}}, {"server": {"port": 80}, "list": [1, 2]})
    assert (best["reward"], best["metrics"], best["measured"], best["failed"]) == (2.0, {"m": 2.0}, 4, 0)
    assert (best["confirmed"], best["answer"].endswith("not confirmed.")) == (False, True)
    assert [one["context"] for one in document["per_context"]] == [{"net": {"load": 0}}, {"net": {"load": 1}}]
    assert document["per_context"][0]["spread"]["m"] == pytest.approx(0.5**0.5)
    nothing: Any = written([], "other").experiments["e"]
    nothing.write_best({"x": 1})
    assert tomllib.loads((nothing.folder / "best.toml").read_text()) == {}
