"""The store of live steps: journal, side files and views; crashes, interrupts and damaged records."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pytest
from gymnasium import spaces
from tests.sample_servers import SPACES
from tests.soundness import read_rows
from tests.tuning.stores.conftest import head

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.spaces import describe, leaves
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import Elements, Step, leaf_values
from tunegym.tuning.stores.reader import Steps
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.steps import StepStore

ACTIONS = spaces.Discrete(3)
OBSERVATIONS = spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)
PICTURES = spaces.Box(0, 255, shape=(8, 8), dtype=np.uint8)
VIEWS = ("trajectory.csv", "env.csv", "episodes.csv")


def undeclared(folder: Path, **changes: Any) -> StepStore:
    known: dict[str, Any] = {"knobs": {}, "metrics": [], "live": {}}
    return StepStore(folder, head(**{**known, **changes}), SessionRecord("f"))


def open_store(folder: Path, actions: Any = ACTIONS, observations: Any = OBSERVATIONS, **changes: Any) -> StepStore:
    store = undeclared(folder, **changes)
    store.declare(actions, observations)
    return store


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., StepStore]]:
    """Opens stores in one folder, and closes them after the test."""
    stores: list[StepStore] = []

    def make(**changes: Any) -> StepStore:
        for store in stores:
            store.close()
        stores.append(open_store(tmp_path, **changes))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def add(store: StepStore, number: int, *, end: str | None = None, **more: Any) -> None:
    if number > store.reserved:
        store.reserve(number)
    known: dict[str, Any] = {
        "number": number,
        "episode": 1,
        "action": number % 3,
        "observation": np.array([number, -number / 3], dtype=np.float32),
        "reward": number / 2,
        "duration": 0.001,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        "context": {},
        "metrics": {},
    }
    step = known | more
    store.add(Step(**step | {"observation": store.pack(step["observation"])}))


def numbers(folder: Path, name: str = "trajectory.csv") -> list[int]:
    return [int(row["step"]) for row in read_rows(folder / name)]


def groups(folder: Path) -> list[Steps]:
    return [one for one in reader.steps(folder / reader.JOURNAL) if isinstance(one, Steps)]


# steps, spaces and views ------------------------------------------------------------------------------


_EXTREMES: dict[str, tuple[spaces.Space[Any], list[Any]]] = {
    "uint64": (spaces.Box(0, 2**64 - 1, (2,), np.uint64), [np.array([2**64 - 1, 1], np.uint64)]),
    "int64": (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), [np.array([-(2**63), 2**63 - 1])]),
    "not finite": (OBSERVATIONS, [np.array([np.inf, -0.0], np.float32), np.array([np.nan, -np.inf], np.float32)]),
    "float16": (spaces.Box(-np.inf, np.inf, (1,), np.float16), [np.array([6e-8], np.float16)]),
    "one number": (spaces.Box(-1.0, 1.0, (), np.float64), [np.array(0.1), np.float64(0.2), 0.3]),
    "from three": (spaces.Discrete(4, start=3), [3, np.int64(6)]),
    "nothing": (spaces.Dict({}), [{}, {}]),
    "unaligned": (
        spaces.Dict({"a": spaces.Box(0, 9, (1,), np.uint8), "b": spaces.Box(-1.0, 1.0, (3,), np.float64)}),
        [{"a": np.array([7], np.uint8), "b": np.array([0.1, 0.2, 0.3])}],
    ),
    "large": (PICTURES, [np.arange(64, dtype=np.uint8).reshape(8, 8), np.full((8, 8), 9, np.uint8)]),
}


def samples() -> dict[str, tuple[spaces.Space[Any], list[Any]]]:
    drawn: dict[str, tuple[spaces.Space[Any], list[Any]]] = {}
    for name, space in SPACES.items():
        space.seed(3)
        drawn[name] = (space, [space.sample() for _ in range(3)])
    return drawn | _EXTREMES


def _values(leaf: Any, elements: list[Any]) -> bytes:
    return np.array([np.asarray(leaf.of(element), leaf.dtype) for element in elements]).tobytes()


@pytest.mark.parametrize("name", samples())
def test_elements_of_any_space_come_back(tmp_path: Path, opened: Callable[..., StepStore], name: str) -> None:
    """As actions and as observations; from the journal or a side file; in views that are written again."""
    space, elements = samples()[name]
    store = opened(actions=space, observations=space)
    for number, element in enumerate(elements, start=1):
        given = copy.deepcopy(element)
        add(store, number, action=given, observation=given)
        if isinstance(given, np.ndarray):
            given[...] = 0  # a server may use its arrays again
    store.episode_over(Episode(1, 0, 1, len(elements), len(elements), 1.0, "cut", {}))
    store.close()
    parts = leaves(space)
    (group,) = groups(tmp_path)
    if sum(leaf.size for leaf in parts) <= 32:
        for found in (group.actions, group.observations):
            assert found is not None
            for leaf, values in zip(parts, found, strict=True):
                assert leaf_values(leaf, values).tobytes() == _values(leaf, elements)
    else:
        for side in ("actions.bin", "observations.bin"):
            found = np.fromfile(tmp_path / side, dtype=Elements(space).dtype)
            for leaf in parts:
                assert np.ascontiguousarray(found[leaf.name or "value"]).tobytes() == _values(leaf, elements)
    before = {view: (tmp_path / view).read_bytes() for view in VIEWS}
    opened(actions=space, observations=space).close()
    assert {view: (tmp_path / view).read_bytes() for view in VIEWS} == before


def test_steps_are_in_the_journal_and_in_the_views(tmp_path: Path, opened: Callable[..., StepStore]) -> None:
    """Also in views that are written again."""
    known: dict[str, Any] = {"env_params": ("load",), "metrics": ["p99"]}
    store = opened(**known)
    seen = np.random.default_rng(1).normal(size=(1001, 2)).astype(np.float32)
    for number in range(1, 1000):
        over = number % 50 == 0
        context, metrics = {"load": 0.1 * (number // 50)}, {"p99": number / 7}
        end = "truncated" if over else None
        add(store, number, observation=seen[number], context=context, metrics=metrics, end=end)
        if over:
            store.episode_over(Episode(number // 50, 0, 1, number, 50, 0.1, "truncated", {"load": 0.5}))
    add(store, 1000, reward=-1.0, context={"load": 2.0}, unmeasured=("failed", "it died"))
    store.reserve(1010)
    assert store.lose(1005) == 5
    assert store.lose(1005) == 0
    store.close()
    written = groups(tmp_path)
    assert [number for group in written for number in group.numbers] == list(range(1, 1001))
    assert [one["load"] for group in written for one in group.context_of()] == [0.1 * (n // 50) for n in range(1, 1001)]
    assert len(written) < 10
    first = next(reader.episodes(tmp_path / reader.JOURNAL))
    assert first == Episode(1, 0, 1, 50, 50, 0.1, "truncated", {"load": 0.5})
    before = {name: (tmp_path / name).read_bytes() for name in VIEWS}
    for name in VIEWS:
        (tmp_path / name).write_bytes(b"nonsense")
    again = opened(**known)
    assert (again.upto, again.lost) == (1005, 0)
    again.close()
    assert {name: (tmp_path / name).read_bytes() for name in VIEWS} == before
    trajectory, env, episodes = (read_rows(tmp_path / name) for name in VIEWS)
    assert numbers(tmp_path) == numbers(tmp_path, "env.csv") == list(range(1, 1006))
    assert [row["load"] for row in env] == [row["context.load"] for row in trajectory]
    assert [row["status"] for row in trajectory] == ["measured"] * 999 + ["failed"] + ["cancelled"] * 5
    for number, row in enumerate(trajectory[:999], start=1):
        assert (row["cached"], row["episode"], row["reward"]) == ("false", "1", str(number / 2))
        assert (int(row["action"]), np.float32(row["observation.1"])) == (number % 3, seen[number, 1])
        assert (float(row["metric.p99"]), float(row["context.load"])) == (number / 7, 0.1 * (number // 50))
    header = "episode,first_step,last_step,length,return,end,lane,context.load"
    assert [",".join(episodes[0]), ",".join(episodes[0].values())] == [header, "1,1,50,50,0.1,truncated,0,0.5"]
    assert reader.scan(tmp_path / reader.JOURNAL).statuses == {"measured": 999, "failed": 1, "cancelled": 5}


def test_other_spaces_are_refused_and_named(tmp_path: Path, opened: Callable[..., StepStore]) -> None:
    opened().close()
    with pytest.raises(StoreError, match=r"action_space: Discrete\(3\) before, Discrete\(4\) now"):
        opened(actions=spaces.Discrete(4))
    (tmp_path / "writer.lock").unlink()
    with pytest.raises(StoreError, match="observation_space: Box"):
        opened(observations=spaces.Box(0, 1, shape=(2,)))


def test_leftovers_are_known_until_servers_are_started_again(opened: Callable[..., StepStore]) -> None:
    opened().job_started({"job": "then"})
    opened()  # killed before it ended them
    third = opened()
    assert third.leftovers() == [{"job": "then"}]
    third.job_started({"job": "now"})
    assert opened().leftovers() == [{"job": "now"}]


# crashes and threads ----------------------------------------------------------------------------------


def test_failed_resume_gives_nothing_back(
    tmp_path: Path, opened: Callable[..., StepStore], caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers that a killed session reserved are lost, also if the next session can't open the side file."""
    store = opened(observations=PICTURES)
    store.reserve(500)
    add(store, 1, observation=np.zeros((8, 8), dtype=np.uint8))
    store.flush()
    journal = (tmp_path / reader.JOURNAL).read_bytes()  # as a killed writer leaves it
    whole = (tmp_path / "observations.bin").read_bytes()
    store.close()
    (tmp_path / reader.JOURNAL).write_bytes(journal)
    (tmp_path / "observations.bin").write_bytes(b"")
    broken = undeclared(tmp_path)
    with pytest.raises(StoreError, match=r"observations\.bin is too short: the journal has 1 rows, and it has 0"):
        broken.declare(ACTIONS, PICTURES)
    assert "at most 499 steps were lost (numbers 2 to 500)" in caplog.text
    broken.close()
    (tmp_path / "observations.bin").write_bytes(whole)
    again = opened(observations=PICTURES)
    assert (again.upto, again.lost) == (500, 0)
    again.close()
    past = reader.scan(tmp_path / reader.JOURNAL)
    assert (past.upto, past.reserved, past.statuses) == (500, 500, {"measured": 1, "cancelled": 499})


