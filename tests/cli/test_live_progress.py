from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from tunegym.cli.live_progress import LiveLine, Ticker
from tunegym.tuning.envs.live.tally import LiveTally
from tunegym.tuning.stores.reader import Journal


def line(total: int | None = 1000, **past: Any) -> tuple[LiveLine, LiveTally, SimpleNamespace]:
    tally = LiveTally(Journal(**past))
    budget = SimpleNamespace(elapsed_s=0.0, budget=SimpleNamespace(max_time_s=None))
    engine: Any = SimpleNamespace(tally=tally, budget=budget)
    experiment: Any = SimpleNamespace(name="pole", most_trials=total)
    return LiveLine(experiment, engine), tally, budget


def clock(seconds: float) -> str:
    return f"{seconds:.0f} s"


def test_before_the_first_step() -> None:
    shown, _, _ = line()
    assert shown.parts(clock, over=False) == ["pole", "0/1,000 steps", "episodes 0", "failed 0", "after 0 s"]


def test_one_is_one_step() -> None:
    shown, tally, _ = line(total=None)
    tally.done = 1
    assert shown.parts(clock, over=False)[1] == "1 step"
    tally.done = 2
    assert shown.parts(clock, over=False)[1] == "2 steps"
    assert line(total=1)[0].parts(clock, over=False)[1] == "0/1 step"


def test_while_it_goes() -> None:
    shown, tally, budget = line()
    tally.done, tally.episodes, tally.restarts, budget.elapsed_s = 500, 12, 3, 2.0
    tally.returns.extend([10.0, 20.0])
    tally.others.update(failed=2, timed_out=1, cancelled=4)
    assert shown.parts(clock, over=False) == [
        "pole",
        "500/1,000 steps",
        "250 steps/s",
        "episodes 12",
        "return 15 (last 2)",
        "failed 3",
        "cancelled 4",
        "restarts 3",
        "left 2 s",
    ]
    assert shown.parts(clock, over=True)[-1] == "took 2 s"


def test_the_pace_is_that_of_this_session() -> None:
    shown, tally, budget = line(None, upto=400)
    tally.done, budget.elapsed_s = 500, 2.0
    assert shown.parts(clock, over=True)[1:3] == ["500 steps", "50 steps/s"]


def test_time_that_is_left() -> None:
    shown, tally, budget = line(None)
    budget.budget.max_time_s = 60.0
    tally.done, budget.elapsed_s = 10, 50.0
    assert shown.parts(clock, over=False)[-1] == "left 10 s"


def test_a_tally_that_is_just_being_changed(monkeypatch: Any) -> None:
    shown, tally, _ = line()
    tally.done = 5
    before = shown.parts(clock, over=False)

    def changed(_: Any) -> float:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(LiveTally, "mean_return", property(changed))
    assert shown.parts(clock, over=False) == before


def test_a_ticker_ends_with_what_it_tells_of() -> None:
    said = threading.Event()
    ticker = Ticker(said.set, lambda: 0.001)
    assert said.wait(10)
    ticker.stop()
    said.clear()
    time.sleep(0.02)
    assert not said.is_set()


def test_what_a_ticker_raises_stays_with_it() -> None:
    tried = threading.Event()

    def say() -> None:
        tried.set()
        raise OSError("the pipe is gone")

    ticker = Ticker(say, lambda: 0.001)
    assert tried.wait(10)
    ticker.stop()
    assert not ticker._thread.is_alive()
