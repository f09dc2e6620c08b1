"""The answer: its sentence, ties, gains over a baseline, failures, contexts, and where nothing can be said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tunegym.tuning.answers.answer import Verdict, answer, answer_at
from tunegym.tuning.answers.contexts import params_of
from tunegym.tuning.answers.finalists import Confirmation
from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable, recommend
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.trial import Failed, Measured, Trial
from tunegym.tuning.model.values import Context

Row = tuple[str, int, float | None]
"""The phase, the knob ``x``, and the metric ``s``; None for a failure."""
LOAD = {"load": {"values": ["low", "high"], "weights": [0.75, 0.25]}}
SIZE = {"size": {"low": 0.0, "high": 60.0, "dtype": "float"}}
JITTER = (0.99, 1.01, 1.0, 0.985, 1.015, 1.0)


def head(**more: Any) -> dict[str, Any]:
    return {
        "knobs": {"x": {"values": [1, 2, 3, 4, 5]}},
        "env_params": {},
        "metrics": ["s"],
        "objectives": [{"metric": "s", "goal": "min"}],
        "goals": {"s": "min"},
        "confirm": {"mode": "auto", "share": 0.2},
        **more,
    }


def trials(rows: Iterable[tuple[Row, Context]]) -> list[Trial]:
    made = []
    for number, ((phase, x, value), context) in enumerate(rows, start=1):
        outcome = Failed("no") if value is None else Measured(({"s": value},))
        made.append(Trial(number, context, {"x": x}, outcome, -(value or 99.0), 0.1, phase=phase))
    return made


def rows(phase: str, x: int, mean: float, count: int, context: Context | None = None) -> list[tuple[Row, Context]]:
    return [((phase, x, mean * JITTER[at % len(JITTER)]), context or {}) for at in range(count)]


def search(means: Mapping[int, float], context: Context | None = None) -> list[tuple[Row, Context]]:
    return [row for x, mean in means.items() for row in rows("search", x, mean, 2, context)]


MEANS = {1: 1.0, 2: 1.2, 3: 1.5}


def overall(made: Iterable[tuple[Row, Context]], **more: Any) -> Verdict:
    return answer(trials(made), head(**more), {}).overall


def test_a_confirmed_answer_beside_a_baseline() -> None:
    made = [*rows("baseline", 5, 2.0, 1), *rows("noise", 5, 2.0, 2), *search(MEANS)]
    made += [*rows("confirm", 2, 1.2, 2), *rows("confirm", 1, 1.0, 6), *rows("confirm", 5, 2.0, 6)]
    found = overall(made, baseline={"x": 5})
    assert found.sentence == (
        "x=1: s 1, 50 % less than your settings (95 % CI 49 to 51 %), from 4 confirmation trials."
    )
    assert found.confirmed
    assert found.ties == ()
    assert [one.action["x"] for one in found.finalists] == [1, 2, 5]
    one = found.finalists[0]
    assert one is found.chosen
    assert one.gain is not None
    assert one.gain.is_sure
    assert one.gain.percent is not None
    assert one.gain.percent.mean == pytest.approx(50, abs=0.5)
    assert one.gain.reward.mean == pytest.approx(1.0, abs=0.02)
    assert (one.samples, len(one.trials), one.failed) == (4, 4, 0), "without the blocks that chose it"
    assert one.reward is not None
    assert one.reward.low < -1.0 < one.reward.high
    assert set(one.spread) == {"s", "reward"}
    whole = answer(trials(made), head(baseline={"x": 5}), {})
    assert whole.noise is not None
    assert whole.noise.relative_spread == pytest.approx(0.01, rel=0.3)
    assert whole.noise.drift is not None
    assert whole.not_tested == "1 of 5 settings"
    assert json.loads(json.dumps(whole.as_dict()))["overall"]["sentence"] == found.sentence


def test_without_a_baseline_it_says_compared_to_what() -> None:
    found = overall([*search(MEANS), *rows("confirm", 1, 1.0, 6)])
    assert found.sentence.startswith("x=1: s 1 (95 % CI 0.98")
    assert found.sentence.endswith("from 6 confirmation trials; 17 % less than the median of the search.")
    assert found.chosen is not None
    assert found.chosen.gain is not None
    assert (found.chosen.gain.on_baseline, found.chosen.gain.is_sure) == (False, False)


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_gain_is_positive_whatever_the_sign_of_the_metric(goal: str, sign: float) -> None:
    """In percent of the baseline's size."""
    better = -1.0 if goal == "min" else 1.0
    means = {1: sign * 10 + 5 * better, 5: sign * 10}
    given = head(baseline={"x": 5}, objectives=[{"metric": "s", "goal": goal}], goals={"s": goal})
    made = [
        Trial(n, {}, {"x": x}, Measured(({"s": mean * jitter},)), better * mean * jitter, 0.1, phase=phase)
        for n, (phase, jitter, (x, mean)) in enumerate(
            ((phase, jitter, one) for phase in ("search", "confirm") for jitter in JITTER for one in means.items()), 1
        )
    ]
    found = answer(made, given, {}).overall
    assert found.chosen is not None
    assert found.chosen.gain is not None
    assert found.chosen.gain.percent is not None
    assert (found.chosen.action, found.chosen.gain.percent.mean) == ({"x": 1}, pytest.approx(50, abs=1))
    assert f"50 % {'less' if goal == 'min' else 'more'} than your settings" in found.sentence


