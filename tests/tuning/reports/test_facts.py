"""The facts that a report and ``--json`` tell of trials: outcomes, certainty, gaps, policies, costs, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.tuning.reports.conftest import trial

from tunegym.tuning.agents import policies
from tunegym.tuning.inference.recommendation import PolicyChoice as Choice
from tunegym.tuning.inference.recommendation import PolicyTable
from tunegym.tuning.model.trial import Cancelled, Failed, Infeasible, Measured, TimedOut, Trial
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.reports.page import compare, run_document, run_labels
from tunegym.tuning.reports.results import RunResults
from tunegym.tuning.reports.trials import TrialResults

Written = Callable[..., RunResults]


def samples(*values: tuple[float, float]) -> Measured:
    return Measured(tuple({"m": m, "n": n} for m, n in values))


def facts(results: RunResults, total: int | None = None) -> dict[str, Any]:
    return results.experiments["e"].summary(total).facts


# outcomes -------------------------------------------------------------------------------------------------


def test_statuses_and_reasons(written: Written) -> None:
    trials = [
        trial(1, 1, 1.0),
        trial(2, 2, -9.0, Infeasible('constraint "x < 2" (x = 2)')),
        trial(3, 3, -9.0, Infeasible('constraint "x < 2" (x = 3)')),
        trial(4, 4, -9.0, Failed("exited with 1")),
        trial(5, 5, -9.0, TimedOut("too slow")),
        trial(6, 1, 1.0, cached_from=1),
        trial(7, 6, -9.0, Cancelled()),
    ]
    told = facts(written(trials), total=10)
    assert told["trials"]["statuses"] == {"measured": 2, "infeasible": 2, "failed": 1, "timed_out": 1, "cancelled": 1}
    assert (told["trials"]["total"], told["trials"]["done"], told["trials"]["cached"]) == (10, 7, 1)
    assert told["reasons"][0] == {"status": "infeasible", "reason": 'constraint "x < 2"', "count": 2}
    assert sum(one["count"] for one in told["reasons"]) == 5


def failed(count: int) -> list[Trial]:
    return [trial(number, 1, -1e15, Failed(f"reason {number}")) for number in range(1, count + 1)]


def test_many_reasons_are_cut_and_still_add_up(written: Written) -> None:
    told = facts(written(failed(90)))
    assert (told["best"], told["per_context"], told["answer"]["overall"]["chosen"]) == (None, [], None)
    assert len(told["reasons"]) == 51
    assert sum(one["count"] for one in told["reasons"]) == 90


@pytest.mark.parametrize(
    ("keys", "state", "problem"),
    [
        ({"trials": failed(2), "code": 1}, "failed", "none of its trials was measured"),
        ({"trials": failed(2), "ended": None}, "interrupted", "none of its trials was measured"),
        ({"trials": failed(2), "ended": None, "running": True}, "running", None),
        ({"trials": [], "code": 1}, "failed", "it made no trial"),
        ({"trials": [trial(1, 1, 1.0)], "code": 3}, "failed", "it ended with code 3 (the agent ended)"),
        ({"trials": [trial(2, 1, 1.0), *failed(1)]}, "finished", None),
        ({"trials": [], "ended": None}, "interrupted", None),
        ({"trials": None}, "not started", None),
    ],
)
def test_state_and_problem(
    written: Written, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], state: str, problem: str | None
) -> None:
    keys = dict(keys)
    if keys.pop("running", False):
        monkeypatch.setattr("tunegym.tuning.reports.results.living_writer", lambda folder: 1)
    told = facts(written(**keys))
    assert (told["state"], told["problem"]) == (state, problem)
    over = state in ("finished", "failed")
    assert (told["ended"], told["code"]) == (("the agent ended", keys.get("code", 0)) if over else (None, None))


# the answer -----------------------------------------------------------------------------------------------


KNOBS = {"x": {"values": [1, 2, 3, 4]}}


def test_found_when_it_was_first_measured(written: Written) -> None:
    """Time between sessions doesn't count."""
    made = [trial(1, 4, -9.0, Failed("f")), trial(2, 2, 1.0), trial(3, 1, 5.0), trial(4, 1, 5.0)]
    results = written(made, ended=None, knobs=KNOBS)
    best = facts(results)["best"]
    assert (best["trial"], best["found_s"]) == (3, pytest.approx(0.3))
    path = results.folder / "e" / "journal.jsonl"
    session = {"record": "session", "at": 2e9, "fingerprint": "f", "parts": {}}
    opened = {"record": "open", "number": 5, "at": 2e9, "since": 1.0, "context": {}, "action": {"x": 3}}
    closed = {"record": "close", "number": 5, "at": 2e9, "since": 4.0, "status": "measured", "reward": 9.0}
    closed |= {"duration_s": 3.0, "samples": [{"m": 9.0}]}
    with path.open("ab") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in (session, opened, closed))
    assert TrialResults("e", path.parent).summary().facts["best"]["found_s"] == pytest.approx(4.4)


