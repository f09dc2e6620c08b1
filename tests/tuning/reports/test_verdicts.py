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
    gain = Gain(interval(0.5, 0.1, 0.9), "m" if percent else None, percent, on_baseline=True)
    assert better(gain, "m") == shown
    assert better(gain, None) == "0.5 (0.1 to 0.9)", "of the reward, where that is no metric: it decides"
    assert better(None, "m") == ""


def evidence(x: int, mean: float, context: Any, gain: float | None, several: bool) -> Evidence:
    """A setting; the baseline if it gains nothing. Over several contexts it has no values."""
    reward = None if several else interval(mean, mean - 0.5, mean + 0.5)
    metrics, spread = ({}, {}) if reward is None else ({"m": reward}, {"m": 0.25})
    made = (
        None
        if gain is None
        else Gain(interval(1.0, 0.5, 1.5), "m", interval(gain, gain - 3, gain + 3), on_baseline=True)
    )
    return Evidence(
        {"x": x, "y": "<b>"},
        context,
        reward,
        metrics,
        spread,
        3,
        0,
        (7, 9),
        0.0 if several else 0.5,
        gain is None,
        made,
    )


def verdict(context: Any = None, several: bool = False) -> Verdict:
    rows = ((2, 5.0, 25.0), (3, 4.9, 22.0), (1, 4.0, None))
    found = [evidence(x, mean, context, gain, several) for x, mean, gain in rows]
    where = "" if context is None else f"At load={context['load']}: "
    return Verdict(context, found[0], tuple(found), (found[1],), True, ("a note",), f"{where}x=2: 25 % more.")


def made(*contexts: str) -> Answer:
    drift = Noise({"x": 1}, {}, 0.043, interval(1.0, -1.0, 3.0), "busy")
    per_context = tuple(verdict({"load": one}) for one in contexts)
    return Answer(verdict(None, len(contexts) > 1), per_context, {"x": 1, "y": "<b>"}, drift, "7 of 240 settings")


GOALS = {"m": "max"}


def test_the_columns_of_a_table() -> None:
    chosen, _, base = verdict().finalists
    columns = {"reward (max)": "5", "m (max)": "5 ±0.5", "spread": "0.25", "gain on baseline": "25 % (22 to 28 %)"}
    assert cells(chosen, ["m"], GOALS, "m") == columns | {"samples": "3", "failed": ""}
    assert cells(chosen, ["m"], GOALS, None)["reward (max)"] == "5 ±0.5", "the reward is not the metric"
    assert cells(base, ["m"], GOALS, "m")["gain on baseline"] == "baseline"


def test_best_toml_has_the_answer_its_ties_and_its_gain() -> None:
    one = verdict({"load": "low"})
    document = toml_of(one.finalists[0], one)
    percent = {"metric": "m", "percent": 25.0, "percent_interval": [22.0, 28.0]}
    assert document == {
        "trial": 7,
        "reward": 5.0,
        "interval": [4.5, 5.5],
        "gain": {"on_baseline": True, "reward": 1.0, "interval": [0.5, 1.5], **percent},
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
        "note": "a note",
        "ties": [{"x": 3, "y": "<b>"}],
    }
    assert not {"answer", "ties", "gain"} & toml_of(one.finalists[2], one).keys(), "of the baseline"


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
    assert told["noise"] == "one setting spreads by 4.3 %; from start to end it drifted by 1 % (-1 to 3 %)"
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
    assert row["best reward (max)"] == "load=low: 5 ±0.5\nload=high: 5 ±0.5", "of each context, never of all"
    assert (row["gain on baseline"], entry["baseline"]) == ("25 % (22 to 28 %)", {"x": 1, "y": "<b>"})
    assert [one["interval"] for one in entry["per_context"]] == [[4.5, 5.5]] * 2


