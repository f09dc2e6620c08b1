from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from gymnasium import spaces
from tests.tuning.stores.conftest import head

from tunegym.core.errors import StoreError
from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import row_type
from tunegym.tuning.stores.reader import Lost, Steps
from tunegym.tuning.stores.records import Session
from tunegym.tuning.stores.steps import StepStore

ACTIONS = spaces.Discrete(3)
OBSERVATIONS = spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)


@pytest.fixture
def opened() -> Iterator[list[StepStore]]:
    stores: list[StepStore] = []
    yield stores
    for store in stores:
        store.close()


def open_store(
    folder: Path,
    *,
    actions: Any = ACTIONS,
    observations: Any = OBSERVATIONS,
    record: Recording | None = None,
    **changes: Any,
) -> StepStore:
    known: dict[str, Any] = {"knobs": {}, "metrics": [], "live": {"record": "all"}}
    store = StepStore(folder, head(**{**known, **changes}), Session("f"), record or Recording())
    store.declare(actions, observations)
    return store


def add(store: StepStore, number: int, *, observation: Any = None, end: str | None = None, **more: Any) -> None:
    if number > store.reserved:
        store.reserve(number)
    known: dict[str, Any] = {
        "number": number,
        "episode": 1,
        "action": number % 3,
        "observation": np.array([number, -number / 3], dtype=np.float32) if observation is None else observation,
        "reward": number / 2,
        "duration": 0.001,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        "context": {},
        "metrics": {},
    }
    store.add(**{**known, **more})


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def recorded(folder: Path) -> list[Steps | Lost]:
    return list(reader.steps(folder / "journal.jsonl"))


def kinds(folder: Path) -> list[str]:
    return [orjson.loads(line)["record"] for line in (folder / "journal.jsonl").read_bytes().splitlines()]


