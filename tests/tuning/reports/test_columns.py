from __future__ import annotations

from tunegym.tuning.model.outcome import Failed, Measured, Pruned
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import labels
from tunegym.tuning.reports.charts import columns, kept, parameter


def measured(number: int, reward: float) -> Trial:
    return Trial(number, {}, {}, Measured(({"m": reward},)), reward, 0.1)


def test_labels_stay_apart() -> None:
    assert labels(["a", "b c"]) == ["a", "b c"]
    assert labels([1, 1.0, True]) == ["1", "1.0", "true"]
    assert labels(["1", 1]) == ['"1"', "1"]
    assert labels(["", " "]) == ['""', '" "']


def test_a_list_is_told_by_exact_type() -> None:
    column = parameter("x", {"values": [1, 1.0, True, "1"]}, [True, 1, "1", None, 1.0])
    assert column["index"] == [2, 0, 3, -1, 1]
    assert len(set(column["labels"])) == 4


def test_integers_that_a_browser_would_bend_come_as_text() -> None:
    big = 2**60 + 1
    assert parameter("x", {"low": 0, "high": 2**61, "dtype": "int"}, [big, None])["text"] == [str(big), None]
    assert "text" not in parameter("x", {"low": 0, "high": 9, "dtype": "int"}, [3])


def test_every_trial_is_kept_while_there_is_room() -> None:
    trials = [measured(3, 1.0), measured(1, 2.0), measured(2, 3.0)]
    assert [trial.number for trial in kept(trials, 10)] == [1, 2, 3]


def test_improvements_are_kept_in_a_sample() -> None:
    trials = [measured(n, 100.0 if n == 777 else float(n == 5)) for n in range(1, 1001)]
    chosen = {trial.number for trial in kept(trials, 100)}
    assert {5, 777} <= chosen
    assert 100 <= len(chosen) <= 103


def test_columns_are_aligned_whatever_the_outcome() -> None:
    trials = [
        Trial(1, {"c": "a"}, {"x": 1}, Measured(({"m": 1.0, "extra": 5.0}, {"m": 3.0, "extra": 5.0})), 2.0, 0.5),
        Trial(2, {"c": "b"}, {}, Failed("broken"), -1e15, 0.25),
        Trial(3, {"c": "b"}, {"x": 2}, Pruned("hopeless"), -1e15, 0.25, reports=((1, 0.5), (2, 0.25))),
    ]
    head = {"knobs": {"x": {"values": [1, 2]}}, "env_params": {"c": {"values": ["a", "b"]}}, "metrics": ["m"]}
    table = columns(trials, head, {1: 1.5})
    assert [table["statuses"][index] for index in table["status"]] == ["measured", "failed", "pruned"]
    assert [table["reasons"][index] for index in table["reason"]] == ["", "broken", "hopeless"]
    assert table["knobs"][0]["index"] == [0, -1, 1]
    assert [(one["name"], one["values"]) for one in table["metrics"]] == [
        ("m", [2.0, None, None]),
        ("extra", [5.0, None, None]),
    ]
    assert table["metrics"][0]["spread"][1:] == [None, None]
    assert table["samples"] == [2, 0, 0]
    assert table["closed_s"] == [1.5, None, None]
    assert table["curves"] == [[2, [(1, 0.5), (2, 0.25)]]]


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    reports = tuple((step, float(step)) for step in range(5000))
    trial = Trial(1, {}, {}, Measured(({"m": 1.0},)), 1.0, 0.1, reports=reports)
    ((_, points),) = columns([trial], {"knobs": {}, "env_params": {}, "metrics": []}, {})["curves"]
    assert len(points) <= 301
    assert points[-1] == (4999, 4999.0)
