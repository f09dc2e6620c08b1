from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from tests.tuning.reports.live_journals import GRAVITY, LARGE, add_episode, open_store, write_live, write_scenario

from tunegym.core.errors import StoreError
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import load


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
