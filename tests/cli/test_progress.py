"""The progress line, and what a signal says and does."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tunegym.cli import run, terminal
from tunegym.core.stop import Stop
from tunegym.tuning.model.summary import Progress


class Session(SimpleNamespace):
    """A session whose progress a test sets."""

    def progress(self) -> Progress:
        return Progress(self.done, self.unit, self.done, self.elapsed_s, self.shown)


def session(total: int | None = 1000, unit: str = "step", max_time_s: float | None = None, **now: Any) -> Any:
    budget = SimpleNamespace(max_time_s=max_time_s)
    experiment = SimpleNamespace(name="pole", most_trials=total, budget=budget)
    return Session(**{"experiment": experiment, "unit": unit, "done": 0, "elapsed_s": 0.0, "shown": {}, **now})


def test_steps() -> None:
    now = session()
    line = run.Line(now)
    assert line.parts() == ["pole", "0/1,000 steps", "after 0:00:00"]
    now.done, now.elapsed_s, now.shown = 500, 2.0, {"episodes": "12", "failed": "3"}
    assert line.parts() == ["pole", "500/1,000 steps", "250 steps/s", "episodes 12", "failed 3", "left 0:00:02"]
    line.over = True
    assert line.parts()[-1] == "took 0:00:02"


def test_trials() -> None:
    now = session(6, unit="", shown={"failed": "0"})
    line = run.Line(now)
    now.done, now.elapsed_s = 3, 60.0
    assert line.parts() == ["pole", "3/6", "failed 0", "left 0:01:00"]


@pytest.mark.parametrize(
    ("total", "unit", "done", "text"),
    [(None, "step", 1, "1 step"), (None, "step", 2, "2 steps"), (1, "step", 0, "0/1 step"), (None, "", 2, "2 done")],
)
def test_counts(total: int | None, unit: str, done: int, text: str) -> None:
    assert run.Line(session(total, unit, done=done)).parts()[1] == text


def test_the_pace_is_that_of_this_session() -> None:
    now = session(None, done=400, elapsed_s=7.0)
    line = run.Line(now)
    now.done, now.elapsed_s = 500, 9.0
    assert line.parts()[1:3] == ["500 steps", "50 steps/s"]


def test_the_time_that_is_left_is_bounded_by_max_time() -> None:
    now = session(None, max_time_s=60.0)
    line = run.Line(now)
    now.done, now.elapsed_s = 10, 50.0
    assert line.parts()[-1] == "left 0:00:10"


def test_counts_that_are_just_being_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = session(done=5)
    line = run.Line(now)
    before = line.parts()

    def changed(_: Any) -> Progress:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(Session, "progress", changed)
    assert line.parts() == before


def test_a_ticker_ends_with_what_it_prints_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PLAIN_EVERY_S", 0.001)
    tried = threading.Event()

    class Gone:
        def print(self, *_: object, **__: object) -> None:
            tried.set()
            raise OSError("the pipe is gone")

    out: Any = Gone()
    ticker = run.Ticker(run.Line(session(done=5)), out)
    assert tried.wait(10)
    ticker.stop()
    assert not ticker._thread.is_alive()


def test_one_signal_asks_to_stop_and_says_what_that_means(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work(watch: Any, stop: Stop) -> int:
        watch.stopping = "the step in progress is finished"
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        return terminal.INTERRUPTED

    assert run.drive(work) == 130
    assert capfd.readouterr().err == "\nstopping: the step in progress is finished; once more to stop at once\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_signals_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(terminal.os, "_exit", codes.append)
    forced: list[bool] = []

    def work(watch: Any, stop: Stop) -> int:
        stop.subscribe(lambda: None, lambda: forced.append(True))
        signal.raise_signal(signal.SIGTERM)
        assert (codes, forced) == ([], [])
        signal.raise_signal(signal.SIGTERM)
        return 0

    run.drive(work)
    assert (codes, forced) == ([130], [True])


def test_nohup_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminal.heard(lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
