from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.trial import Cancelled, Failed, Infeasible, Measured, Outcome, TimedOut, Trial
from tunegym.tuning.reports.results import RunResults
from tunegym.tuning.reports.trials import TrialResults

Written = Callable[..., RunResults]


def trial(number: int, x: Any, reward: float, outcome: Outcome | None = None, **more: Any) -> Trial:
    context, took = more.pop("context", {}), more.pop("took", 1.0)
    return Trial(number, context, {"x": x}, outcome or Measured(({"m": reward},)), reward, took, **more)


def facts(results: RunResults, total: int | None = None) -> dict[str, Any]:
    return results.experiments["e"].summary(total).facts


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


def test_many_reasons_are_cut_and_still_add_up(written: Written) -> None:
    told = facts(written([trial(n, n, -1.0, Failed(f"reason {n}")) for n in range(1, 91)]))
    assert (told["best"], told["per_context"], told["mean_gap"], told["mean_gap_over"]) == (None, [], None, None)
    assert len(told["reasons"]) == 51
    assert sum(one["count"] for one in told["reasons"]) == 90


@pytest.mark.parametrize(
    ("keys", "state"),
    [({}, "finished"), ({"ended": None}, "interrupted"), ({"trials": None}, "not started")],
)
def test_state(written: Written, keys: dict[str, Any], state: str) -> None:
    told = facts(written(**{"trials": [trial(1, 1, 1.0)], **keys}))
    assert told["state"] == state
    assert told["ended"] == ("the agent ended" if state == "finished" else None)


def failed(count: int) -> list[Trial]:
    return [trial(number, 1, -1e15, Failed("f")) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"trials": failed(2), "code": 1}, "none of its trials was measured"),
        ({"trials": failed(2), "ended": None}, "none of its trials was measured"),
        ({"trials": [], "code": 1}, "it made no trial"),
        ({"trials": [trial(1, 1, 1.0)], "code": 3}, "it ended with code 3 (the agent ended)"),
        ({"trials": [trial(2, 1, 1.0), *failed(1)]}, None),
        ({"trials": [], "ended": None}, None),
        ({"trials": None}, None),
    ],
)
def test_what_is_no_success_has_a_problem(written: Written, keys: dict[str, Any], problem: str | None) -> None:
    assert facts(written(**keys))["problem"] == problem