# contexts -------------------------------------------------------------------------------------------------


LOAD = {"load": {"values": [1, 1.0, True]}}


def loaded(number: int, load: Scalar, x: Scalar, value: float | None, **keys: Any) -> Trial:
    outcome = Failed("no") if value is None else None
    return trial(number, x, -9.0 if value is None else value, outcome, context={"load": load}, **keys)


TRIALS = [
    loaded(1, 1, 1, 2.0),
    loaded(2, 1, 1, 4.0),
    loaded(3, 1, 1, 4.0, cached_from=2),
    loaded(4, 1, 1, None),
    loaded(5, 1, 1.0, 8.0),
    loaded(6, 1, 1.0, 8.0),
    loaded(7, 1.0, True, 1.0),
    loaded(8, True, 1.0, 1.0),
]


@pytest.fixture
def policy(written: Written) -> Callable[..., Any]:
    def told(trials: Iterable[Trial], choices: Iterable[Choice] | None, env_params: Any = LOAD) -> Any:
        declared = {"agent_metrics": ["m"], "agent_reward_function": "identity"}
        results = written(trials, knobs={"x": {"values": [1, 1.0, True]}}, env_params=env_params, declared=declared)
        if choices is not None:
            policies.save(results.folder / "e", PolicyTable("agent", 9, tuple(choices)))
        return facts(results)["policy"]

    return told


def test_a_policys_choices_beside_the_measurements(policy: Callable[..., Any]) -> None:
    choices = [Choice({"x": 1}, 0.5, {"load": 1}), Choice({"x": True}, None, {"load": 1.0})]
    found = policy(TRIALS, [*choices, Choice({"x": True}, 0.25, {"load": True})])
    assert (found["error"], found["trials"]) == (None, 9)
    first, second, third = found["choices"]
    assert first == {
        "context": {"load": 1},
        "action": {"x": 1},
        "chance": 0.5,
        "drawn": 6,
        "samples": 2,
        "failed": 1,
        "reward": 3.0,
        "best": {"action": {"x": 1.0}, "reward": 8.0, "samples": 2, "chosen": False},
    }
    assert (second["samples"], second["best"]["chosen"]) == (1, True)
    assert type(second["context"]["load"]) is float
    assert (third["samples"], third["reward"], third["failed"], third["drawn"]) == (0, None, 0, 1)


def test_choices_at_places_of_a_range_are_not_counted(policy: Callable[..., Any]) -> None:
    choices = [Choice({"x": 1}, 0.5, {"load": place / 4}) for place in range(9)]
    found = policy([loaded(1, 0.5, 1, 2.0)], choices, {"load": {"low": 0.0, "high": 2.0, "dtype": "float"}})
    assert [told["context"]["load"] for told in found["choices"]] == [place / 4 for place in range(9)]
    assert {told["samples"] for told in found["choices"]} == {None}


def test_no_policy_and_one_of_another_journal(policy: Callable[..., Any]) -> None:
    assert policy(TRIALS, None) is None
    assert policy(TRIALS, []) is None
    found = policy(TRIALS, [Choice({"y": 1}, 0.5, {"load": 1})])
    assert "doesn't belong to this journal" in found["error"]
    assert found["choices"] == []


# objectives and cost --------------------------------------------------------------------------------------


def test_time_and_cost(written: Written) -> None:
    made = [
        trial(1, 1, 1.0, Measured(({"m": 1.0, "cpu_s": 2.0}, {"m": 1.0, "cpu_s": 3.0})), took=6.0),
        trial(2, 1, 1.0, took=0.5, cached_from=1),
        trial(3, 2, -9.0, Failed("f"), took=2.0),
    ]
    time = facts(written(made))["time"]
    assert (time["trials_s"], time["not_measured_s"], time["saved_s"], time["cpu_s"]) == (8.5, 2.0, 5.5, 5.0)
    assert (time["wall_s"], time["hosts"], time["sessions"]) == (pytest.approx(0.3), ["host"], 1)
    assert facts(written(made[1:2], "other"))["time"]["cpu_s"] is None, "unknown is not zero"


# among other runs -----------------------------------------------------------------------------------------


def of(*rewards: float | None) -> list[Trial]:
    return [
        trial(n, n, -1e9 if reward is None else reward, Failed("f") if reward is None else None)
        for n, reward in enumerate(rewards, 1)
    ]


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        (["s/one", "s/two"], ["one", "two"]),
        (["a/one", "b/one"], ["a/one", "b/one"]),
        (["s/one"], ["s/one"]),
        (["s/one", "s/one"], ["s/one", "s/one #2"]),
    ],
)
def test_run_labels_are_short_and_unique(folders: list[str], labels: list[str]) -> None:
    root = Path("/results")
    assert run_labels([root / folder for folder in folders]) == labels
    assert len(set(run_labels([root / "s", root / "s" / "inner", root / "s", root / "t"]))) == 4