def test_without_a_confirmation_it_says_so() -> None:
    found = overall([*search(MEANS)])
    assert not found.confirmed
    assert "not confirmed" in found.sentence
    assert found.notes[0].startswith("not confirmed (the run has not come to that, or has too few trials for it)")
    assert found.chosen is not None
    assert found.chosen.action == {"x": 1}


def test_a_baseline_that_cannot_be_told_apart_is_kept() -> None:
    made = [*search(MEANS), *rows("confirm", 1, 0.999, 6), *rows("confirm", 5, 1.0, 5), (("confirm", 5, 1.03), {})]
    found = overall(made, baseline={"x": 5})
    assert found.chosen is not None
    assert found.chosen.is_baseline
    assert [one.action["x"] for one in found.ties] == [1]
    assert found.sentence.startswith("Keep your settings (x=5): s 1")
    assert "nothing is better for sure; the next best, x=1, is 0." in found.sentence


def test_of_a_tie_the_nearest_to_the_baseline() -> None:
    made = [*search(MEANS), *rows("confirm", 4, 1.001, 4), *rows("confirm", 1, 1.0, 4), *rows("confirm", 5, 3.0, 4)]
    found = overall(made, baseline={"x": 5})
    assert found.chosen is not None
    assert found.chosen.action == {"x": 4}
    assert [one.action["x"] for one in found.ties] == [1]
    assert found.sentence.endswith("from 4 confirmation trials; 1 other setting can't be told apart from it.")


def test_a_finalist_that_failed_is_not_recommended_while_another_has_not() -> None:
    failed: list[tuple[Row, Context]] = [(("confirm", 1, None), {})]
    made = [*search(MEANS), *rows("confirm", 1, 1.0, 5), *failed, *rows("confirm", 2, 1.2, 3)]
    found = overall(made)
    assert found.chosen is not None
    assert found.chosen.action == {"x": 2}
    assert "x=1 is not recommended: 1 trial of it failed" in found.notes
    alone = overall([*search(MEANS), *rows("confirm", 1, 1.0, 5), *failed])
    assert alone.chosen is not None
    assert (alone.chosen.action, alone.chosen.failed) == ({"x": 1}, 1)
    assert "1 trial of these settings failed" in alone.notes


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_measurements_name_no_winner(count: int) -> None:
    made: list[tuple[Row, Context]] = [*rows("search", 1, 1.0, count), (("search", 2, None), {})]
    found = overall(made)
    assert found.chosen is None
    assert found.finalists == ()
    told = "1 trial gave 0 measurements" if count == 0 else "2 trials gave 1 measurement"
    assert found.sentence == f"Nothing can be recommended: {told}."