def test_while_it_runs_nothing_is_a_problem_yet(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunegym.tuning.reports.results.living_writer", lambda folder: 1)
    assert (told := facts(written(failed(2), ended=None)))["state"] == "running"
    assert told["problem"] is None


def test_how_sure(written: Written) -> None:
    """Spread and standard error over samples; rivals are settings that two standard errors don't tell apart."""
    samples = Measured(({"m": 9.0}, {"m": 10.0}, {"m": 11.0}, {"m": 10.0}))
    trials = [trial(1, 1, 10.0, samples), trial(2, 2, 9.5), trial(3, 3, 5.0), trial(4, 4, -1e9, Failed("f"))]
    best = facts(written(trials))["best"]
    assert best["reward_spread"] == pytest.approx((2 / 3) ** 0.5)
    assert best["standard_error"] == pytest.approx((2 / 3) ** 0.5 / 2)
    assert (best["samples"], best["trials"], best["rivals"], best["settings_tried"]) == (4, 1, 1, 3)


def samples(*values: tuple[float, float]) -> Measured:
    return Measured(tuple({"m": m, "n": n} for m, n in values))


OWN = {"declared": {"agent_reward_function": "mine:reward"}}
INVERSE = {"declared": {"agent_reward_function": "inverse"}}
NEGATIVE = {"declared": {"agent_reward_function": "negative"}}
AIM = {"objectives": [Objective("m").as_dict(), Objective("n", weight=0, limit=-1.0).as_dict()]}
BOTH = {"objectives": [Objective("m").as_dict(), Objective("n").as_dict()]}
ONE = [trial(1, 1, 5.0, samples((4.0, 0.0), (6.0, 10.0)))]
MANY = [trial(n, 1, reward, samples(*[(77.0 + n, 0.0)] * 25)) for n, reward in ((1, 4.0), (2, 6.0))]


@pytest.mark.parametrize(
    ("made", "keys", "spread", "over"),
    [
        pytest.param([trial(1, 1, 10.0), trial(2, 2, 9.0)], {}, None, None, id="a single sample"),
        pytest.param(ONE, {}, 2**0.5, "samples", id="the first metric"),
        pytest.param(ONE, {"metrics": ["n", "m"]}, 50**0.5, "samples", id="the other metric has the same mean"),
        pytest.param(ONE, NEGATIVE, 2**0.5, "samples", id="minus the first metric"),
        pytest.param(ONE, AIM, 2**0.5, "samples", id="the one aim"),
        pytest.param(ONE, BOTH, None, None, id="a weighted sum is no metric"),
        pytest.param(ONE, OWN, None, None, id="one trial of an own reward"),
        pytest.param(MANY, OWN, 2**0.5, "trials", id="trials of an own reward"),
        pytest.param(MANY, INVERSE, 2**0.5, "trials", id="trials of an inverse"),
    ],
)
def test_the_spread_of_a_reward(
    written: Written, made: list[Trial], keys: dict[str, Any], spread: float | None, over: str | None
) -> None:
    """Over samples where the reward is a metric, by name and not by value; else over trials."""
    best = facts(written(made, **{"metrics": ["m", "n"], **keys}))["best"]
    assert (best["reward_spread"], best["reward_spread_over"]) == (spread and pytest.approx(spread), over)
    count = len(made) if over == "trials" else best["samples"]
    assert best["standard_error"] == (spread and pytest.approx(spread / count**0.5))
    assert (best["rivals"] is None) == (spread is None)


def test_a_trial_that_exceeded_a_limit_paid_for_it_in_its_reward(written: Written) -> None:
    """Then the metric isn't the reward any more, even if the mean keeps the limit."""
    made = [
        trial(1, 1, 4.0, Measured(({"m": 4.0, "n": 1.0}, {"m": 4.0, "n": 1.0}))),
        trial(2, 1, -9.0, Measured(({"m": 4.0, "n": 2.5}, {"m": 4.0, "n": 2.5}))),
    ]
    objectives = [Objective("m").as_dict(), Objective("n", "min", weight=0, limit=2.0).as_dict()]
    best = facts(written(made, metrics=["m", "n"], objectives=objectives))["best"]
    assert best["violation"] == 0
    assert (best["reward_spread"], best["reward_spread_over"]) == (pytest.approx(13 / 2**0.5), "trials")


def test_rivals_keep_the_limits_as_well_as_the_best(written: Written) -> None:
    made = [
        trial(1, 1, 10.0, Measured(({"m": 9.0, "n": 1.0}, {"m": 11.0, "n": 1.0}))),
        trial(2, 2, 9.5, Measured(({"m": 9.5, "n": 1.0},))),
        trial(3, 3, 40.0, Measured(({"m": 50.0, "n": 3.0},))),
        trial(4, 4, 41.0, Measured(({"m": 51.0, "n": 3.0},))),
    ]
    objectives = [Objective("m").as_dict(), Objective("n", "min", weight=0, limit=2.0).as_dict()]
    best = facts(written(made, metrics=["m", "n"], objectives=objectives))["best"]
    assert best["action"] == {"x": 1}
    assert (best["rivals"], best["exceeding"], best["settings_tried"]) == (1, 2, 4)


def test_found_when_it_was_first_measured(written: Written) -> None:
    """Not when it was first tried, and failed."""
    made = [trial(1, 1, -9.0, Failed("f")), trial(2, 2, 1.0), trial(3, 1, 5.0), trial(4, 1, 5.0)]
    best = facts(written(made))["best"]
    assert (best["trial"], best["found_s"]) == (3, pytest.approx(0.3))


def test_gap_of_the_best_single_setting(written: Written) -> None:
    low, high = {"load": "low"}, {"load": "high"}
    rewards = {(1, "low"): 10.0, (1, "high"): 1.0, (2, "low"): 8.0, (2, "high"): 7.0}
    made, number = [], 0
    for _ in range(3):
        for (x, load), reward in rewards.items():
            number += 1
            made.append(trial(number, x, reward, context=low if load == "low" else high))
    told = facts(written(made, env_params={"load": {"values": ["low", "high"]}}, knobs={"x": {"values": [1, 2]}}))
    assert told["best"]["action"] == {"x": 2}
    by_load = {one["context"]["load"]: one for one in told["per_context"]}
    assert by_load["low"]["action"] == {"x": 1}
    assert (by_load["low"]["reward"], by_load["low"]["single_reward"], by_load["low"]["gap"]) == (10.0, 8.0, 2.0)
    assert by_load["high"]["gap"] == 0.0
    assert by_load["low"]["drawn"] == 6
    assert (told["mean_gap"], told["mean_gap_over"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert told["best"]["rivals"] is None, "the spread over contexts says nothing about noise"


def test_gap_where_the_best_was_never_measured(written: Written) -> None:
    made = [trial(n, 1, 10.0 + n, context={"c": 1}) for n in range(1, 9)]
    made += [trial(9, 2, 1.0, context={"c": 2}), trial(10, 2, 1.0, context={"c": 1})]
    told = facts(written(made, env_params={"c": {"values": [1, 2]}}))
    missing = next(one for one in told["per_context"] if one["context"] == {"c": 2})
    assert (missing["single_reward"], missing["gap"]) == (None, None)
    assert (told["mean_gap"], told["mean_gap_over"]) == (0.0, pytest.approx(0.9))


def test_a_gap_is_never_negative(written: Written) -> None:
    """One lucky trial of the single setting beats the mean of the context's own best, which was measured often."""
    made = [trial(n, 2, 9.0, context={"c": 1}) for n in range(1, 9)]
    made += [
        trial(9, 1, 9.5, context={"c": 1}),
        trial(10, 3, 0.0, context={"c": 1}),
        trial(11, 3, 0.0, context={"c": 1}),
    ]
    made += [trial(n, 1, 20.0, context={"c": 2}) for n in range(12, 18)]
    made += [trial(n, 2, 0.0, context={"c": 2}) for n in range(18, 22)]
    told = facts(written(made, env_params={"c": {"values": [1, 2]}}))
    assert told["best"]["action"] == {"x": 1}
    here = next(one for one in told["per_context"] if one["context"] == {"c": 1})
    assert (here["action"], here["reward"], here["single_reward"]) == ({"x": 2}, 9.0, 9.5)
    assert (here["gap"], here["gap_note"]) == (0.0, "not distinguishable")
    assert told["mean_gap"] == 0.0


def test_a_single_setting_that_exceeds_a_limit_somewhere(written: Written) -> None:
    made = []
    for turn in range(3):
        made += [
            trial(4 * turn + 1, 1, 8.0, Measured(({"m": 9.0, "n": 3.0},)), context={"c": 1}),
            trial(4 * turn + 2, 2, 5.0, Measured(({"m": 5.0, "n": 1.0},)), context={"c": 1}),
            trial(4 * turn + 3, 1, 9.0, Measured(({"m": 9.0, "n": 0.5},)), context={"c": 2}),
            trial(4 * turn + 4, 2, 1.0, Measured(({"m": 1.0, "n": 1.0},)), context={"c": 2}),
        ]
    objectives = [Objective("m").as_dict(), Objective("n", "min", weight=0, limit=2.0).as_dict()]
    keys = {"metrics": ["m", "n"], "objectives": objectives, "env_params": {"c": {"values": [1, 2]}}}
    told = facts(written(made, **keys))
    assert told["best"]["action"] == {"x": 1}
    here, there = told["per_context"]
    assert (here["action"], here["gap"], here["gap_note"]) == ({"x": 2}, 0.0, "exceeds a limit")
    assert (there["action"], there["gap"], there["gap_note"]) == ({"x": 1}, 0.0, None)


def test_objectives_and_pareto(written: Written) -> None:
    made = [
        trial(n, n, 0.0, Measured(({"fast": fast, "small": small},)))
        for n, (fast, small) in enumerate([(1.0, 1.0), (2.0, 2.0), (2.0, 3.0)], 1)
    ]
    objectives = [Objective("fast").as_dict(), Objective("small", "min", limit=2.5).as_dict()]
    told = facts(written(made, objectives=objectives, metrics=["fast", "small"]))
    assert told["objectives"] == objectives
    assert sorted(one["trial"] for one in told["pareto"]) == [1, 2]


def test_time_and_cost(written: Written) -> None:
    made = [
        trial(1, 1, 1.0, Measured(({"m": 1.0, "cpu_s": 2.0}, {"m": 1.0, "cpu_s": 3.0})), took=6.0),
        trial(2, 1, 1.0, took=0.5, cached_from=1),
        trial(3, 2, -9.0, Failed("f"), took=2.0),
    ]
    time = facts(written(made))["time"]
    assert time["trials_s"] == 8.5
    assert time["not_measured_s"] == 2.0
    assert time["saved_s"] == 5.5
    assert time["cpu_s"] == 5.0
    assert time["wall_s"] == pytest.approx(0.3)
    assert (time["hosts"], time["sessions"]) == (["host"], 1)
    assert facts(written(made[1:2], "other"))["time"]["cpu_s"] is None, "unknown is not zero"


def test_time_between_sessions_does_not_count(written: Written, tmp_path: Path) -> None:
    results = written([trial(1, 1, 1.0), trial(2, 2, 2.0)], ended=None)
    path = results.folder / "e" / "journal.jsonl"
    session = {"record": "session", "at": 2e9, "fingerprint": "f", "parts": {}}
    opened = {"record": "open", "number": 3, "at": 2e9, "since": 1.0, "context": {}, "action": {"x": 3}}
    closed = {"record": "close", "number": 3, "at": 2e9, "since": 4.0, "status": "measured", "reward": 9.0}
    closed |= {"duration_s": 3.0, "samples": [{"m": 9.0}]}
    with path.open("ab") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in (session, opened, closed))
    results = TrialResults("e", path.parent)
    assert results.times == pytest.approx({1: 0.1, 2: 0.2, 3: 4.2})
    assert results.summary().facts["best"]["found_s"] == pytest.approx(4.2)