def test_the_best_and_its_curve(runs: Written) -> None:
    first = runs("one", e={"trials": of(1.0, None, 0.5, 3.0), "knobs": KNOBS})
    told = compare([first, runs("two", e={"trials": of(None, 2.0), "knobs": KNOBS})]).facts
    assert told["warnings"] == []
    one, two = told["entries"]
    assert (one["run"], one["experiment"], one["trials"], one["measured"]) == ("one", "e", 4, 3)
    assert (one["best"]["reward"], one["best"]["labels"]) == (3.0, {"x": "4"})
    assert one["curve"]["trials"] == [(1, 1.0), (4, 3.0)]
    assert [reward for _, reward in one["curve"]["seconds"]] == [1.0, 3.0]
    assert two["curve"]["trials"] == [(2, 2.0)], "a failure is no reward"


def test_curves_are_advantages_where_contexts_vary(runs: Written) -> None:
    """Over what is typical of the context in all runs: an easy context is no achievement. Only the search counts."""

    def of_contexts(*pairs: tuple[str, float]) -> dict[str, Any]:
        made = [trial(n, n, one, context={"c": c}) for n, (c, one) in enumerate(pairs, 1)]
        made.append(trial(len(made) + 1, 1, 1e6, context={"c": "easy"}, phase="confirm"))
        return {"trials": made, "knobs": KNOBS, "env_params": {"c": {"values": ["easy", "hard"]}}}

    one = runs("one", e=of_contexts(("easy", 100.0), ("hard", 1.0)))
    two = runs("two", e=of_contexts(("hard", 3.0), ("easy", 101.0)))
    curves = [entry["curve"] for entry in compare([one, two]).facts["entries"]]
    assert [curve["what"] for curve in curves] == ["advantage within its context"] * 2
    assert [curve["trials"] for curve in curves] == [[(1, -0.5)], [(1, 1.0)]]
    three = runs("three", e=of_contexts(("easy", 99.0), ("easy", 101.0), ("hard", 1.0), ("hard", 3.0)))
    table = run_document(three, {}, None)["experiments"][0]["page"]["table"]
    assert table["advantage"] == [-1.0, 1.0, -1.0, 1.0, 1e6 - 100]
    assert (table["phases"], table["phase"]) == (["search", "confirm"], [0, 0, 0, 0, 1])


LIMITED = {"knobs": KNOBS, "objectives": [{"metric": "m", "goal": "max", "limit": 2.5}]}


@pytest.mark.parametrize(
    ("first", "second", "warnings"),
    [
        pytest.param(
            {"e": {"trials": of(1.0, 0.5), "knobs": KNOBS}, "only": {"trials": of(1.0, 0.5), "metrics": ["m", "q"]}},
            {"e": {"trials": of(2.0, 0.5), "knobs": {"x": {"values": [1, 2]}}, "metrics": ["m", "n"]}},
            ["e: the metrics and the knobs differ, so the rewards may mean different things"],
            id="shared experiments are compared",
        ),
        pytest.param(
            {"a": {"trials": of(1.0, 0.5)}},
            {"b": {"trials": of(2.0, 0.5), "metrics": ["m", "other"]}},
            ["the experiments: the metrics differ, so the rewards may mean different things"],
            id="without a shared one, all are compared",
        ),
        pytest.param(
            {"e": {"trials": of(1.0, 2.0), **LIMITED}},
            {"e": {"trials": of(1.0, 3.0), **LIMITED}},
            ["one: no measured setting of e keeps the limits"],
            id="limits",
        ),
        pytest.param(
            {
                "e": {
                    "trials": [trial(n, n, 1.0, context={"c": 1}) for n in (1, 2)],
                    "env_params": {"c": {"values": [1, 2]}},
                }
            },
            {
                "e": {
                    "trials": [trial(n, n, 1.0, context={"c": 2}) for n in (1, 2)],
                    "env_params": {"c": {"values": [1, 2]}},
                }
            },
            ["e: the contexts that were measured differ, so the rewards may mean different things"],
            id="other contexts",
        ),
        pytest.param(
            {"e": {"trials": of(1.0, 2.0), "baseline": {"x": 1}}},
            {"e": {"trials": of(1.0, 2.0), "baseline": {"x": 2}}},
            ["e: the baselines differ, so the rewards may mean different things"],
            id="other baselines",
        ),
        pytest.param(
            {"e": {"trials": of(1.0, 2.0)}},
            {"e": {"trials": of(1.0, 2.0), "over_contexts": "worst"}},
            ["e: the ways in which contexts count together differ, so the rewards may mean different things"],
            id="the worst context",
        ),
        pytest.param({"e": {"trials": None}}, {"e": {"trials": of(None)}}, [], id="not started, not measured"),
    ],
)
def test_warnings_of_a_comparison(runs: Written, first: Any, second: Any, warnings: list[str]) -> None:
    told = compare([runs("one", **first), runs("two", **second)]).facts
    assert told["warnings"] == warnings
    for entry in told["entries"]:
        best = entry["best"]
        assert (best is None) == (entry["measured"] == 0)