# contexts -------------------------------------------------------------------------------------------------

LOW, HIGH = {"load": "low"}, {"load": "high"}


def contextual() -> list[tuple[Row, Context]]:
    """At low load 1 is the best, at high load, where all values are ten times as large, 3; 2 is good at both."""
    low, high = {1: 1.0, 2: 1.1, 3: 2.0, 5: 2.2}, {1: 20.0, 2: 11.0, 3: 10.0, 5: 22.0}
    made = [*search(low, LOW), *search(high, HIGH)]
    for context, means, own in ((LOW, low, 1), (HIGH, high, 3)):
        for x in (2, own, 5):
            made += rows("confirm", x, means[x], 4, context)
    return made


def test_contexts_have_their_own_answers_and_are_never_mixed() -> None:
    found = answer(trials(contextual()), head(env_params=LOAD, baseline={"x": 5}), {})
    assert [one.chosen.action["x"] for one in found.per_context if one.chosen] == [1, 3]
    assert found.overall.chosen is not None
    assert found.overall.chosen.action == {"x": 2}
    assert {one.action["x"] for one in found.overall.finalists} == {2, 5}, "with evidence in every context"
    gain = found.overall.chosen.gain
    assert gain is not None
    assert gain.reward.mean == pytest.approx(0.75 * 1.1 + 0.25 * 11, rel=0.02)
    assert found.overall.sentence.startswith("Over all 2 contexts, x=2: s 50 % less than your settings")
    assert found.per_context[1].sentence.startswith("At load=high, x=3: s 9.983, 55 % less than your settings")
    over_all = found.overall.chosen
    assert (over_all.reward, over_all.metrics, over_all.spread) == (None, {}, {}), "values of contexts don't mix"


def test_a_confirmation_that_was_cut_anywhere_has_an_answer_or_says_why() -> None:
    made = trials([*rows("baseline", 5, 2.2, 1, LOW), *rows("baseline", 5, 22.0, 1, HIGH), *contextual()[::-1]])
    for cut in range(len(made) + 1):
        found = answer(made[:cut], head(env_params=LOAD, baseline={"x": 5}), {})
        assert all(verdict.sentence for verdict in (found.overall, *found.per_context))


def test_a_winner_that_failed_gives_way_to_a_baseline_that_did_not() -> None:
    made = [*rows("baseline", 5, 2.0, 3), *search(MEANS), *rows("confirm", 5, 2.0, 6), *rows("confirm", 1, 1.0, 5)]
    found = overall([*made, (("confirm", 1, None), {})], baseline={"x": 5})
    assert found.chosen is not None
    assert found.chosen.is_baseline


def test_an_unconfirmed_setting_that_is_worse_than_the_baseline_is_no_answer() -> None:
    found = overall([*rows("baseline", 5, 0.5, 3), *search(MEANS)], baseline={"x": 5}, confirm={"mode": "off"})
    assert found.chosen is not None
    assert (found.chosen.is_baseline, found.confirmed) == (True, False)


@pytest.mark.parametrize(("over", "expected"), [("mean", 3.575), ("worst", 1.1), ({"cvar": 0.5}, 1.1)])
def test_over_contexts(over: Any, expected: float) -> None:
    found = answer(trials(contextual()), head(env_params=LOAD, baseline={"x": 5}, over_contexts=over), {}).overall
    assert found.chosen is not None
    assert found.chosen.gain is not None
    assert found.chosen.gain.reward.mean == pytest.approx(expected, rel=0.02)


def test_a_context_is_never_worse_off_than_with_the_single_setting() -> None:
    made = [*contextual(), *rows("confirm", 4, 1.3, 4, LOW)]
    better = [row for row in made if not (row[0][1] == 1 and row[0][0] == "confirm")]
    found = answer(trials(better), head(env_params=LOAD), {}).per_context[0]
    assert found.chosen is not None
    assert found.chosen.action == {"x": 2}, "its own finalist, 4, is worse than the one over all"


