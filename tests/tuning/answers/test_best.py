from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.reports.conftest import write_journal

from tunegym.core.randomness import unit
from tunegym.tuning.answers.best import best_of
from tunegym.tuning.model.outcome import Cancelled, Failed, Infeasible, Measured, Outcome, TimedOut
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import TrialResults


def trial(number: int, x: Any, reward: float, outcome: Outcome | None = None, **more: Any) -> Trial:
    context = more.pop("context", {})
    return Trial(number, context, {"x": x}, outcome or Measured(({"m": reward},)), reward, 0.0, **more)


def test_nothing_measured_nothing_best() -> None:
    assert best_of([]).overall is None
    outcomes = [Infeasible("i"), Failed("f"), TimedOut(), Cancelled()]
    assert best_of([trial(n, n, 1e9, outcome) for n, outcome in enumerate(outcomes, 1)]).overall is None
    assert best_of([]).as_dict() == {}


def test_highest_reward_wins_and_the_earliest_of_equals() -> None:
    best = best_of([trial(1, 1, 2.0), trial(2, 2, 5.0), trial(3, 3, 5.0), trial(4, 4, -1.0)]).overall
    assert best is not None
    assert (best.first, best.action, best.reward) == (2, {"x": 2}, 5.0)


@pytest.mark.parametrize("outcome", [Infeasible("i"), Failed("f"), TimedOut(), Cancelled()])
def test_what_was_not_measured_never_wins(outcome: Outcome) -> None:
    """Whatever penalty somebody set for it."""
    best = best_of([trial(1, 1, -5.0), trial(2, 2, 1e9, outcome), trial(3, 1, 1e9, outcome)]).overall
    assert best is not None
    assert best.action == {"x": 1}
    assert (best.reward, best.failed, len(best.samples)) == (-5.0, 1, 1)


def test_cached_trials_do_not_count_again() -> None:
    """A lucky measurement that is served a hundred times is one measurement."""
    lucky = trial(1, 1, 10.0)
    served = [trial(n, 1, 10.0, lucky.outcome, cached_from=1) for n in range(2, 100)]
    best = best_of([lucky, *served, trial(100, 1, 2.0), trial(101, 2, 8.0)]).overall
    assert best is not None
    assert (best.action, best.reward) == ({"x": 2}, 8.0)
    again = best_of([lucky, *served]).overall
    assert again is not None
    assert len(again.samples) == 1


def test_same_setting_measured_twice_counts_with_its_mean() -> None:
    best = best_of([trial(1, 1, 9.0), trial(2, 1, 1.0), trial(3, 2, 6.0)]).overall
    assert best is not None
    assert (best.action, best.reward) == ({"x": 2}, 6.0)


def test_equal_looking_settings_stay_apart() -> None:
    best = best_of([trial(1, 1, 1.0), trial(2, 1.0, 3.0), trial(3, True, 2.0)]).overall
    assert best is not None
    assert repr(best.action) == repr({"x": 1.0})
    assert len(best.samples) == 1


def varied(number: int, x: str, load: Any, reward: float) -> Trial:
    return trial(number, x, reward, context={"load": load})


def test_lucky_context_does_not_win() -> None:
    """In light load everything is fast: the setting that was better than others under the same load wins."""
    trials = [
        varied(1, "unlucky but good", "heavy", 20.0), varied(2, "bad", "heavy", 10.0), varied(3, "bad", "heavy", 10.0),
        varied(4, "lucky", "light", 100.0), varied(5, "bad", "light", 101.0), varied(6, "bad", "light", 102.0),
        varied(7, "unlucky but good", "heavy", 21.0), varied(8, "lucky", "light", 100.0),
    ]  # fmt: skip
    best = best_of(trials)
    assert best.overall is not None
    assert best.overall.action == {"x": "unlucky but good"}
    assert {setting.context["load"]: setting.action["x"] for setting in best.per_context if setting.context} == {
        "heavy": "unlucky but good",
        "light": "bad",
    }


