"""The results of a live experiment: facts, tables, arrays, and how contexts and steps are grouped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from tests.heads import head
from tests.tuning.reports.live_journals import (
    GRAVITY,
    LARGE,
    add_episode,
    open_store,
    write_killed,
    write_live,
    write_scenario,
)

from tunegym.core.errors import StoreError
from tunegym.tuning.inference.episodes import MOST_WINDOWS, Pace, Windows, context_groups
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import load, recommend
from tunegym.tuning.stores.columns import Step


def test_facts(tmp_path: Path) -> None:
    episodes = [
        {"length": 3, "context": {"gravity": 9.8}},
        {"length": 5, "context": {"gravity": 20.0}, "failing": 2, "reason": "lost at 0x7f21"},
        {"length": 4, "context": {"gravity": 20.0}, "failing": 0, "reason": "lost at 0x7f22"},
        {"length": 1, "context": {"gravity": 9.8}, "end": "cut"},
    ]
    results = write_live(tmp_path, episodes, env_params=GRAVITY)
    facts = results.summary(100).facts
    assert (facts["live"], facts["state"], facts["problem"]) == (True, "finished", None)
    assert facts["steps"]["total"] == 100
    assert facts["steps"]["done"] == facts["steps"]["recorded"] == results.steps == 13
    assert facts["steps"]["statuses"] == results.statuses == {"measured": 11, "failed": 2}
    assert facts["episodes"]["ends"] == {"terminated": 3, "cut": 1}
    assert facts["episodes"]["mean_return"] == results.mean_return == pytest.approx((3 - 96 - 97) / 3)
    assert facts["episodes"]["best"] == {"episode": 1, "return": 3.0, "last_step": 3}
    assert [(one["group"], one["episodes"], one["mean_return"]) for one in facts["per_context"]] == [
        ("gravity=9.8", 1, 3.0),
        ("gravity=20.0", 2, -96.5),
    ]
    assert facts["reasons"] == [{"status": "failed", "reason": "lost at 0x7f21", "count": 2}]
    assert (facts["policy"], facts["restarts"]) == (None, None)
    assert [(one.length, one.total, one.end) for one in results.episodes] == [
        (3, 3.0, "terminated"),
        (5, -96.0, "terminated"),
        (4, -97.0, "terminated"),
        (1, 1.0, "cut"),
    ]
    assert list(results.stream_episodes()) == list(results.episodes)


def test_lost_steps_and_restarts(tmp_path: Path) -> None:
    """A killed session leaves steps without a record; the resume counts them as lost, and they have empty rows."""
    write_killed(tmp_path, 3, reserved=5, pids=(1, 2, 3), env_params=GRAVITY)
    results = load(tmp_path).experiments["e"]
    facts = results.summary().facts
    assert (results.state, facts["restarts"]) == ("interrupted", 2)
    assert (facts["steps"]["unrecorded"], facts["steps"]["lost"]) == (2, 0)
    store = open_store(tmp_path / "e", env_params=GRAVITY)
    store.job_started({"pid": 4})
    add_episode(store, 2, context={"gravity": 20.0})
    store.close()
    results = LiveResults("e", tmp_path / "e")
    facts = results.summary().facts
    assert (facts["steps"]["unrecorded"], facts["steps"]["lost"], facts["restarts"]) == (0, 2, 2)
    assert (facts["steps"]["lost_ranges"], facts["steps"]["done"]) == ([[4, 5]], 7)
    frame = results.to_pandas()
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert frame["status"].tolist()[3:5] == ["cancelled"] * 2
    assert frame["row"].tolist() == [0, 1, 2, -1, -1, 3, 4]
    assert frame["reward"].isna().tolist() == [False] * 3 + [True] * 2 + [False] * 2
    assert len(results.observations()) == 5
    assert frame["step"].tolist() == pd.read_csv(results.folder / "trajectory.csv")["step"].tolist()


def test_how_a_policy_is_loaded(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 3}], agent="dqn")
    assert results.policy is None
    with pytest.raises(StoreError, match="no settings to recommend, and dqn has left no policy"):
        recommend(tmp_path)
    place = results.folder / "policy" / "model.zip"
    place.parent.mkdir()
    place.write_bytes(b"zip")
    policy = results.summary().facts["policy"]
    assert (policy["path"], results.policy) == ("e/policy/model.zip", place)
    assert 'model = DQN.load("e/policy/model.zip")' in policy["load"]
    with pytest.raises(StoreError, match=r"e is a live experiment: it has no settings to recommend, but a policy: "):
        recommend(tmp_path)


# tables and arrays -----------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_csv_files(tmp_path: Path) -> None:
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
    pd.testing.assert_frame_equal(results.episodes_to_pandas(), pd.read_csv(results.folder / "episodes.csv"))


def test_small_elements_are_arrays(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 300}])
    observations, actions = results.observations()["value"], results.actions()["value"]
    assert (observations.shape, observations.dtype) == ((300, 2), np.float32)
    np.testing.assert_array_equal(observations[:, 0], (np.arange(1, 301, dtype=np.float32) / 1e6))
    assert actions.tolist() == [at % 2 for at in range(300)]
    assert results.action_space == spaces.Discrete(2)
    frame = results.to_pandas(250, 270, ["step", "reward"])
    assert list(frame) == ["step", "reward"]
    assert frame["step"].tolist() == list(range(250, 271))
    with pytest.raises(KeyError, match=r"there is no column speed; there are step, status"):
        results.to_pandas(columns=["speed"])


def test_large_elements_are_mapped(tmp_path: Path) -> None:
    results = write_live(tmp_path, [{"length": 300}], observations=LARGE)
    observations = results.observations()
    assert isinstance(observations, np.memmap)
    assert observations["image"].shape == (300, 4, 10)
    assert observations["image"][299, 0, 0] == 300 % 256
    assert not [name for name in results.to_pandas() if name.startswith("observation")]
    (results.folder / "observations.bin").write_bytes(b"short")
    with pytest.raises(StoreError, match=r"observations.bin is too short: the journal knows of 300 rows, and it has 0"):
        results.observations()


@pytest.mark.parametrize("size", [2, 40], ids=["inline", "side file"])
def test_names_keep_their_values(tmp_path: Path, size: int) -> None:
    """Of Dict spaces with unsorted keys, and of a server that comes back with its keys in another order."""
    keys = [("z", spaces.Box(0, 100, (size,))), ("a", spaces.Discrete(9))]
    element = {"a": np.int64(1), "z": np.full(size, 26, np.float32)}
    write_scenario(tmp_path, "e")
    for number, space in enumerate((spaces.Dict(keys), spaces.Dict(keys[::-1])), start=1):
        store = open_store(tmp_path / "e", actions=space, observations=space)
        store.reserve(number)
        step = Step(
            number=number,
            episode=1,
            action=element,
            observation=store.pack(element),
            reward=1.0,
            duration=0.001,
            terminated=False,
            truncated=False,
            context={},
            metrics={},
        )
        store.add(step)
        store.close()
    results = LiveResults("e", tmp_path / "e")
    for found in (results.actions(), results.observations()):
        assert (found["a"].tolist(), found["z"].tolist()) == ([1, 1], [[26.0] * size] * 2)
    for table in (results.to_pandas(), pd.read_csv(results.folder / "trajectory.csv")) if size == 2 else ():
        assert table["observation.a"].tolist() == table["action.a"].tolist() == [1, 1]
        assert table["observation.z.1"].tolist() == table["action.z.0"].tolist() == [26, 26]


def test_an_experiment_that_has_not_started(tmp_path: Path) -> None:
    write_scenario(tmp_path, "e")
    results = load(tmp_path).experiments["e"]
    assert isinstance(results, LiveResults)
    assert (results.steps, results.episodes, results.mean_return, results.action_space) == (0, (), None, None)
    assert results.to_pandas().empty
    assert results.episodes_to_pandas().empty
    with pytest.raises(StoreError, match="its server has not answered yet"):
        results.observations()


# contexts and windows ---------------------------------------------------------------------------------------


def test_few_contexts_are_told_one_by_one() -> None:
    env_params = head(env_params={"a": {"values": [1, 1.0]}, "b": {"values": ["x", "y"]}}).env_params
    (one,) = context_groups(env_params, Windows())
    assert one.labels == ["a=1 b=x", "a=1 b=y", "a=1.0 b=x", "a=1.0 b=y"]
    assert one.place({"a": 1.0, "b": "x"}) == 2
    assert one.place({"a": 1, "b": "z"}) is None


def test_many_contexts_are_grouped_by_one_parameter_at_a_time() -> None:
    """Without long lists of names, and without parameters that change within an episode."""
    env_params = {
        "size": {"values": list(range(20))},
        "word": {"values": [f"w{at}" for at in range(20)]},
        "load": {"low": 0.0, "high": 1.0, "dtype": "float"},
        "flag": {"values": [True, False]},
        "drawn": {"values": [1, 2], "draw": "step"},
    }
    size, load_range, flag = context_groups(head(env_params=env_params).env_params, Windows())
    assert size.labels == ["size=0 to 4", "size=5 to 9", "size=10 to 14", "size=15 to 19"]
    assert [size.place({"size": at}) for at in (0, 4, 5, 19)] == [0, 0, 1, 3]
    assert load_range.labels[0] == "load=0 to 0.25"
    assert [load_range.place({"load": at}) for at in (0.0, 0.3, 0.5, 1.0)] == [0, 1, 2, 3]
    assert flag.labels == ["flag=true", "flag=false"]


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


def test_pace() -> None:
    windows = Windows()
    pace = Pace(windows)
    windows.reach(600)
    pace.add(0, 2, 0.5)
    pace.add(2, 4, 4.5)
    assert pace.as_list()[:2] == [4.0, 0.5]
