"""An answer in tables, facts, ``best.toml`` and the page's picture: everywhere the same gains and certainties."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.tuning.reports.conftest import trial

from tunegym.cli.terminal import SteadyConsole, rendered
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.reports.results import RunResults
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.reports.verdicts import answer_chart

Written = Callable[..., RunResults]
Experiment = Callable[..., TrialResults]

COSTS = {"low": {1: 4.0, 2: 8.0, 3: 5.0}, "high": {1: 400.0, 2: 500.0, 3: 900.0}}
"""``m`` by load and ``x``, where 1 is the baseline: 2 is best at a low load, 3 at a high one and over both."""
ARMS = {"low": (1, 2, 3), "high": (1, 3)}
NOISE = (0.99, 1.0, 1.01)
KEYS: dict[str, Any] = {
    "knobs": {"x": {"values": [1, 2, 3]}, "y": {"values": ["a", "b"]}},
    "baseline": {"x": 1, "y": "a"},
    "goals": {"m": "max"},
    "confirm": {"mode": "auto"},
}
LOADS = {"load": {"values": ["low", "high"]}}


def numbered(cells: Iterator[tuple[str, int, float, str]]) -> list[Trial]:
    """Trials of load, ``x``, value and phase."""
    return [
        Trial(n, {"load": load}, {"x": x, "y": "a"}, Measured(({"m": value},)), value, 0.1, phase=phase)
        for n, (load, x, value, phase) in enumerate(cells, 1)
    ]


def cells(rounds: int) -> Iterator[tuple[str, int, float, str]]:
    """A search over all cells with its repeats, then rounds of their arms."""
    for noise in NOISE:
        for load, costs in COSTS.items():
            yield from ((load, x, value * noise, "search") for x, value in costs.items())
    for number in range(rounds):
        noise = NOISE[number % len(NOISE)]
        for load, arms in ARMS.items():
            yield from ((load, x, COSTS[load][x] * noise ** (1 if x > 1 else -1), "confirm") for x in arms)


@pytest.fixture
def experiment(written: Written) -> Experiment:
    """The experiment of a written run."""

    def made(trials: list[Trial], folder: str = "run", **keys: Any) -> TrialResults:
        results = written(trials, folder, **keys).experiments["e"]
        assert isinstance(results, TrialResults)
        return results

    return made


@pytest.fixture
def confirmed(experiment: Experiment) -> TrialResults:
    """Two contexts with a best setting each, confirmed in six rounds."""
    return experiment(numbered(cells(6)), **KEYS, env_params=LOADS)


def best_toml(results: TrialResults, **fixed: Any) -> dict[str, Any]:
    results.write_best(fixed)
    return tomllib.loads((results.folder / "best.toml").read_text())


def test_every_place_says_the_same(confirmed: TrialResults) -> None:
    """The answer, facts, ``best.toml``, the closing table, ``status``, ``compare``, the page and ``recommend``."""
    answer, facts, document = confirmed.answer, confirmed.facts, best_toml(confirmed)
    verdicts = [answer.overall, *answer.per_context]
    assert [dict(verdict.chosen.changes) for verdict in verdicts if verdict.chosen] == [{"x": 3}, {"x": 2}, {"x": 3}]
    assert [verdict.certainty for verdict in verdicts] == ["sure"] * 3
    gains = [verdict.chosen.gain for verdict in verdicts if verdict.chosen and verdict.chosen.gain]
    assert [gain.mean for gain in gains] == pytest.approx([1.677, 2.0, 2.25], rel=0.02)
    plain = [{"mean": gain.mean, "low": gain.low, "high": gain.high, "is_ratio": True} for gain in gains]
    assert [told["gain"] for told in (facts["best"], *facts["per_context"])] == plain
    assert [told["gain"] for told in (document["best"], *document["per_context"])] == plain
    assert [told["answer"] for told in (document["best"], *document["per_context"])] == [
        verdict.sentence for verdict in verdicts
    ]
    rows = [verdict["rows"][0] for verdict in answer_chart(answer, confirmed.trials, "")["verdicts"]]
    assert [(row["mean"], row["low"], row["high"]) for row in rows] == [(g.mean, g.low, g.high) for g in gains]
    texts = [row["cells"]["gain"] for row in rows]
    table = confirmed.summary().table
    assert table is not None
    told = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [" (".join(row["gain"].split("\n")) + ")" for row in told if row["gain"]] == texts
    entry, row = confirmed.compared([confirmed])
    assert (entry["best"]["better"], row["gain"]) == (texts[0], texts[0])
    assert answer.overall.sentence in confirmed.summary().lines[0]
    assert answer.overall.sentence in confirmed.counts().notes[0]
    assert confirmed.recommend({}).sentence == answer.overall.sentence
    for verdict in answer.per_context:
        there = confirmed.recommend(verdict.context or {})
        assert verdict.chosen is not None
        assert (there.sentence, there.gain, dict(there.action)) == (
            verdict.sentence,
            verdict.chosen.gain,
            verdict.chosen.action,
        )


def test_no_value_is_a_mean_over_contexts(confirmed: TrialResults) -> None:
    """Gains are within contexts, and stay."""
    document, entry = best_toml(confirmed), confirmed.compared([confirmed])[0]
    for told in (document["best"], document["baseline"]):
        assert not {"reward", "interval", "metrics", "intervals"} & told.keys()
    for told in (confirmed.facts["best"], confirmed.counts().facts["best"], entry["best"]):
        assert (told["reward"], told["interval"], told["metrics"]) == (None, None, {})
    assert entry["best"]["value"] is None
    assert confirmed.recommend({}).mean == {}
    low, high = document["per_context"]
    assert (low["context"], low["metrics"]["m"]) == ({"load": "low"}, pytest.approx(8.0, rel=0.01))
    assert high["intervals"]["m"][0] < 900.0 < high["intervals"]["m"][1]


def test_a_table_of_two_contexts_fits_a_screen(confirmed: TrialResults) -> None:
    """80 columns and 24 lines, and no text is cut."""
    out = SteadyConsole(width=80, force_terminal=True, color_system=None)
    table = confirmed.summary().table
    assert table is not None
    with out.capture() as shown:
        out.print(rendered(table, out, fold=True))
    lines = shown.get().splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)
    words = [word for row in table.rows for cell in row for word in cell.split()]
    assert [word for word in words if not any(word in line for line in lines)] == []


def test_the_picture_is_on_the_scale_of_gains(confirmed: TrialResults) -> None:
    """The baseline is at 1. Rows have only the knobs that differ."""
    chart = answer_chart(confirmed.answer, confirmed.trials, "3 of 6")
    assert [verdict["context"] for verdict in chart["verdicts"]] == [None, "load=low", "load=high"]
    assert (chart["phases"], chart["tried"]) == ("18 search, 30 confirm", "3 of 6")
    low = chart["verdicts"][1]
    assert [(row["label"], row["role"], row["baseline"]) for row in low["rows"]] == [
        ("x=2", "answer", False),
        ("x=3", "other", False),
        ("your settings", "other", True),
    ]
    assert (low["rows"][-1]["mean"], low["is_ratio"]) == (1.0, True)


def test_a_metric_that_can_be_negative_has_differences(experiment: Experiment) -> None:
    trials = [
        trial(n, x, x - 2.0 + noise, phase=phase)
        for n, (x, noise, phase) in enumerate(
            ((x, noise, phase) for phase in ("search", "confirm") for noise in (0.0, 0.1, -0.1) for x in (1, 3)), 1
        )
    ]
    results = experiment(trials, baseline={"x": 1}, goals={"m": "max"}, confirm={"mode": "auto"})
    best = results.answer.overall.chosen
    assert best is not None
    assert best.gain is not None
    assert (best.gain.mean, best.gain.is_ratio) == (pytest.approx(2.0), False)
    chart = answer_chart(results.answer, trials, "")["verdicts"][0]
    assert (chart["rows"][-1]["mean"], chart["is_ratio"]) == (0.0, False)


def test_without_a_baseline_there_are_values_and_no_gain(experiment: Experiment) -> None:
    keys = {**KEYS, "baseline": None}
    low_load = [replace(one, context={}) for one in numbered(cells(6)) if one.context["load"] == "low"]
    results = experiment(low_load, **keys)
    document, chosen = best_toml(results), results.answer.overall.chosen
    assert chosen is not None
    assert ("gain" in document["best"], "baseline" in document) == (False, False)
    low, high = document["best"]["intervals"]["m"]
    row = answer_chart(results.answer, results.trials, "")["verdicts"][0]["rows"][0]
    assert (row["mean"], row["low"], row["high"]) == (pytest.approx(8.0, rel=0.01), low, high)


@pytest.mark.parametrize(
    ("rounds", "ended", "said"),
    [(0, None, "Search not finished, so far: "), (1, None, "Confirmation not finished, so far: "), (6, "all done", "")],
)
def test_an_answer_before_the_end(experiment: Experiment, rounds: int, ended: Any, said: str) -> None:
    results = experiment(numbered(cells(rounds)), **KEYS, env_params=LOADS, ended=ended)
    for verdict in (results.answer.overall, *results.answer.per_context):
        assert verdict.sentence.startswith(said)
        assert ("so far" in verdict.sentence) == bool(said)
    assert results.recommend({"load": "low"}).sentence == results.answer.per_context[0].sentence


# several objectives ---------------------------------------------------------------------------------------

TRADE: dict[str, Any] = {
    "knobs": {"x": {"low": 0.0, "high": 1.0, "dtype": "float"}},
    "baseline": {"x": 0.25},
    "metrics": ["m", "late"],
    "goals": {"m": "max", "late": "min"},
    "confirm": {"mode": "auto"},
}
AIMS: list[dict[str, Any]] = [
    {"metric": "m", "goal": "max", "weight": 1.0},
    {"metric": "late", "goal": "min", "weight": 1.0},
]


def trade(number: int, x: float, phase: str, noise: float = 0.0, context: Any = None) -> Trial:
    """The more x the more m, and the later."""
    metrics = {"m": x + noise, "late": x * x + noise}
    return Trial(number, context or {}, {"x": x}, Measured((metrics,)), x - x * x, 0.1, phase=phase)


def test_the_pareto_set_as_it_was_confirmed(experiment: Experiment) -> None:
    """Finalists have a gain; what only the search measured is said to be so."""
    searched = [trade(n, n / 8, "search", noise=0.5) for n in range(1, 9)]
    again = [(x, noise) for noise in (0.0, 0.01, -0.01) for x in (0.5, 0.25)]
    trials = [*searched, *(trade(n, x, "confirm", noise) for n, (x, noise) in enumerate(again, 9))]
    results = experiment(trials, objectives=AIMS, **TRADE)
    facts = {told["action"]["x"]: told for told in results.facts["pareto"]}
    assert sorted(facts) == [n / 8 for n in range(1, 9)]
    assert {x for x, told in facts.items() if told["confirmed"]} == {0.25, 0.5}
    assert facts[0.5]["metrics"]["m"] == pytest.approx(0.5, abs=0.011), "not 1.0, as the search saw it"
    assert (facts[0.5]["gain"]["mean"], facts[0.5]["gain"]["is_ratio"]) == (pytest.approx(0.0625), False)
    assert facts[0.125]["metrics"] == {"m": 0.625, "late": 0.515625}
    table = results.summary().table
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["certainty"] == "not confirmed" for row in rows] == [False] * 2 + [True] * 6
    document = best_toml(results, fixed=1)["pareto"]
    assert [(told["confirmed"], told["fixed"]) for told in document] == [
        (told["confirmed"], {"fixed": 1}) for told in results.facts["pareto"]
    ]


def test_a_pareto_set_over_contexts_has_no_values(experiment: Experiment) -> None:
    """Limits are still judged: by the trials in each context."""
    places = [(n, at, c) for n in range(1, 9) for at, c in enumerate((1, 1, 2, 2))]
    trials = [trade(4 * n + at - 3, n / 8, "search", context={"c": c}) for n, at, c in places]
    keys = {**TRADE, "env_params": {"c": {"values": [1, 2]}}}
    results = experiment(trials, objectives=AIMS, **keys)
    assert {(told["reward"], len(told["metrics"])) for told in results.facts["pareto"]} == {(None, 0)}
    assert results.facts["best"]["violation"] == 0.0
    strict = experiment(trials, "strict", objectives=[AIMS[0], {**AIMS[1], "limit": 0.001}], **keys)
    assert strict.facts["best"]["violation"] > 0
    assert strict.recommend({}).violation > 0


def test_best_toml_is_ready_to_use(experiment: Experiment) -> None:
    """Nested settings, and the fixed ones beside them; empty if nothing was measured."""
    trials = [
        Trial(n, {"net.load": n % 2}, {"server.threads": threads}, Measured(({"m": value},)), value, 0.1)
        for n, (threads, value) in enumerate([(4, 3.0), (4, 2.0), (4, 3.0), (4, 2.0), (1, 1.0), (1, 1.0)], 1)
    ]
    knobs, env_params = {"server.threads": {"values": [1, 4]}}, {"net.load": {"values": [0, 1]}}
    results = experiment(trials, knobs=knobs, env_params=env_params)
    document = best_toml(results, **{"server.port": 80, "list": [1, 2]})
    best = document["best"]
    assert (best["settings"], best["fixed"]) == ({"server": {"threads": 4}}, {"server": {"port": 80}, "list": [1, 2]})
    assert (best["measured"], best["failed"], best["confirmed"]) == (4, 0, False)
    assert [told["context"] for told in document["per_context"]] == [{"net": {"load": 0}}, {"net": {"load": 1}}]
    assert [told["metrics"] for told in document["per_context"]] == [{"m": 2.0}, {"m": 3.0}]
    assert best_toml(experiment([], "other"), x=1) == {}