def test_asked_for_a_context() -> None:
    made, given = trials(contextual()), head(env_params=LOAD, baseline={"x": 5})
    found = answer_at(HIGH, made, given, {})
    assert found.chosen is not None
    assert found.chosen.action == {"x": 3}
    assert answer_at({}, made, given, {}).context is None
    only = [trial for trial in made if trial.context == LOW]
    never = answer_at(HIGH, only, given, {})
    assert never.notes[0].startswith("load=high was never measured")


def test_a_context_that_only_the_search_met_has_the_answer_of_the_search() -> None:
    """With many contexts a few are confirmed; what was measured in the others counts there."""
    values = ["a", "b", "c", "d"]
    given = head(env_params={name: {"values": values} for name in ("one", "two")})
    contexts: list[Context] = [context for context, _ in params_of(given).represented()]
    every: list[Context] = [{"one": one, "two": two} for one in values for two in values]
    other = next(context for context in every if context not in contexts)
    made = [row for context in contexts for row in search({1: 1.0, 2: 2.0}, context)]
    made += search({1: 1.0, 2: 0.5}, other)
    for context in contexts:
        made += [*rows("confirm", 1, 1.0, 4, context), *rows("confirm", 2, 2.0, 4, context)]
    found = answer_at(other, trials(made), given, {})
    assert found.chosen is not None
    assert (found.chosen.action, found.confirmed) == ({"x": 2}, False)
    assert found.notes[0].startswith("not confirmed (other contexts were)")
    whole = answer(trials(made), given, {})
    assert whole.overall.sentence.startswith("Over 12 of 16 contexts, x=1, from ")
    assert whole.not_tested == "3 of 5 settings, 3 of 16 contexts"


@pytest.mark.parametrize("baseline", [None, {"x": 5}])
def test_where_nothing_works_in_one_context_the_others_have_an_answer(baseline: Any) -> None:
    made = [*search({1: 1.0, 2: 2.0, 5: 3.0}, LOW)]
    made += [((phase, x, None), HIGH) for phase in ("search", "confirm") for x in (1, 2, 5) for _ in range(2)]
    made += [row for x, mean in ((1, 1.0), (2, 2.0), (5, 3.0)) for row in rows("confirm", x, mean, 4, LOW)]
    found = overall(made, env_params=LOAD, baseline=baseline)
    assert found.chosen is not None
    assert found.chosen.action == {"x": 1}
    assert found.sentence.startswith("Over 1 of 2 contexts, x=1")
    assert ("67 % less than your settings" in found.sentence) == (baseline is not None)


def test_a_share_of_values_of_both_signs_is_no_percentage() -> None:
    """In either order of the contexts."""
    for load in (LOW, HIGH), (HIGH, LOW):
        head_of = {"load": {"values": [one["load"] for one in load]}}
        made = []
        for phase, count in (("search", 2), ("confirm", 6)):
            for x, gain in ((5, 0.0), (1, 0.5)):
                for context, level in zip((LOW, HIGH), (1.0, -10.0), strict=True):
                    made += [((phase, x, (level - gain) * JITTER[at]), context) for at in range(count)]
        found = overall(made, env_params=head_of, baseline={"x": 5})
        assert found.chosen is not None
        assert found.chosen.gain is not None
        assert (found.chosen.action, found.chosen.gain.percent) == ({"x": 1}, None)
        assert found.chosen.gain.reward.mean == pytest.approx(0.5, rel=0.05)