def test_no_value_is_a_mean_over_contexts(written: Callable[..., RunResults], monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python, best.toml, ``--json`` and the page alike; gains are within contexts, and stay."""
    results = written([trial(n, n, float(n)) for n in (1, 2, 3)], goals=GOALS)
    monkeypatch.setattr("tunegym.tuning.reports.trials.answer", lambda *_: made("low", "high"))
    one: Any = results.experiments["e"]
    assert (one.best.reward, one.best.metrics, one.best.gain.percent.mean) == (None, {}, 25.0)
    assert [found.reward.mean for found in one.best_per_context] == [5.0, 5.0]
    one.write_best({})
    document = tomllib.loads((one.folder / "best.toml").read_text())
    for told in (document["best"], document["baseline"]):
        assert not {"reward", "interval", "metrics", "intervals", "spread"} & told.keys()
    assert (document["best"]["gain"]["percent"], document["per_context"][0]["reward"]) == (25.0, 5.0)
    for told in (one.facts["best"], one.counts().facts["best"], one.compared([one])[0]["best"]):
        assert (told["reward"], told["interval"], told["metrics"]) == (None, None, {})
    assert {found["reward"] for found in one.facts["answer"]["overall"]["finalists"]} == {None}
    monkeypatch.setattr("tunegym.tuning.reports.trials.answer", lambda *_: made("only"))
    again: Any = written([trial(1, 1, 1.0)], "one", goals=GOALS).experiments["e"]
    assert again.best.reward.mean == 5.0, "there is one context"


@pytest.mark.parametrize(
    ("phases", "ended", "said"),
    [
        (["search", "search"], None, "search not finished, so far: "),
        (["search", "search", "confirm"], None, "confirmation not finished, so far: "),
        (["search", "search", "confirm"], "the agent ended", ""),
    ],
)
def test_an_answer_before_the_end(written: Callable[..., RunResults], phases: list[str], ended: Any, said: str) -> None:
    trials = [trial(n, 1, 1.0, phase=phase) for n, phase in enumerate(phases, 1)]
    one: Any = written(trials, knobs={"x": {"values": [1, 2]}}, ended=ended).experiments["e"]
    for told in (one.counts().notes[0], one.summary().lines[0]):
        assert told.startswith(f"e: {said}x=1")
    assert one.answer.overall.sentence.startswith(f"{said}x=1")


TRADE: dict[str, Any] = {
    "knobs": {"x": {"low": 0.0, "high": 1.0, "dtype": "float"}},
    "baseline": {"x": 0.25},
    "metrics": ["m", "late"],
    "goals": {"m": "max", "late": "min"},
}
AIMS: list[dict[str, Any]] = [
    {"metric": "m", "goal": "max", "weight": 1.0},
    {"metric": "late", "goal": "min", "weight": 1.0},
]


def trade(number: int, x: float, phase: str, noise: float = 0.0, context: Any = None) -> Trial:
    """The more x the more m, and the later."""
    metrics = {"m": x + noise, "late": x * x + noise}
    return Trial(number, context or {}, {"x": x}, Measured((metrics,)), x - x * x, 0.1, phase=phase)


def test_the_pareto_set_as_it_was_confirmed(written: Callable[..., RunResults]) -> None:
    """Beside the baseline and with intervals; what only the search measured is said to be so."""
    searched = [trade(n, n / 8, "search", noise=0.5) for n in range(1, 9)]
    again = [(x, noise) for noise in (0.0, 0.01, -0.01) for x in (0.5, 1.0, 0.25)]
    trials = [*searched, *(trade(n, x, "confirm", noise) for n, (x, noise) in enumerate(again, 9))]
    one: Any = written(trials, objectives=AIMS, **TRADE).experiments["e"]
    facts = one.facts["pareto"]
    assert sorted(told["action"]["x"] for told in facts) == [n / 8 for n in range(1, 9)]
    assert {told["action"]["x"] for told in facts if told["confirmed"]} == {0.25, 0.5, 1.0}
    by_x = {told["action"]["x"]: told for told in facts}
    assert by_x[0.5]["metrics"]["m"] == pytest.approx(0.5, abs=0.011), "not 1.0, as the search saw it"
    assert (by_x[0.5]["gain"]["reward"] > 0, by_x[0.5]["intervals"]["m"] is not None) == (True, True)
    assert by_x[0.125]["metrics"] == {"m": 0.625, "late": 0.515625}
    table = one.summary().table
    assert table.title == "e: Pareto set of 8 settings"
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["gain on baseline"] == "not confirmed" for row in rows] == [False] * 3 + [True] * 5
    assert "baseline" in [row["gain on baseline"] for row in rows[:3]]
    assert "±" in rows[0]["m (max)"]
    one.write_best({"fixed": 1})
    document = tomllib.loads((one.folder / "best.toml").read_text())["pareto"]
    assert [(told["confirmed"], told["fixed"]) for told in document] == [
        (told["confirmed"], {"fixed": 1}) for told in facts
    ]


def test_a_pareto_set_over_contexts_has_gains_and_no_values(written: Callable[..., RunResults]) -> None:
    """Limits are still judged: by the trials in each context."""
    places = [(n, at, c) for n in range(1, 9) for at, c in enumerate((1, 1, 2, 2))]
    trials = [trade(4 * n + at - 3, n / 8, "search", context={"c": c}) for n, at, c in places]
    keys = {**TRADE, "env_params": {"c": {"values": [1, 2]}}}
    one: Any = written(trials, objectives=AIMS, **keys).experiments["e"]
    assert {(told["reward"], len(told["metrics"])) for told in one.facts["pareto"]} == {(None, 0)}
    table = one.summary().table
    more = len(one.pareto) - 6  # the five best and the baseline are finalists
    assert table.title == f"e: Pareto set of {len(one.pareto)} settings; {more} of them, not confirmed, in best.toml"
    overall = [dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == "over all"]
    assert {row["m (max)"] + row["late (min)"] + row["reward (max)"] for row in overall} == {""}
    assert all(row["gain on baseline"] for row in overall)
    assert one.facts["best"]["violation"] == 0.0
    strict = written(trials, "strict", objectives=[AIMS[0], {**AIMS[1], "limit": 0.001}], **keys).experiments["e"]
    assert strict.facts["best"]["violation"] > 0
    assert "  no setting keeps the limits; these come closest" in strict.summary().lines


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
    assert ("reward" in best, "metrics" in best, best["measured"], best["failed"]) == (False, False, 4, 0)
    assert [(one["reward"], one["metrics"]) for one in document["per_context"]] == [
        (2.5, {"m": 2.5}),
        (1.5, {"m": 1.5}),
    ]
    assert (best["confirmed"], "not confirmed" in best["answer"]) == (False, True)
    assert [one["context"] for one in document["per_context"]] == [{"net": {"load": 0}}, {"net": {"load": 1}}]
    assert document["per_context"][0]["spread"]["m"] == pytest.approx(0.5**0.5)
    nothing: Any = written([], "other").experiments["e"]
    nothing.write_best({"x": 1})
    assert tomllib.loads((nothing.folder / "best.toml").read_text()) == {}