def test_single_lucky_measurement_is_not_trusted_like_many() -> None:
    trials = [varied(n, "steady", "a", 10.0) for n in range(1, 9)]
    trials += [varied(n, "poor", "a", 0.0) for n in range(9, 17)]
    trials += [varied(17, "once", "a", 11.0)]
    best = best_of(trials).overall
    assert best is not None
    assert best.action == {"x": "steady"}


def test_contexts_count_as_often_as_they_are_drawn() -> None:
    """Shining in a rare context, or having met nothing else, is not being best over all."""
    trials = [
        varied(1, "specialist", "rare", 50.0), varied(2, "good", "rare", 10.0), varied(3, "bad", "rare", 10.0),
        varied(4, "good", "usual", 30.0), varied(5, "bad", "usual", 10.0),
    ]  # fmt: skip
    served = trials[3].outcome
    trials += [trial(n, "good", 30.0, served, context={"load": "usual"}, cached_from=4) for n in range(6, 26)]
    best = best_of(trials)
    assert best.overall is not None
    assert best.overall.action == {"x": "good"}
    assert best.overall.reward == pytest.approx((3 * 10.0 + 22 * 30.0) / 25)
    assert {s.context["load"]: s.action["x"] for s in best.per_context if s.context} == {
        "rare": "specialist",
        "usual": "good",
    }


@pytest.mark.parametrize("parameters", [1, 3])
def test_contexts_that_never_come_twice(parameters: int) -> None:
    """From ranges, each context is new: the best setting is found all the same, whichever came first."""
    for seed in range(10):
        trials = []
        for number in range(1, 121):
            context = {f"load{index}": unit(seed, "load", index, number) for index in range(parameters)}
            x = ("worst", "good", "best")[int(unit(seed, "x", number) * 3)]
            noise = unit(seed, "noise", number)
            reward = 100.0 * sum(context.values()) + {"worst": 0.0, "good": 10.0, "best": 30.0}[x] + noise
            trials.append(trial(number, x, reward, context=context))
        best = best_of(trials)
        assert best.overall is not None
        assert best.overall.action == {"x": "best"}
        assert best.per_context == ()


def test_few_contexts_that_never_come_twice() -> None:
    """Too few to tell what the context does: then the reward itself must do."""
    trials = [trial(n, n, float(n % 3), context={"load": n / 7}) for n in range(1, 4)]
    best = best_of(trials).overall
    assert best is not None
    assert best.action == {"x": 2}


def test_iterators_are_fine() -> None:
    best = best_of(iter([trial(1, 1, 1.0), trial(2, 2, 2.0)])).overall
    assert best is not None
    assert best.action == {"x": 2}


def test_best_toml(tmp_path: Path) -> None:
    """Ready to use: nested settings, the fixed ones beside them, mean and spread."""
    outcome = Measured(({"m": 1.0}, {"m": 3.0}))
    one = Trial(1, {"net.load": 2}, {"server.threads": 4, "mode": 'a "b"'}, outcome, 2.0, 0.1)
    write_journal(tmp_path / "e", [one])
    TrialResults("e", tmp_path / "e").write_best({"server.port": 80, "list": [1, 2]})
    document = tomllib.loads((tmp_path / "e" / "best.toml").read_text())
    assert document["best"] == {
        "trial": 1,
        "reward": 2.0,
        "measured": 2,
        "failed": 0,
        "settings": {"server": {"threads": 4}, "mode": 'a "b"'},
        "fixed": {"server": {"port": 80}, "list": [1, 2]},
        "metrics": {"m": 2.0},
        "spread": {"m": pytest.approx(2**0.5)},
    }
    assert document["per_context"][0]["context"] == {"net": {"load": 2}}
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["best.toml", "journal.jsonl"]


def test_best_toml_of_nothing(tmp_path: Path) -> None:
    TrialResults("e", tmp_path).write_best({"x": 1})
    assert tomllib.loads((tmp_path / "best.toml").read_text()) == {}
