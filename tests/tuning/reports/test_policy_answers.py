"""What is recommended where the agent has left a policy, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import Choice, PolicyTable
from tunegym.tuning.answers.recommendation import Recommendation
from tunegym.tuning.model.objective import Objective
from tunegym.tuning.model.outcome import Cancelled, Failed, Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Scalar
from tunegym.tuning.reports.recommend import recommend
from tunegym.tuning.reports.results import RunResults, load

KNOBS = {"x": {"values": [1, 2, 1.0, True, "1"]}}
LOAD = {"load": {"values": ["low", "high", 1, 1.0, True], "weights": None}}
REWARD = {"agent_metrics": ["m"], "agent_reward_function": "identity"}

Row = tuple[Mapping[str, Scalar], Scalar, float | None]
"""Context, the knob, and the metric, which is the reward (None for a failure)."""


def trials(rows: Iterable[Row]) -> list[Trial]:
    made = []
    for number, (context, x, value) in enumerate(rows, start=1):
        outcome = Failed("no") if value is None else Measured(({"m": value},))
        made.append(Trial(number, context, {"x": x}, outcome, -9.0 if value is None else value, 0.1))
    return made


def at(load: Scalar, x: Scalar, *values: float | None) -> list[Row]:
    return [({"load": load}, x, value) for value in values]


ROWS = [*at("low", 1, 5.0, 5.1), *at("low", 2, 3.0, 3.1), *at("high", 2, 4.0, 4.2, 4.1), *at("high", 1, 1.0, 1.1)]


@pytest.fixture
def answer(written: Callable[..., RunResults]) -> Callable[..., Recommendation]:
    """Ask a run of these rows with this policy."""

    def ask(
        rows: Iterable[Row] | list[Trial],
        choices: Iterable[Choice],
        context: Mapping[str, Any] | None = None,
        learned: int = 1000,
        **keys: Any,
    ) -> Recommendation:
        made = list(rows)
        given = made if all(isinstance(one, Trial) for one in made) else trials(made)  # type: ignore[arg-type]
        keys = {"knobs": KNOBS, "env_params": LOAD, "declared": REWARD, "agent": "bandit", **keys}
        folder = written(given, **keys).folder
        policies.save(folder / "e", PolicyTable("bandit", learned, tuple(choices)))
        return recommend(folder, context)

    return ask


def chosen(load: Scalar, x: Scalar) -> Choice:
    return Choice({"x": x}, 0.9, {"load": load})


def test_in_a_context_the_policy_answers(answer: Callable[..., Recommendation]) -> None:
    found = answer(ROWS, [chosen("low", 1), chosen("high", 2)], {"load": "high"})
    assert found.as_dict() == {
        "action": {"x": 2},
        "context": {"load": "high"},
        "source": "policy",
        "measured": 3,
        "mean": {"m": pytest.approx(4.1)},
        "spread": {"m": pytest.approx(0.1)},
        "failed": 0,
        "violation": 0.0,
        "note": None,
    }
    assert (found.setting.first, found.setting.reward) == (5, pytest.approx(4.1))


def test_without_env_params_it_has_one_answer(answer: Callable[..., Recommendation]) -> None:
    rows: list[Row] = [({}, 1, 5.0), ({}, 2, 4.9), ({}, 2, 5.2), ({}, 1, 5.2)]
    found = answer(rows, [Choice({"x": 2}, None, {})], env_params={})
    assert (found.source, dict(found.action), found.measured, found.note) == ("policy", {"x": 2}, 2, None)


@pytest.mark.parametrize(("context", "missing"), [(None, "load and net"), ({"net": "wifi"}, "load")])
def test_it_answers_for_whole_contexts_only(answer: Callable[..., Recommendation], context: Any, missing: str) -> None:
    both = LOAD | {"net": {"values": ["wifi", "wire"], "weights": None}}
    rows = [({**context, "net": "wifi"}, x, value) for context, x, value in ROWS]
    found = answer(rows, [Choice({"x": 1}, None, {"load": "low", "net": "wifi"})], context, env_params=both)
    assert (found.source, found.measured) == ("trials", 4 if found.action["x"] == 1 else 5)
    assert found.note is not None
    assert f"the policy answers for a whole context, so give {missing} too" in found.note
    assert "in 1 of 1 such contexts it chooses x=1" in found.note


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_types_stay_apart(answer: Callable[..., Recommendation], value: Scalar) -> None:
    rows = [row for one in (1, 1.0, True) for row in at(one, one, 1.0, 1.0)]
    found = answer(rows, [chosen(one, one) for one in (1, 1.0, True)], {"load": value})
    assert found.source == "policy"
    assert (type(found.action["x"]), type(found.context["load"])) == (type(value), type(value))
    assert found.measured == 2


def test_where_it_was_never_asked(answer: Callable[..., Recommendation]) -> None:
    """A candidate of weight 0, or a table that holds only some of many contexts."""
    found = answer(ROWS, [chosen("low", 1)], {"load": "high"})
    assert (found.source, dict(found.action)) == ("trials", {"x": 2})
    assert found.note == 'this is from the trials: the policy was never asked at load="high"'
    found = answer(ROWS, [], {"load": "high"}, folder="empty")
    assert found.source == "trials"


def test_settings_that_were_never_measured_there(answer: Callable[..., Recommendation]) -> None:
    found = answer(ROWS, [chosen("low", "1")], {"load": "low"})
    assert (found.source, found.measured, found.mean, found.spread) == ("policy", 0, {}, {})
    assert found.note == "the best that was measured there is x=1 (m 5.05 from 2 samples)"
    assert "reward" not in found.setting.as_dict()
    rows = [*at("low", 1, 5.0, 5.1), *at("high", 2, 4.0, 4.2)]
    found = answer(rows, [chosen("low", 2)], {"load": "low"}, folder="elsewhere")
    assert found.note is not None
    assert found.note.startswith("in other contexts these settings were measured: m 4.1 from 2 samples; the best that")
    rows = [*at("low", 1, 5.0, 5.1), *at("high", 2, None, None), *at("high", 1, 1.0)]
    found = answer(rows, [chosen("low", 2)], {"load": "low"}, folder="failed")
    assert (found.source, found.failed) == ("policy", 0)
    assert found.note is not None
    assert "in other contexts these settings failed 2 times, and were never measured" in found.note


def test_a_context_that_was_never_measured(answer: Callable[..., Recommendation]) -> None:
    found = answer(ROWS, [chosen(1, 2)], {"load": 1})
    assert (found.source, dict(found.action), found.measured) == ("policy", {"x": 2}, 0)
    assert found.note == "in other contexts these settings were measured: m 3.633 from 5 samples"


@pytest.mark.parametrize("times", [1, 3])
def test_a_choice_that_always_failed_is_not_given(answer: Callable[..., Recommendation], times: int) -> None:
    found = answer([*ROWS, *at("low", "1", *(None,) * times)], [chosen("low", "1")], {"load": "low"})
    assert (found.source, dict(found.action)) == ("trials", {"x": 1})
    assert found.note is not None
    how = "the one time it was" if times == 1 else "all 3 times it was"
    assert f'the policy chooses x="1", which failed {how} tried there' in found.note


def test_one_that_failed_sometimes_is(answer: Callable[..., Recommendation]) -> None:
    found = answer([*ROWS, *at("low", 1, None)], [chosen("low", 1)], {"load": "low"})
    assert (found.source, found.measured, found.failed) == ("policy", 2, 1)


def test_a_cancelled_trial_is_no_failure(answer: Callable[..., Recommendation]) -> None:
    made = [*trials(ROWS), Trial(10, {"load": "low"}, {"x": "1"}, Cancelled(), -9.0, 0.0)]
    found = answer(made, [chosen("low", "1")], {"load": "low"}, learned=9)
    assert (found.source, found.measured) == ("policy", 0)
    assert found.note is not None
    assert "saved after" not in found.note, "it never ran, so there was nothing to learn from it"


def test_a_cached_trial_is_no_measurement(answer: Callable[..., Recommendation]) -> None:
    made = trials(ROWS)
    again = Trial(10, {"load": "low"}, {"x": 1}, made[0].outcome, made[0].reward, 0.0, cached_from=1)
    assert answer([*made, again], [chosen("low", 1)], {"load": "low"}).measured == 2


def test_a_setting_that_was_clearly_better(answer: Callable[..., Recommendation]) -> None:
    found = answer(ROWS, [chosen("low", 2)], {"load": "low"})
    assert (found.source, dict(found.action), found.measured) == ("policy", {"x": 2}, 2)
    assert found.note == "x=1 was measured better there: m 5.05 from 2 samples against m 3.05 from 2 samples"


def test_noise_is_no_reason(answer: Callable[..., Recommendation]) -> None:
    rows = [*at("low", 1, 5.0, 3.0, 5.5), *at("low", 2, 4.0, 3.0, 5.0)]
    assert answer(rows, [chosen("low", 2)], {"load": "low"}).note is None
    rows = [*at("low", 1, 5.0), *at("low", 2, 4.5), *at("low", "1", 3.0, 2.0, 1.0)]
    assert answer(rows, [chosen("low", 2)], {"load": "low"}, folder="others").note is None, "others tell the spread"


def test_what_was_measured_once_only_looks_better(answer: Callable[..., Recommendation]) -> None:
    """With a cache nothing is measured twice: nobody knows the spread then."""
    found = answer([*at("low", 1, 5.0), *at("low", 2, 3.0)], [chosen("low", 2)], {"load": "low"})
    assert found.note == "x=1 looks better there: m 5 from 1 sample against m 3 from 1 sample"
    found = answer([*at("low", 1, 5.0), *at("low", 2, 5.0)], [chosen("low", 2)], {"load": "low"}, folder="same")
    assert found.note is None


def test_repeats_tell_the_spread(answer: Callable[..., Recommendation]) -> None:
    def measured(number: int, x: int, *values: float) -> Trial:
        samples = Measured(tuple({"m": value} for value in values))
        return Trial(number, {"load": "low"}, {"x": x}, samples, sum(values) / len(values), 0.1)

    made = [measured(1, 1, 5.0, 3.0, 4.3), measured(2, 2, 4.0, 5.0, 3.0)]
    assert answer(made, [chosen("low", 2)], {"load": "low"}).note is None


def test_limits(answer: Callable[..., Recommendation]) -> None:
    limits = [Objective("m", "max").as_dict(), Objective("ms", "min", limit=10.0).as_dict()]

    def measured(number: int, x: int, m: float, ms: float) -> Trial:
        return Trial(number, {"load": "low"}, {"x": x}, Measured(({"m": m, "ms": ms},)), m, 0.1)

    made = [measured(1, 1, 5.0, 20.0), measured(2, 2, 4.0, 5.0), measured(3, 1, 5.0, 20.0)]
    found = answer(made, [chosen("low", 1)], {"load": "low"}, objectives=limits, metrics=["m", "ms"], declared={})
    assert (found.source, found.violation) == ("policy", pytest.approx(1.0))
    assert found.note is not None
    assert "it exceeds the limits (ms is 20, the limit 10); x=2 keeps the limits there" in found.note


def test_a_policy_that_is_older_than_the_journal(answer: Callable[..., Recommendation]) -> None:
    found = answer(ROWS, [chosen("low", 1)], {"load": "low"}, learned=4)
    assert found.note == "the policy was saved after 4 of 9 trials"


SIZE = {"size": {"low": 1.0, "high": 10_000.0, "dtype": "float", "log": True, "weights": None}}


def test_the_nearest_place_of_a_range(answer: Callable[..., Recommendation]) -> None:
    """On its own scale: 30 is nearer to 100 than to 1, and 9 is not."""
    rows: list[Row] = [({"size": 10.0 ** (index / 10)}, 1 if index < 20 else 2, 1.0) for index in range(41)]
    choices = [Choice({"x": 1 + (place >= 100)}, None, {"size": place}) for place in (1.0, 100.0, 10_000.0)]
    found = answer(rows, choices, {"size": 30}, env_params=SIZE)
    assert (found.source, dict(found.action), found.context) == ("policy", {"x": 2}, {"size": 30.0})
    assert found.note is not None
    assert "the policy was asked at size=100.0, which is nearest" in found.note
    assert "measurements are the 11 of 41 measured draws that are nearest to size=30.0" in found.note
    assert 0 < found.measured < 11
    found = answer(rows, choices, {"size": 9}, env_params=SIZE, folder="small")
    assert dict(found.action) == {"x": 1}
    assert found.note is not None
    assert "asked at size=1.0" in found.note
    assert "asked" not in (answer(rows, choices, {"size": 100}, env_params=SIZE, folder="exact").note or "")


def test_better_near_a_value_of_a_range(answer: Callable[..., Recommendation]) -> None:
    """What is usual differs from draw to draw, and must not be taken for a difference between settings."""
    rows: list[Row] = []
    for index in range(40):
        size = 10.0 ** (index / 10)
        rows += [({"size": size}, 1, index + 5.0 + index % 2), ({"size": size}, 2, index + index % 2 * 1.0)]
    found = answer(rows, [Choice({"x": 2}, None, {"size": 10.0})], {"size": 10}, env_params=SIZE)
    assert found.note is not None
    assert "x=1 was measured better there, by 5 of reward" in found.note
    found = answer(rows, [Choice({"x": 1}, None, {"size": 10.0})], {"size": 10}, env_params=SIZE, folder="right")
    assert found.note is not None
    assert "better" not in found.note


DAMAGE = {
    "is damaged": '{"format": 1, "agent"',
    "format 7": '{"format": 7}',
    "doesn't belong to this journal": (
        '{"format": 1, "agent": "a", "trials": 1, "choices":'
        ' [{"context": {"load": "low"}, "action": {"y": 1}, "chance": null}]}'
    ),
    "it has x=3 at": (
        '{"format": 1, "agent": "a", "trials": 1, "choices":'
        ' [{"context": {"load": "low"}, "action": {"x": 3}, "chance": null}]}'
    ),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_a_policy_that_can_not_be_used(written: Callable[..., RunResults], why: str) -> None:
    folder = written(trials(ROWS), knobs=KNOBS, env_params=LOAD, declared=REWARD).folder
    (folder / "e" / "policy").mkdir()
    (folder / "e" / "policy" / "policy.json").write_text(DAMAGE[why])
    found = recommend(folder, {"load": "low"})
    assert (found.source, dict(found.action)) == ("trials", {"x": 1})
    assert found.note is not None
    assert found.note.startswith("this is from the trials, since the policy can't be used: ")
    assert why in found.note


def test_best_toml_is_about_trials(answer: Callable[..., Recommendation], tmp_path: Path) -> None:
    answer(ROWS, [chosen("low", 2), chosen("high", 1)], {"load": "low"})
    best = {
        one.context["load"]: one.action["x"] for one in load(tmp_path).experiments["e"].best_per_context if one.context
    }
    assert best == {"low": 1, "high": 2}


def test_nothing_was_measured(answer: Callable[..., Recommendation]) -> None:
    from tunegym.core.errors import StoreError

    with pytest.raises(StoreError, match="no trial was measured"):
        answer(at("low", 1, None), [chosen("low", 2)], {"load": "low"})


def test_rewards_near_the_largest_float(answer: Callable[..., Recommendation]) -> None:
    rows = [*at("low", 1, 1.7e308, 1.6e308), *at("low", 2, -1.7e308, -1.7e308)]
    found = answer(rows, [chosen("low", 2)], {"load": "low"})
    assert (found.source, found.setting.reward) == ("policy", -1.7e308)