def test_near_a_point_of_a_range() -> None:
    points = [5.0 + 10 * at for at in range(6)]
    made = [row for at in points for row in search({1: 1 + at, 2: 30.0}, {"size": at})]
    made += [
        row
        for at in points
        for x, mean in ((1, 1 + at), (2, 30.0))
        for row in rows("confirm", x, mean, 3, {"size": at})
    ]
    given = head(env_params=SIZE)
    low, high = (answer_at({"size": size}, trials(made), given, {}) for size in (2.0, 58.0))
    assert [one.chosen.action["x"] for one in (low, high) if one.chosen] == [1, 2]
    assert "size=2.0 was never measured: this is the answer at size=5.0, the nearest" in low.notes
    same = answer_at({"size": 5.000001}, trials(made), given, {})
    assert "never" not in same.sentence
    assert same.sentence.startswith("At size=5.0, x=1")


def test_a_part_of_a_context_near_some_points_of_a_range() -> None:
    given = head(env_params={**SIZE, **LOAD})
    places = [context for context, _ in params_of(given).represented()]
    made = [row for place in places for row in search({1: 1.0, 2: 2.0}, place)]
    made += [row for place in places for x in (1, 2) for row in rows("confirm", x, float(x), 3, place)]
    found = answer_at({"size": 11.0}, trials(made), given, {})
    assert found.sentence.startswith("At size=11.0, over 2 contexts, x=1")
    assert found.notes[0].endswith("this is the answer at size=10.0 load=low and at size=10.0 load=high, the nearest")


# beside ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [None, {"x": 5}])
def test_a_part_of_contexts_that_never_come_twice(baseline: Any) -> None:
    """A range beside a list: 2 is best everywhere, and draws of different sizes are not compared."""
    made = [*rows("baseline", 5, 3.0, 1, {"size": 35.0, "load": "low"})] if baseline else []
    for at in range(40):
        context: Context = {"size": 1.5 * at, "load": "low" if at % 4 else "high"}
        made += rows("search", at % 5 + 1, 1.05**at * (1.0 + 0.3 * abs(at % 5 - 1)), 1, context)
    drawn = head(env_params={**SIZE, **LOAD}, **({"baseline": baseline} if baseline else {}))
    for context in ({}, {"load": "low"}, {"load": "high"}):
        found = answer_at(context, trials(made), drawn, {})
        assert found.chosen is not None
        assert (found.chosen.action, found.chosen.gain) == ({"x": 2}, None)
        assert "over all contexts, x=2, from" in found.sentence.lower()


def test_a_context_that_the_search_never_drew_has_nothing_to_compare_with() -> None:
    made = [*search(MEANS, {"load": "low"}), *rows("noise", 1, 1.0, 2, {"load": "low"})]
    made += [*rows("confirm", 1, 1.0, 4, {"load": "low"}), *rows("confirm", 1, 50.0, 4, {"load": "high"})]
    found = answer(trials(made), head(env_params=LOAD), {})
    gains = {one.context["load"]: one.chosen.gain for one in found.per_context if one.chosen and one.context}
    assert gains["low"] is not None
    assert gains["high"] is None
    assert "%" not in found.overall.sentence


def test_limits_come_first() -> None:
    objectives = [Objective("s", "min").as_dict(), Objective("mb", "min", weight=0, limit=10.0).as_dict()]
    made = [
        Trial(n, {}, {"x": x}, Measured(({"s": s, "mb": mb},)), -s, 0.1, phase=phase)
        for n, (phase, x, s, mb) in enumerate(
            [
                (phase, x, s * j, mb)
                for phase in ("search", "confirm")
                for x, s, mb in ((1, 1.0, 20.0), (2, 2.0, 5.0))
                for j in JITTER[:3]
            ],
            1,
        )
    ]
    found = answer(made, head(objectives=objectives, metrics=["s", "mb"]), {}).overall
    assert found.chosen is not None
    assert found.chosen.action == {"x": 2}
    assert found.ties == ()


