"""Lanes that take their steps by themselves: a thread each, one counter, records in the order of numbers."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from tests.tuning.envs.live.conftest import Counter, Engines

from tunegym.core.errors import BudgetError
from tunegym.tuning.model.space import Choice, EnvParam
from tunegym.tuning.stores import reader


class Held(Counter):
    """Its steps wait until they are let go."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.begun, self.go = threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        self.begun.set()
        assert self.go.wait(120)
        return super().step(action)


def test_a_slow_lane_delays_no_other_and_records_stay_in_order(engines: Engines) -> None:
    slow = Held()
    engine = engines(servers=[slow, Counter(length=3)])
    engine.separate()
    engine.reset(0)
    engine.reset(1)
    late = threading.Thread(target=lambda: engine.lane_step(1, 0, 4))
    late.start()
    assert slow.begun.wait(120)
    answers = [engine.lane_step(2, 1, 5) for _ in range(3)]
    assert [info["step"] for *_, info in answers] == [2, 3, 4]
    assert answers[-1][2]
    assert reader.scan(engines.folder / "journal.jsonl").upto == 0  # they wait for number 1
    slow.go.set()
    late.join(120)
    engines.close()
    assert [(row["step"], row["action"]) for row in engines.rows()] == [("1", "1"), ("2", "2"), ("3", "2"), ("4", "2")]
    ends = {row["lane"]: (row["first_step"], row["last_step"], row["end"]) for row in engines.rows("episodes.csv")}
    assert ends == {"1": ("2", "4", "terminated"), "0": ("1", "1", "cut")}
    steps = [one for one in reader.entries(engines.folder / "journal.jsonl") if isinstance(one, reader.Steps)]
    assert [version for one in steps for version in one.weight_versions] == [4, 5, 5, 5]


def test_an_episode_has_the_context_of_its_first_number(engines: Engines) -> None:
    params = {"load": EnvParam(Choice((1, 2, 3)), None)}
    engine = engines(servers=[Counter(length=2), Counter(length=3)], env_params=params)
    engine.separate()
    shown = {}
    for lane in (1, 0, 0, 1, 0):
        _, info = engine.reset(lane)
        first = info["step"]
        over = False
        while not over:
            *_, over, _, told = engine.lane_step(0, lane)
            assert told["env_params"] == info["next_env_params"] == params_of(engine, first)
            shown.setdefault(first, told["step"])
    assert all(first == taken for first, taken in shown.items())


def params_of(engine: Any, number: int) -> dict[str, Any]:
    return engine.experiment.env_params.context(number)


def test_numbers_that_were_held_and_not_used(engines: Engines) -> None:
    engine = engines(servers=[Counter(), Counter(), Counter()], steps=10)
    engine.separate()
    for lane in range(3):
        engine.reset(lane)
    engine.lane_step(0, 0)
    engine.lane_step(0, 2)
    engines.close()  # 2 was held by lane 1: a hole, which is recorded
    assert [(row["step"], row["status"]) for row in engines.rows()] == [
        *(("1", "measured"), ("2", "cancelled"), ("3", "measured"))
    ]


def test_the_budget_ends_all_lanes(engines: Engines) -> None:
    engine = engines(servers=[Counter(), Counter()], steps=5)
    engine.separate()
    taken: list[int] = []

    def drive(lane: int) -> None:
        over = True
        with contextlib.suppress(BudgetError):
            while True:
                if over:
                    engine.reset(lane)
                *_, terminated, truncated, info = engine.lane_step(0, lane)
                taken.append(info["step"])
                over = terminated or truncated

    threads = [threading.Thread(target=drive, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    engines.close()
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert [row["step"] for row in engines.rows()] == ["1", "2", "3", "4", "5"]