def test_steps_are_in_the_journal_and_in_both_views(tmp_path: Path, opened: list[StepStore]) -> None:
    store = open_store(tmp_path, env_params=("load",), metrics=["p99"])
    opened.append(store)
    for number in range(1, 701):
        context = {"load": number // 100}
        add(store, number, context=context, metrics={"p99": number * 1.5}, episode=number // 10 + 1)
    store.close()
    trajectory, env = rows(tmp_path / "trajectory.csv"), rows(tmp_path / "env.csv")
    assert [int(row["step"]) for row in trajectory] == list(range(1, 701))
    assert [row["step"] for row in env] == [row["step"] for row in trajectory]
    assert [row["load"] for row in env] == [row["context.load"] for row in trajectory]
    for number, row in enumerate(trajectory, start=1):
        assert (row["status"], row["cached"], row["reward"]) == ("measured", "false", str(number / 2))
        assert (int(row["action"]), int(row["episode"])) == (number % 3, number // 10 + 1)
        assert np.float32(row["observation.1"]) == np.float32(-number / 3)
        assert float(row["metric.p99"]) == number * 1.5
        assert int(row["context.load"]) == number // 100
    groups = [group for group in recorded(tmp_path) if isinstance(group, Steps)]
    assert [number for group in groups for number in group.numbers] == list(range(1, 701))
    assert [one["load"] for group in groups for one in group.context_of()] == [n // 100 for n in range(1, 701)]
    assert len(groups) < 10


def test_every_space_has_its_columns(tmp_path: Path, opened: list[StepStore]) -> None:
    actions = spaces.Dict({"a": spaces.MultiDiscrete([3, 4]), "b": spaces.Box(0, 1, shape=(1,), dtype=np.float64)})
    observations = spaces.Tuple([spaces.Discrete(5), spaces.Dict({"x": spaces.MultiBinary(2)})])
    store = open_store(tmp_path, actions=actions, observations=observations)
    opened.append(store)
    action = {"a": np.array([2, 3]), "b": np.array([0.1])}
    add(store, 1, action=action, observation=(np.int64(4), {"x": np.array([1, 0], dtype=np.int8)}))
    store.close()
    (row,) = rows(tmp_path / "trajectory.csv")
    assert (row["action.a.0"], row["action.a.1"], row["action.b"]) == ("2", "3", "0.1")
    assert (row["observation.0"], row["observation.1.x.0"], row["observation.1.x.1"]) == ("4", "1", "0")


def test_large_observations_have_a_file_of_their_own(tmp_path: Path, opened: list[StepStore]) -> None:
    pictures = spaces.Box(0, 255, shape=(8, 8, 3), dtype=np.uint8)
    store = open_store(tmp_path, observations=pictures)
    opened.append(store)
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, size=(300, 8, 8, 3), dtype=np.uint8)
    for number in range(1, 301):
        add(store, number, observation=shown[number - 1])
    store.close()
    found = np.fromfile(tmp_path / "observations.bin", dtype=row_type(pictures))
    assert np.array_equal(found["value"], shown)
    assert (tmp_path / "observations.bin").stat().st_size == shown.nbytes
    assert not any(name.startswith("observation") for name in rows(tmp_path / "trajectory.csv")[0])
    assert (tmp_path / "journal.jsonl").stat().st_size < 30_000
    again = open_store(tmp_path, observations=pictures)
    opened.append(again)
    add(again, 301, observation=shown[7])
    again.close()
    found = np.fromfile(tmp_path / "observations.bin", dtype=row_type(pictures))
    assert np.array_equal(found["value"][300], shown[7])


def test_what_a_crash_left_behind_the_journal_is_cut_off(tmp_path: Path, opened: list[StepStore]) -> None:
    pictures = spaces.Box(0, 255, shape=(64,), dtype=np.uint8)
    store = open_store(tmp_path, observations=pictures)
    add(store, 1, observation=np.full(64, 7, dtype=np.uint8))
    store.close()
    with (tmp_path / "observations.bin").open("ab") as file:
        file.write(b"torn")
    again = open_store(tmp_path, observations=pictures)
    opened.append(again)
    add(again, 2, observation=np.full(64, 9, dtype=np.uint8))
    again.close()
    assert np.fromfile(tmp_path / "observations.bin", dtype=np.uint8).reshape(-1, 64)[:, 0].tolist() == [7, 9]
    (tmp_path / "observations.bin").write_bytes(b"")
    third = StepStore(tmp_path, head(knobs={}, metrics=[], live={"record": "all"}), Session("f"), Recording())
    with pytest.raises(StoreError, match=r"observations\.bin is too short: the journal has 2 rows, and it has 0"):
        third.declare(ACTIONS, pictures)
    third.close()


def test_numbers_that_are_not_finite_are_written(tmp_path: Path, opened: list[StepStore]) -> None:
    store = open_store(tmp_path)
    opened.append(store)
    add(store, 1, observation=np.array([np.nan, np.inf], dtype=np.float32))
    store.close()
    (row,) = rows(tmp_path / "trajectory.csv")
    assert (row["observation.0"], row["observation.1"]) == ("nan", "inf")
    again = open_store(tmp_path)
    opened.append(again)
    again.close()
    (row,) = rows(tmp_path / "trajectory.csv")
    assert (row["observation.0"], row["observation.1"]) == ("nan", "inf")


def test_unused_numbers_are_given_back_at_the_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.reserve(500)
    for number in range(1, 8):
        add(store, number)
    store.close()
    again = open_store(tmp_path)
    assert (again.lost, again.upto, again.reserved) == (0, 7, 7)
    again.close()


CRASH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.tuning.stores.test_live import add, open_store
store = open_store(Path(sys.argv[1]))
store.reserve(1000)
for number in range(1, 300):
    add(store, number)
store.flush()
for number in range(300, 310):
    add(store, number)
print("ready", flush=True)
import time
time.sleep(60)
"""


def test_a_killed_writer_loses_what_waited_and_no_number_is_used_twice(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    child = subprocess.Popen([sys.executable, "-c", CRASH, str(tmp_path), root], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    store = open_store(tmp_path)
    # What waited for less than half a second may be lost, and no more.
    assert store.lost in (1000 - 299, 1000 - 309)
    first = 1000 - store.lost + 1
    assert store.upto == 1000
    add(store, 1001)
    store.close()
    steps = [int(row["step"]) for row in rows(tmp_path / "trajectory.csv")]
    assert steps == list(range(1, 1002))
    assert [int(row["step"]) for row in rows(tmp_path / "env.csv")] == steps
    statuses = [row["status"] for row in rows(tmp_path / "trajectory.csv")]
    assert statuses == ["measured"] * (first - 1) + ["cancelled"] * store.lost + ["measured"]
    past = reader.scan(tmp_path / "journal.jsonl")
    assert past.statuses == {"measured": first, "cancelled": store.lost}
    third = open_store(tmp_path)
    assert third.lost == 0
    third.close()
    assert [int(row["step"]) for row in rows(tmp_path / "trajectory.csv")] == steps


def test_a_journal_cut_at_any_byte_can_be_gone_on_with(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    store = open_store(whole)
    for number in range(1, 601):
        add(store, number, episode=number // 7 + 1)
        if number % 7 == 0:
            store.episode_over(Episode(number // 7, 0, number - 6, number, 7, 1.0, "terminated", {}))
    store.close()
    data = (whole / "journal.jsonl").read_bytes()
    start = data.index(b'{"record":"spaces"')
    for cut in range(start, len(data), 977):
        place = tmp_path / str(cut)
        place.mkdir()
        (place / "journal.jsonl").write_bytes(data[:cut])
        again = open_store(place)
        number = again.upto + 1
        add(again, number)
        again.close()
        steps = [int(row["step"]) for row in rows(place / "trajectory.csv")]
        assert steps == list(range(1, number + 1))


def test_views_written_again_are_the_same_to_the_last_byte(tmp_path: Path) -> None:
    store = open_store(tmp_path, env_params=("load",), metrics=["p99"])
    rng = np.random.default_rng(1)
    for number in range(1, 1000):
        seen = rng.normal(size=2).astype(np.float32)
        add(
            store,
            number,
            observation=seen,
            reward=float(rng.normal()),
            duration=float(rng.random()),
            context={"load": 0.1 * (number // 50)},
            metrics={"p99": float(rng.random())},
            end="truncated" if number % 50 == 0 else None,
        )
        if number % 50 == 0:
            store.episode_over(Episode(number // 50, 0, 1, number, 50, 0.1, "truncated", {"load": 0.5}))
    store.add_unmeasured(1000, 3, 1, np.zeros(2, dtype=np.float32), -1.0, 0.5, {"load": 1.0}, "failed", "it died")
    store.close()
    names = ("trajectory.csv", "env.csv", "episodes.csv")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    for name in names:
        (tmp_path / name).write_bytes(b"nonsense")
    open_store(tmp_path, env_params=("load",), metrics=["p99"]).close()
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


def test_other_spaces_than_before_are_refused_and_named(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    store = StepStore(tmp_path, head(knobs={}, metrics=[], live={"record": "all"}), Session("f"), Recording())
    with pytest.raises(StoreError, match=r"action_space: Discrete\(3\) before, Discrete\(4\) now"):
        store.declare(spaces.Discrete(4), OBSERVATIONS)
    with pytest.raises(StoreError, match="observation_space: Box"):
        store.declare(ACTIONS, spaces.Box(0, 1, shape=(2,)))
    store.close()


def test_episodes_are_on_record(tmp_path: Path) -> None:
    store = open_store(tmp_path, env_params=("load",))
    add(store, 1, context={"load": 3})
    one = Episode(1, 0, 1, 1, 1, 0.5, "terminated", {"load": 3})
    store.begun = 1
    store.episode_over(one)
    store.close()
    assert list(reader.episodes(tmp_path / "journal.jsonl")) == [one]
    (row,) = rows(tmp_path / "episodes.csv")
    assert row == {
        "episode": "1",
        "first_step": "1",
        "last_step": "1",
        "length": "1",
        "return": "0.5",
        "end": "terminated",
        "lane": "0",
        "context.load": "3",
    }
    past = reader.scan(tmp_path / "journal.jsonl")
    assert (past.episodes, past.over, list(past.returns)) == (1, 1, [0.5])


def test_steps_that_are_not_recorded_still_use_their_numbers(tmp_path: Path) -> None:
    store = open_store(tmp_path, record=Recording("every", 10), live={"record": "every:10"})
    for number in range(1, 96):
        if number > store.reserved:
            store.reserve(number + 5)
        if number % 10 == 0:
            add(store, number)
        else:
            store.upto = number
    store.close()
    past = reader.scan(tmp_path / "journal.jsonl")
    assert (past.upto, past.reserved, past.statuses["measured"]) == (95, 95, 95)
    assert [int(row["step"]) for row in rows(tmp_path / "trajectory.csv")] == list(range(10, 91, 10))
    assert [int(row["step"]) for row in rows(tmp_path / "env.csv")] == list(range(10, 91, 10))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs a full device")
def test_a_view_that_can_not_be_written_is_said(tmp_path: Path, opened: list[StepStore]) -> None:
    store = open_store(tmp_path)
    opened.append(store)
    full = os.open("/dev/full", os.O_WRONLY)
    assert store._views is not None
    os.dup2(full, store._views._files[0])
    os.close(full)
    add(store, 1)
    with pytest.raises(StoreError, match="CSV views can't be written"):
        store.flush()
    opened.remove(store)
    with pytest.raises(StoreError):
        store.close()
    # The journal has it, and a resume writes the views anew.
    again = open_store(tmp_path)
    again.close()
    assert [row["step"] for row in rows(tmp_path / "trajectory.csv")] == ["1"]


def test_a_resume_that_fails_gives_nothing_back_that_others_reserved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pictures = spaces.Box(0, 255, shape=(64,), dtype=np.uint8)
    store = open_store(tmp_path, observations=pictures)
    store.reserve(500)
    add(store, 1, observation=np.zeros(64, dtype=np.uint8))
    store.flush()
    journal = (tmp_path / "journal.jsonl").read_bytes()  # as a killed writer leaves it
    whole = (tmp_path / "observations.bin").read_bytes()
    store.close()
    (tmp_path / "journal.jsonl").write_bytes(journal)
    (tmp_path / "observations.bin").write_bytes(b"")
    broken = StepStore(tmp_path, head(knobs={}, metrics=[], live={"record": "all"}), Session("f"), Recording())
    with pytest.raises(StoreError, match="too short"):
        broken.declare(ACTIONS, pictures)
    assert "at most 499 steps were lost (numbers 2 to 500)" in caplog.text, "no later session knows of it"
    broken.close()
    (tmp_path / "observations.bin").write_bytes(whole)
    again = open_store(tmp_path, observations=pictures)
    assert (again.upto, again.lost) == (500, 0)
    again.close()
    past = reader.scan(tmp_path / "journal.jsonl")
    assert (past.upto, past.reserved, past.statuses) == (500, 500, {"measured": 1, "cancelled": 499})


def test_leftovers_are_known_until_somebody_starts_servers_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.job_started({"job": "then"})
    store.close()
    open_store(tmp_path).close()  # killed before it came to end them
    third = open_store(tmp_path)
    assert third.leftovers() == [{"job": "then"}]
    third.job_started({"job": "now"})
    third.close()
    fourth = open_store(tmp_path)
    assert fourth.leftovers() == [{"job": "now"}]
    fourth.close()
