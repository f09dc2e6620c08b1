"""The results of a live experiment: facts, tables, arrays, and how contexts and steps are grouped."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from tests.tuning.reports.live_journals import GRAVITY, LARGE, add_episode, open_store, write_live, write_scenario

from tunegym.core.errors import StoreError
from tunegym.tuning.agents import policies
from tunegym.tuning.answers.episodes import MOST_GROUPS, MOST_WINDOWS, Pace, Windows, groupings
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.page import Known, compare, run_document
from tunegym.tuning.reports.results import load, recommend


def test_facts(tmp_path: Path) -> None:
    episodes = [
        {"length": 3, "context": {"gravity": 9.8}},
        {"length": 5, "context": {"gravity": 20.0}, "failing": 2, "reason": "lost at 0x7f21"},
        {"length": 4, "context": {"gravity": 20.0}, "failing": 0, "reason": "lost at 0x7f22"},
        {"length": 1, "context": {"gravity": 9.8}, "end": "cut"},
    ]
    facts = write_live(tmp_path, episodes, env_params=GRAVITY).summary(100).facts
    assert facts["live"]
    assert facts["state"] == "finished"
    assert facts["problem"] is None
    assert facts["steps"]["total"] == 100
    assert facts["steps"]["done"] == facts["steps"]["recorded"] == 13
    assert facts["steps"]["statuses"] == {"measured": 11, "failed": 2}
    assert facts["episodes"]["ends"] == {"terminated": 3, "cut": 1}
    assert facts["episodes"]["mean_return"] == pytest.approx((3 - 96 - 97) / 3)
    assert facts["episodes"]["best"] == {"episode": 1, "return": 3.0, "last_step": 3}
    assert [(one["group"], one["episodes"], one["mean_return"]) for one in facts["per_context"]] == [
        ("gravity=9.8", 1, 3.0),
        ("gravity=20.0", 2, -96.5),
    ]
    assert facts["reasons"] == [{"status": "failed", "reason": "lost at 0x7f21", "count": 2}]
    assert facts["policy"] is None
    assert facts["restarts"] is None


def test_what_keeps_it_from_being_a_success(tmp_path: Path) -> None:
    none = write_live(tmp_path / "a", [{"length": 1, "failing": 0}], code=1, ended="the server was lost")
    assert none.summary().facts["problem"] == "none of its steps was measured"
    early = write_live(tmp_path / "b", [], code=1, ended="the server was lost")
    assert early.summary().facts["problem"] == "it took no step"


def test_restarts_and_what_is_lost(tmp_path: Path) -> None:
    write_scenario(tmp_path, "e")
    store = open_store(tmp_path / "e")
    for pid in (1, 2, 3):
        store.job_started({"pid": pid})
    add_episode(store, 3)
    store.flush()
    store.reserve(8)
    store._journal.close(lambda: None)  # as a killed one leaves it
    results = load(tmp_path).experiments["e"]
    facts = results.summary().facts
    assert results.state == "interrupted"
    assert facts["restarts"] == 2
    assert (facts["steps"]["unrecorded"], facts["steps"]["lost"]) == (5, 0)
    store = open_store(tmp_path / "e")
    store.job_started({"pid": 4})
    add_episode(store, 3)
    store.close()
    facts = load(tmp_path).experiments["e"].summary().facts
    assert facts["restarts"] == 2
    assert (facts["steps"]["unrecorded"], facts["steps"]["lost"]) == (0, 5)
    assert facts["steps"]["lost_ranges"] == [[4, 8]]
    assert facts["steps"]["done"] == 11


@pytest.mark.slow
def test_neither_curves_nor_memory_grow_with_the_steps(tmp_path: Path) -> None:
    peaks = []
    for many in (50, 1000):
        results = write_live(tmp_path / str(many), ({"length": 20, "reward": at / 20} for at in range(many)))
        tracemalloc.start()
        curves = results.charts({})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000
    assert len(curves["ends"]) <= MOST_WINDOWS
    assert curves["ends"][-1] == 20_000
    assert sum(curves["returns"]["count"]) == 1000
    means = [mean for mean in curves["returns"]["mean"] if mean is not None]
    assert means == sorted(means)
    assert curves["lengths"]["low"][0] == curves["lengths"]["high"][0] == 20


def test_training_curves(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 10}])
    policies.add_training(results.folder, 5, {"train/loss": 2.0, "train/odd": float("nan")})
    policies.add_training(results.folder, 10, {"train/loss": 1.0})
    with (results.folder / "policy" / "training.jsonl").open("ab") as file:
        file.write(b'{"trials": 11, "val')
    (curve,) = results.charts({})["training"]
    assert curve["name"] == "train/loss"
    assert [mean for mean in curve["mean"] if mean is not None] == [2.0, 1.0]


def test_how_a_policy_is_loaded(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 3}], agent="dqn")
    with pytest.raises(StoreError, match="no settings to recommend, and dqn has left no policy"):
        recommend(tmp_path)
    (results.folder / "policy").mkdir()
    (results.folder / "policy" / "model.zip").write_bytes(b"zip")
    policy = results.summary().facts["policy"]
    assert (policy["path"], results.policy) == ("e/policy/model.zip", results.folder / "policy" / "model.zip")
    assert 'model = DQN.load("e/policy/model.zip")' in policy["load"]
    with pytest.raises(StoreError, match=r"e is a live experiment: it has no settings to recommend, but a policy: "):
        recommend(tmp_path)


def test_a_page_document(tmp_path: Path) -> None:
    write_live(tmp_path, [{"length": 3}])
    results = load(tmp_path)
    (one,) = run_document(results, {"e": Known(10, {"env_id": "CartPole-v1"})}, None)["experiments"]
    assert one["page"]["fixed"] == {"env_id": "CartPole-v1"}
    assert one["steps"]["total"] == 10
    assert "best" not in one
    path = tmp_path / "e" / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"record":"spaces"', b"}{", 1))
    (broken,) = run_document(load(tmp_path), {}, None)["experiments"]
    assert broken["state"] == "broken"
    assert "is damaged: it is not a record, and not the last line" in broken["error"]


def test_compared(tmp_path: Path) -> None:
    write_live(tmp_path / "a", [{"length": 3}, {"length": 5}])
    write_live(tmp_path / "b", [{"length": 7}], env_params=GRAVITY)
    document = compare([load(tmp_path / "a"), load(tmp_path / "b")]).facts
    first, second = document["entries"]
    assert (first["best"], first["trials"], first["live"]["mean_return"]) == (None, 8, 4.0)
    assert (first["live"]["mean_return_over"], first["live"]["episodes"]) == (2, 2)
    assert second["live"]["return_spread"] is None
    assert document["warnings"] == ["e: the env_params differ, so the rewards may mean different things"]


# tables and arrays -----------------------------------------------------------------------------------------


def test_steps_and_episodes(tmp_path: Path) -> None:
    results = write_live(
        tmp_path,
        [{"length": 3, "failing": 1}, {"length": 2, "end": "truncated"}, {"length": 1, "end": "cut"}],
    )
    assert results.steps == 6
    assert results.statuses == {"measured": 5, "failed": 1}
    assert [(one.length, one.total, one.end) for one in results.episodes] == [
        (3, -98.0, "terminated"),
        (2, 2.0, "truncated"),
        (1, 1.0, "cut"),
    ]
    assert list(results.stream_episodes()) == list(results.episodes)
    assert results.mean_return == -48.0
    assert results.unrecorded == 0
    assert results.action_space == spaces.Discrete(2)
    assert isinstance(results.observation_space, spaces.Box)
    assert results.policy is None


def test_the_table_is_that_of_the_csv(tmp_path: Path) -> None:
    episodes = [
        {"length": 4, "failing": 2, "context": {"gravity": 9.8}, "metrics": {"power": 1.5}},
        {"length": 3, "context": {"gravity": 20.0}},
    ]
    results = write_live(tmp_path, episodes, env_params=GRAVITY, metrics=["power"])
    frame = results.to_pandas()
    csv = pd.read_csv(results.folder / "trajectory.csv")
    assert list(frame) == [*csv, "reason", "row"]
    for name in csv:
        if csv[name].dtype == float:
            np.testing.assert_allclose(frame[name].astype(float), csv[name], rtol=1e-5)
        else:
            assert frame[name].tolist() == csv[name].tolist(), name
    assert frame["reason"].tolist() == ["", "", "it broke", "", "", "", ""]
    assert frame["row"].tolist() == list(range(7))
    assert frame["metric.power"].isna().tolist() == [False, False, True, False, True, True, True]
    over = results.episodes_to_pandas()
    pd.testing.assert_frame_equal(over, pd.read_csv(results.folder / "episodes.csv"))


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 300}, {"length": 300}])
    frame = results.to_pandas(250, 270, ["step", "reward"])
    assert list(frame) == ["step", "reward"]
    assert frame["step"].tolist() == list(range(250, 271))
    assert results.to_pandas(last=2)["row"].tolist() == [0, 1]
    with pytest.raises(KeyError, match=r"there is no column speed; there are step, status"):
        results.to_pandas(columns=["speed"])


def test_what_was_lost_has_rows_without_anything(tmp_path: Path) -> None:
    write_scenario(tmp_path, "e")
    store = open_store(tmp_path / "e", env_params=GRAVITY)
    add_episode(store, 3, context={"gravity": 9.8})
    store.flush()
    store.reserve(5)
    store._journal.close(lambda: None)  # as a killed one leaves it
    results = load(tmp_path).experiments["e"]
    assert isinstance(results, LiveResults)
    assert results.unrecorded == 2
    again = open_store(tmp_path / "e", env_params=GRAVITY)
    add_episode(again, 2, context={"gravity": 20.0})
    again.close()
    results = LiveResults("e", tmp_path / "e")
    frame = results.to_pandas()
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert frame["status"].tolist()[3:5] == ["cancelled"] * 2
    assert frame["row"].tolist() == [0, 1, 2, -1, -1, 3, 4]
    assert frame["reward"].isna().tolist() == [False] * 3 + [True] * 2 + [False] * 2
    assert len(results.observations()) == 5
    assert results.unrecorded == 0
    assert results.statuses["cancelled"] == 2
    assert frame["step"].tolist() == pd.read_csv(results.folder / "trajectory.csv")["step"].tolist()


def test_small_elements_are_arrays(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 300}])
    observations, actions = results.observations(), results.actions()
    assert observations["value"].shape == (300, 2)
    assert observations["value"].dtype == np.float32
    np.testing.assert_array_equal(observations["value"][:, 0], (np.arange(1, 301, dtype=np.float32) / 1e6))
    assert actions["value"].tolist() == [at % 2 for at in range(300)]


def test_large_ones_are_mapped(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 300}], observations=LARGE)
    observations = results.observations()
    assert isinstance(observations, np.memmap)
    assert observations["image"].shape == (300, 4, 10)
    assert observations["image"][299, 0, 0] == 300 % 256
    assert not [name for name in results.to_pandas() if name.startswith("observation")]
    (results.folder / "observations.bin").write_bytes(b"short")
    with pytest.raises(StoreError, match=r"observations.bin is too short: the journal knows of 300 rows, and it has 0"):
        results.observations()


def test_one_that_has_not_started(tmp_path: Path) -> None:
    write_scenario(tmp_path, "e")
    results = load(tmp_path).experiments["e"]
    assert isinstance(results, LiveResults)
    assert (results.steps, results.episodes, results.mean_return) == (0, (), None)
    assert results.to_pandas().empty
    assert results.episodes_to_pandas().empty
    assert results.action_space is None
    with pytest.raises(StoreError, match="its server has not answered yet"):
        results.observations()


# how contexts are told apart --------------------------------------------------------------------------


def test_few_contexts_are_told_one_by_one() -> None:
    (one,) = groupings({"a": {"values": [1, 1.0]}, "b": {"values": ["x", "y"]}})
    assert one.labels == ("a=1 b=x", "a=1 b=y", "a=1.0 b=x", "a=1.0 b=y")
    assert one.place({"a": 1.0, "b": "x"}) == 2
    assert one.place({"a": 1, "b": "z"}) is None


def test_many_are_grouped_by_one_parameter_at_a_time() -> None:
    numbers, words, load_range = groupings(
        {
            "size": {"values": list(range(20))},
            "word": {"values": [f"w{at}" for at in range(20)]},
            "load": {"low": 0.0, "high": 1.0, "dtype": "float"},
        }
    )
    assert numbers.labels == ("size=0 to 4", "size=5 to 9", "size=10 to 14", "size=15 to 19")
    assert [numbers.place({"size": at}) for at in (0, 4, 5, 19)] == [0, 0, 1, 3]
    assert len(words.labels) == MOST_GROUPS
    assert words.place({"word": "w0"}) == 0
    assert words.place({"word": "w19"}) == MOST_GROUPS - 1
    assert load_range.labels[0] == "load=0 to 0.25"
    assert [load_range.place({"load": at}) for at in (0.0, 0.3, 0.5, 1.0)] == [0, 1, 2, 3]


def test_what_changes_within_an_episode_tells_nothing_about_it() -> None:
    assert groupings({"load": {"values": [1, 2], "draw": "step"}}) == []


# windows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upto", [0, 1, 299, 300, 301, 12_345])
def test_windows_cover_every_step_once(upto: int) -> None:
    windows = Windows()
    curve = windows.curve()
    for number in range(1, upto + 1):
        curve.add(number, float(number))
    ends = windows.ends()
    assert len(ends) <= MOST_WINDOWS
    assert ends[-1] == upto
    shown = curve.as_dict(band=True)
    starts = [1, *(end + 1 for end in ends[:-1])]
    if upto:
        assert shown["count"] == [end - start + 1 for start, end in zip(starts, ends, strict=True)]
        assert (shown["low"], shown["high"]) == (starts, ends)
        assert shown["mean"] == pytest.approx([(a + b) / 2 for a, b in zip(starts, ends, strict=True)], rel=1e-4)


def test_large_rewards_do_not_overflow() -> None:
    curve = Windows().curve()
    curve.add(1, 1.7e308)
    curve.add(1, 1.7e308)
    curve.add_all([2, 2, 2], [1.7e308, 1.7e308, None])
    assert curve.as_dict() == {"count": [2, 2], "mean": [1.7e308, 1.7e308]}


def test_pace() -> None:
    windows = Windows()
    pace = Pace(windows)
    windows.reach(600)
    pace.add(0, 2, 0.5)
    pace.add(2, 4, 4.5)
    assert pace.as_list()[:2] == [4.0, 0.5]