def test_what_a_policy_would_choose_is_said() -> None:
    policy = PolicyTable("dqn", 6, (PolicyChoice({"x": 3}),))
    made = trials([*search(MEANS), *rows("confirm", 3, 1.5, 2), *rows("confirm", 1, 1.0, 6)])
    assert "the agent's policy chooses x=3" in answer(made, head(), {}, policy).overall.notes
    recommended = recommend("e", made, head(), {}, policy, {})
    assert (recommended.action, recommended.source, recommended.confirmed) == ({"x": 1}, "trials", True)
    assert recommended.measured == 4
    assert recommended.verdict is not None
    assert math.isclose(recommended.mean["s"], recommended.verdict.finalists[0].metrics["s"].mean)


def test_drift_and_a_busy_machine() -> None:
    def noise(start: Sequence[float], end: Sequence[float]) -> Any:
        made: list[tuple[Row, Context]] = [(("noise", 5, value), {}) for value in start]
        made += search(MEANS)
        made += [(("noise", 5, value), {}) for value in end]
        found = answer(trials(made), head(), {})
        assert found.noise is not None
        assert found.overall.notes[-1:] == ((found.noise.note,) if found.noise.note else found.overall.notes[-1:])
        return found.noise

    assert noise([1.0, 1.01, 0.99], [1.0]).note is None
    assert noise([0.0, 0.0, 1.0], [0.0]).drift is None, "nothing is a share of 0"
    assert noise([-0.1, 0.1, 0.2], [0.3]).drift is None
    assert "is the machine busy?" in noise([1.0, 1.5, 0.7], [1.0]).note
    assert "from the start to the end" in noise([1.0, 1.01, 0.99], [1.5]).note


# what a sentence must not hide ----------------------------------------------------------------------------


def test_a_reward_of_several_metrics_is_shown_itself() -> None:
    """Its first metric may get worse while the reward gets better."""
    made = []
    for number, (phase, x) in enumerate([("baseline", 5), *[("search", 1)] * 2, *[("confirm", 1), ("confirm", 5)] * 6]):
        a, b = (11.0, 1.0) if x == 1 else (2.0, 100.0)
        values = {"a": a * JITTER[number % 6], "b": b * JITTER[number % 5]}
        outcome = Measured((values,))
        made.append(Trial(number + 1, {}, {"x": x}, outcome, -values["a"] - values["b"], 0.1, phase=phase))
    whole = head(baseline={"x": 5}, metrics=["a", "b"], objectives=[], goals={"a": "min", "b": "min"})
    found = answer(made, whole, {"agent_reward_function": "rewards:both"}).overall
    assert found.sentence.startswith("x=1: reward -11.98, 90 more reward than your settings")


@pytest.mark.parametrize(
    ("broken", "said"), [(True, "your settings exceed the limits (mb is 20, the limit 10)"), (False, "")]
)
def test_a_baseline_that_exceeds_a_limit_is_said(broken: bool, said: str) -> None:
    objectives = [Objective("s", "min").as_dict(), Objective("mb", "min", weight=0, limit=10.0).as_dict()]
    made = []
    for number, (phase, x) in enumerate([("baseline", 5), *[("search", 1)] * 2, *[("confirm", 1), ("confirm", 5)] * 6]):
        s = (2.0 if x == 1 else 1.0 if broken else 3.0) * JITTER[number % 6]
        mb = 20.0 if broken and x == 5 else 5.0
        made.append(
            Trial(number + 1, {}, {"x": x}, Measured(({"s": s, "mb": mb},)), -s - 9 * (mb > 10), 0.1, phase=phase)
        )
    found = answer(made, head(baseline={"x": 5}, objectives=objectives), {}).overall
    assert found.sentence.startswith("x=1: s 1.997, ")
    assert found.sentence.endswith(f"; {said}." if said else "confirmation trials.")


def test_a_baseline_that_fails_is_said_once() -> None:
    made = [*search(MEANS), *rows("confirm", 1, 1.0, 6), *[(("confirm", 5, None), {})] * 2]
    found = overall(made, baseline={"x": 5})
    assert found.sentence.endswith("than the median of the search; your settings failed in 2 trials.")
    assert not any("failed" in note for note in found.notes)