@pytest.mark.parametrize("refused", ["observations.bin", "env.csv"])
def test_refused_files_leave_none_open(tmp_path: Path, refused: str) -> None:
    """The first file that can't be opened, and those that were opened before it."""
    store = open_store(tmp_path, observations=PICTURES)
    add(store, 1, observation=np.zeros((8, 8), dtype=np.uint8))
    store.close()
    (tmp_path / refused).unlink()
    if refused == "env.csv":
        (tmp_path / refused).mkdir()
    broken = undeclared(tmp_path)
    with pytest.raises(StoreError, match=refused):
        broken.declare(ACTIONS, PICTURES)
    broken.close()
    assert [one.path for one in psutil.Process().open_files() if tmp_path in Path(one.path).parents] == []


@pytest.mark.slow
@pytest.mark.invariant
def test_cut_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole records count, reserved numbers without a step are lost, and it goes on at the next number.

    Every recorded step has its episode, whether the end of that is on record or not.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them would take minutes
    store = open_store(tmp_path / "whole", observations=PICTURES)
    shown = {"observation": np.zeros((8, 8), np.uint8)}
    for number in range(1, 9):
        add(store, number, episode=(number + 2) // 3, end=None if number % 3 else "terminated", **shown)
        store.flush()
        if number % 3 == 0:
            store.episode_over(Episode(number // 3, 0, number - 2, number, 3, 1.5 * (number - 1), "terminated", {}))
            store.flush()
    store.reserve(10)
    store.lose(9)
    store.end(0, "ended")
    store.close()
    data, pictures = ((tmp_path / "whole" / name).read_bytes() for name in (reader.JOURNAL, "observations.bin"))
    for size in range(len(data) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "observations.bin").write_bytes(pictures)
        (folder / reader.JOURNAL).write_bytes(data[:size])
        kept = [orjson.loads(line) for line in data[: size + 1].splitlines(keepends=True) if line.endswith(b"\n")]
        reserved = [record["upto"] for record in kept if record["record"] == "reserve"]
        steps = [record for record in kept if record["record"] == "steps"]
        again = open_store(folder, observations=PICTURES)
        used, measured = again.upto, max((record["upto"] for record in steps), default=0)
        assert used == (reserved[-1] if reserved else 0)
        add(again, used + 1, episode=9, **shown)
        again.close()
        statuses = ["measured"] * measured + ["cancelled"] * (used - measured) + ["measured"]
        assert [row["status"] for row in read_rows(folder / "trajectory.csv")] == statuses
        assert numbers(folder) == numbers(folder, "env.csv") == list(range(1, used + 2))
        episodes = [
            (one.number, one.first, one.last, one.length, one.total, one.end)
            for one in reader.episodes(folder / reader.JOURNAL)
        ]
        firsts = range(1, measured + 1, 3)
        ends = [(one, min(one + 2, measured), "cut" if one + 2 > measured else "terminated") for one in firsts]
        assert episodes == [
            (first // 3 + 1, first, last, last - first + 1, sum(range(first, last + 1)) / 2, end)
            for first, last, end in ends
        ]
        assert [int(row["last_step"]) for row in read_rows(folder / "episodes.csv")] == [last for _, last, _ in ends]
        assert reader.scan(folder / reader.JOURNAL).statuses.total() == used + 1


def test_steps_added_while_the_keeper_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the time, with a switch of threads at every chance."""
    monkeypatch.setattr(StepStore, "every_s", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        store = open_store(tmp_path)
        for number in range(1, 2001):
            add(store, number, unmeasured=("failed", "it fell") if number % 10 == 0 else None)
        store.close()
    finally:
        sys.setswitchinterval(interval)
    assert [number for group in groups(tmp_path) for number in group.numbers] == numbers(tmp_path) == [*range(1, 2001)]
    assert {group.numbers[at] for group in groups(tmp_path) for at in group.unmeasured} == {*range(10, 2001, 10)}
    assert reader.scan(tmp_path / reader.JOURNAL).statuses == {"measured": 1800, "failed": 200}


# damaged records --------------------------------------------------------------------------------------

GROUP: dict[str, Any] = {
    "record": "steps",
    "numbers": [1, 2, 3],
    "episodes": [1, 1, 2],
    "rewards": [0.5, 1, -1.0],
    "durations": [0.1, 0.2, 0.3],
    "terminated": [1],
    "truncated": [],
    "actions": [[0, 1, 2]],
    "observation_row": 7,
    "contexts": [[0, {"load": 1}], [2, {"load": 5}]],
    "metrics": {"m": [1.0, None, 2]},
    "unmeasured": {"2": ["failed", "it raised"]},
    "over": [[1, 0, 1, 2, 2, 1.5, "terminated", {"load": 1}]],
    "upto": 3,
    "begun": 2,
    "statuses": {"measured": 2, "failed": 1},
    "worst": 0.5,
    "largest": 1.0,
    "since": 1.5,
}
HEAD = {"record": "head", "version": 3, "experiment": "e", "run": "r", "live": {}}
SPACES_RECORD = {"record": "spaces", "action": describe(ACTIONS), "observation": describe(PICTURES)}


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., Path]:
    def write(*records: Any) -> Path:
        path = tmp_path / reader.JOURNAL
        path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        return path

    return write


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("numbers", value) for value in ([1, 2], [1, 2, -3], "3", None)),
        ("episodes", None),
        *(("rewards", value) for value in ([1.0, "x", 2.0], [1.0, 2.0])),
        ("durations", None),
        ("terminated", [3]),
        ("truncated", None),
        *(("metrics", value) for value in ({"m": [1.0]}, [1])),
        *(("contexts", value) for value in ([[0]], [[1, {}]], [[0, {}], [2, {}], [1, {}]])),
        *(("unmeasured", value) for value in ({"2": ["failed"]}, {"7": ["failed", "why"]})),
        *(("actions", value) for value in ([[0, 1]], [5])),
        ("observation_row", -1),
        *(("over", value) for value in ([[1, 0, 1]], [[1, 0, 1, 2, 2, "much", "terminated", {}]])),
        ("statuses", {"measured": "two"}),
        *((name, "bad") for name in ("worst", "largest", "upto", "begun", "since")),
    ],
)
def test_parts_that_do_not_fit_are_damage(journal: Callable[..., Path], part: str, value: Any) -> None:
    record = {**GROUP, part: value}
    path = journal(HEAD, GROUP, record, GROUP)
    with pytest.raises(StoreError) as caught:
        reader.scan(path)
    assert caught.value.message.startswith(f"{path}: line 3 (steps) is damaged: ")
    assert "head -n 2" in (caught.value.hint or "")
    assert len(list(reader.steps(path))) == len(list(reader.episodes(path))) == 2, "a report shows the others"


OPEN = {"record": "open", "number": 4, "context": {}, "action": {"x": 1}}
CLOSE = {
    "record": "close",
    "number": 4,
    "status": "measured",
    "samples": [{"m": 1.0}],
    "reward": 1.0,
    "duration_s": 0.1,
}


@pytest.mark.parametrize(
    "record",
    [
        {"record": "reserve", "upto": "ten"},
        {"record": "lost", "first": 1, "last": None},
        {**HEAD, "version": "2"},
        *({**OPEN, "number": value} for value in ("3", [1], -1, 1.5)),
        *({**OPEN, part: 5} for part in ("context", "action")),
        {**CLOSE, "number": 5},
        *({**CLOSE, "status": value} for value in ("done", ["measured"])),
        *({**CLOSE, "samples": value} for value in (5, [5], [{"m": "x"}])),
        *({**CLOSE, part: "x"} for part in ("reward", "duration_s", "since")),
        *({**CLOSE, "reports": value} for value in (5, [[1]], [[1, "x"]])),
        {"record": "job", "number": "4", "handle": {}},
    ],
)
def test_other_damaged_records(journal: Callable[..., Path], record: dict[str, Any]) -> None:
    path = journal(HEAD, OPEN, record)
    for read in (reader.scan, lambda path: list(reader.entries(path))):
        with pytest.raises(StoreError, match=rf"line 3 \({record['record']}\) is damaged"):
            read(path)


@pytest.mark.parametrize("action", [{"kind": "Torus"}, {}, None, {"kind": "Box", "shape": [2]}])
def test_damaged_spaces(journal: Callable[..., Path], action: Any) -> None:
    path = journal(HEAD, {**SPACES_RECORD, "action": action})
    with pytest.raises(StoreError, match=r"journal\.jsonl: line 2 \(spaces\) is damaged: "):
        reader.spaces_of(path, reader.scan(path))


@pytest.mark.parametrize(("size", "values"), [(1, [300]), (1, [-1]), (1, ["x"]), (3, [[1, 2]]), (1, [None])])
def test_values_that_are_no_elements_are_damage(size: int, values: list[Any]) -> None:
    (leaf,) = leaves(spaces.Box(0, 255, (size,), np.uint8))
    with pytest.raises(StoreError, match="the journal is damaged"):
        leaf_values(leaf, values)
