"""``report`` in a callable: its arguments, where it may be called, how it ends a trial."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.testing.runners import Seen
from tunegym.tuning.model.trial import CallJob
from tunegym.tuning.runners import worker as worker_module
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.runners.worker_main import Report, TrialPruned

MODULE = """
import os, threading, time

def calm(report):
    try:
        report(1, 1.0)
    except Exception:
        return "swallowed"
    finally:
        with open("finally.txt", "w") as file:
            file.write(str(os.getpid()))

def pid():
    return {"pid": os.getpid()}

def deaf(report):
    while True:
        try:
            report(1, 1.0)
        except BaseException:
            pass

def stuck(report):
    try:
        report(1, 1.0)
    finally:
        time.sleep(1000)

def leaves(report):
    try:
        report(1, 1.0)
    finally:
        os._exit(3)

def changes(report):
    try:
        report(1, 1.0)
    except BaseException as error:
        raise ValueError("something else") from error

def threads(count, report):
    ready = threading.Barrier(count)
    def one(lane):
        ready.wait()
        for step in range(20):
            report(100 * lane + step, float(lane))
    lanes = [threading.Thread(target=one, args=(lane,)) for lane in range(count)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return 1

def forks(report):
    LATE.append(report)
    child = os.fork()
    if child == 0:
        try:
            report(1, 1.0)
        except RuntimeError as error:
            with open("fork.txt", "w") as file:
                file.write(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    report(2, 2.0)
    return 1

LATE = []

def late():
    try:
        LATE[0](1, 1.0)
    except RuntimeError as error:
        return {"error": str(error)}

def chatty(report):
    step = 0
    while True:
        step += 1
        report(step, 0.0)
"""


Call = Callable[..., CallJob]
both = pytest.mark.parametrize("isolate", [True, False])


@pytest.fixture
def call(tmp_path: Path) -> Call:
    (tmp_path / "reporting_functions.py").write_text(MODULE)
    sys.modules.pop("reporting_functions", None)

    def make(function: str, reports: bool = True, **options: Any) -> CallJob:
        arguments = options.pop("arguments", {})
        target = f"reporting_functions:{function}"
        return CallJob(
            "1", str(tmp_path / "trial"), target, arguments, paths=(str(tmp_path),), reports=reports, **options
        )

    return make


def ignore(*_: Any) -> None:
    pass


def test_steps_and_values() -> None:
    seen = Seen()
    report = Report(seen)
    given = [(np.int64(1), np.float32(0.5)), (2, 3), (3, Fraction(1, 4)), (4, np.array(2.0)), (5, 10**400)]
    for step, value in [*given, (-6, float("nan"))]:
        report(step, value)
    assert [(type(step), type(value)) for step, value in seen.values] == [(int, float)] * 6
    assert seen.values[:5] == [(1, 0.5), (2, 3.0), (3, 0.25), (4, 2.0), (5, float("inf"))]


@pytest.mark.parametrize(
    ("step", "value", "message"),
    [
        *((step, 1.0, "step must be an integer") for step in (1.0, "1", None, True, np.float64(1), [1])),
        *((1, value, "value must be a number") for value in ("1", None, True, np.bool_(True), 1j, [1.0], b"1", {})),
        (1, np.zeros(2), "value must be a number"),
        (2**63, 1.0, "64 bits"),
    ],
)
def test_no_step_or_value(step: Any, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Report(Seen())(step, value)


def test_a_verdict_stays() -> None:
    seen = Seen(until=1)
    report = Report(seen)
    for _ in range(3):
        with pytest.raises(TrialPruned):
            report(1, 1.0)
    assert len(seen.values) == 1
    assert not issubclass(TrialPruned, Exception)


@both
def test_finally_runs_and_the_worker_stays_warm(
    runner: LocalRunner, call: Call, tmp_path: Path, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = runner.run(call("pid", False, isolate=isolate), ignore).value["pid"]
    assert runner.run(call("calm", isolate=isolate), ignore, Seen(until=1)).ending == "pruned"
    assert int((tmp_path / "finally.txt").read_text()) == before
    assert not (tmp_path / "trial" / "stderr.txt").exists()
    assert runner.run(call("pid", False, isolate=isolate), ignore).value["pid"] == before


@pytest.mark.parametrize("function", ["deaf", "stuck", "leaves", "changes"])
def test_a_function_that_ignores_its_end_is_pruned(
    runner: LocalRunner, call: Call, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a bound, and the next call runs."""
    monkeypatch.setattr(worker_module, "PRUNED_S", 0.3)
    result = runner.run(call(function), ignore, Seen(until=1))
    assert (result.ending, result.error) == ("pruned", None)
    assert runner.run(call("pid", False), ignore).exit_code == 0


@both
def test_threads_take_turns(runner: LocalRunner, call: Call, isolate: bool) -> None:
    inside = threading.Lock()
    seen: list[tuple[int, float]] = []

    def watch(step: int, value: float) -> bool:
        assert inside.acquire(blocking=False), "two at a time"
        seen.append((step, value))
        inside.release()
        return False

    result = runner.run(call("threads", isolate=isolate, arguments={"count": 4}), ignore, watch)
    assert result.error is None
    assert sorted(seen) == [(100 * lane + step, float(lane)) for lane in range(4) for step in range(20)]


@both
def test_refused_in_another_process_and_after_the_end(
    runner: LocalRunner, call: Call, tmp_path: Path, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = Seen()
    assert runner.run(call("forks", isolate=isolate), ignore, seen).exit_code == 0
    assert seen.values == [(2, 2.0)]
    assert "another process" in (tmp_path / "fork.txt").read_text()
    said = runner.run(call("late", False, isolate=isolate), ignore).value
    assert "after the function had returned" in said["error"]


def test_a_function_that_never_stops_reporting(runner: LocalRunner, call: Call) -> None:
    assert runner.run(call("chatty", timeout_s=0.5), ignore, lambda *_: False).ending == "timed_out"

    def watch(step: int, value: float) -> bool:
        del value
        if step == 10:
            runner.stop()
        return False

    assert runner.run(call("chatty"), ignore, watch).ending == "interrupted"


def test_an_error_of_the_watch_is_raised(runner: LocalRunner, call: Call, wait_until: Callable[..., None]) -> None:
    first = runner.run(call("pid", False), ignore).value["pid"]
    begun: list[int] = []

    def watch(step: int, value: float) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runner.run(call("chatty"), lambda handle: begun.append(handle["pid"]), watch)
    assert begun == [first]
    wait_until(lambda: not Path(f"/proc/{first}").exists())
    after = runner.run(call("pid", False), ignore)
    assert after.exit_code == 0
    assert after.value["pid"] != first