def test_worst_is_over_the_baseline() -> None:
    """x=1 is better than the baseline everywhere; x=2 looks best beside what is typical, and is no better somewhere."""
    places: tuple[Context, ...] = ({"load": "low"}, {"load": "high"})
    truth = {"low": {1: 1.7, 2: 2.9, 3: 1.2, 5: 2.9}, "high": {1: 110.0, 2: 90.0, 3: 190.0, 5: 170.0}}
    made = [
        row for one in places for x, mean in truth[str(one["load"])].items() for row in rows("search", x, mean, 2, one)
    ]
    more = {"env_params": LOAD, "baseline": {"x": 5}, "over_contexts": "worst"}
    first = Confirmation(head(**more), trials(made), 60, 0).next_block()
    assert all(({"x": 1}, one) in first for one in places)
    made += [row for one in places for x in (1, 5) for row in rows("confirm", x, truth[str(one["load"])][x], 6, one)]
    assert overall(made, **more).sentence.startswith("In the worst of 2 contexts, x=1: s 4")
    more["over_contexts"] = {"cvar": 0.5}
    assert overall(made, **more).sentence.startswith("Over the worst 50 % of 2 contexts, x=1: s ")


def test_one_lucky_sample_has_no_interval() -> None:
    made = [
        *rows("baseline", 5, 2.0, 1),
        *rows("noise", 5, 2.0, 2),
        *rows("search", 1, 1.0, 1),
        *rows("search", 2, 1.5, 1),
    ]
    found = overall(made, baseline={"x": 5})
    assert found.sentence == "x=1: s 0.99, 50 % less than your settings, from 1 search trial, not confirmed."


def test_what_may_not_be_used_is_no_tie() -> None:
    failing = [*rows("confirm", 2, 1.0, 5), (("confirm", 2, None), {})]
    made = [*search({1: 1.0, 2: 1.0, 3: 1.5}), *rows("confirm", 1, 1.0, 6), *failing]
    found = overall(made)
    assert found.chosen is not None
    assert (found.chosen.action, found.ties) == ({"x": 1}, ())


def test_a_tie_follows_the_noise_of_its_context() -> None:
    """Another context is very noisy; in this one the difference is clear."""
    low, high = {"load": "low"}, {"load": "high"}
    made = [*search({1: 1.0, 2: 1.1}, low), *search({1: 1.0, 2: 1.1}, high)]
    made += [*rows("confirm", 1, 1.0, 6, low), *rows("confirm", 2, 1.1, 6, low)]
    for x in (1, 2):
        made += [(("confirm", x, one), high) for one in (0.3, 2.0, 0.7, 1.6, 0.4, 1.5)]
    found = {
        str((one.context or {})["load"]): one for one in answer(trials(made), head(env_params=LOAD), {}).per_context
    }
    assert (len(found["low"].ties), len(found["high"].ties)) == (0, 1)


def test_failures_of_the_search_are_told() -> None:
    made = [*search(MEANS), (("search", 1, None), {}), *rows("confirm", 1, 1.0, 6)]
    found = overall(made)
    assert found.chosen is not None
    assert (found.chosen.action, "1 trial of these settings failed" in found.notes) == ({"x": 1}, True)


def test_nothing_but_the_baseline_was_measured() -> None:
    found = overall([*rows("baseline", 5, 2.0, 1), *rows("noise", 5, 2.0, 2)], baseline={"x": 5})
    assert found.sentence.endswith("from 3 trials, not confirmed: nothing else was measured.")


def test_a_metric_that_changes_its_sign_is_compared_in_its_own_unit() -> None:
    made = [*search({1: -1.0, 2: 1.0}), *rows("confirm", 1, -1.0, 6), *rows("confirm", 5, 3.0, 6)]
    found = overall(made, baseline={"x": 5})
    assert found.sentence.startswith("x=1: s -1, 4 less than your settings (95 % CI 3.9")
