"""Contract suite for runners. Subclass ``RunnerSuite``, say how to make yours, and let pytest collect it.

The runner is asked to run real processes; commands and callables must be able to see the test's folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tunegym.tuning.model.trial import CallJob, CommandJob, JobHandle, JobResult, Stream
from tunegym.tuning.ports import Runner

PATIENCE_S = 60.0

_CALLABLES = """
import os, sys, time

def double(x):
    print("doubling", x)
    return {"y": 2 * x}

def env(name):
    return {"y": float(os.environ[name])}

def fail(x):
    raise ValueError(f"no {x}")

def leave(code):
    os._exit(code)

def forever():
    while True:
        time.sleep(0.01)

def strange():
    return {"y": object()}

def climb(steps, report):
    try:
        for step in range(1, steps + 1):
            report(step, step / 2)
        return {"y": steps}
    finally:
        print("done")

def swallow(steps, report):
    for step in range(1, steps + 1):
        try:
            report(step, float(step))
        except BaseException:
            pass
    return {"y": steps}

def wrong_step(report):
    report("one", 1.0)

def wrong_value(report):
    report(1, "1.0")
"""


class RunnerSuite(ABC):
    """The contract of the ``Runner`` port, as tests."""

    @abstractmethod
    def make_runner(self, tmp_path: Path) -> Runner:
        """A fresh runner; ``close`` is called on it."""

    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[Runner]:
        """The runner under test."""
        with contextlib.closing(self.make_runner(tmp_path)) as runner:
            yield runner

    def test_command_runs_in_its_folder_with_its_environment(self, runner: Runner, tmp_path: Path) -> None:
        """Output goes to files, and ``started`` gets a handle that JSON can hold."""
        job = _command(tmp_path, "pwd; echo $KNOB >&2; echo x > made", env={"KNOB": "seven"})
        seen: list[JobHandle] = []
        result = runner.run(job, seen.append)
        assert (result.ending, result.exit_code, result.error) == ("exited", 0, None)
        assert Path(job.folder, "stdout.txt").read_text().strip() == str(Path(job.folder).resolve())
        assert Path(job.folder, "stderr.txt").read_text() == "seven\n"
        assert Path(job.folder, "made").exists()
        assert len(seen) == 1
        assert json.loads(json.dumps(seen[0])) == seen[0]
        assert result.duration_s > 0

    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ("echo metric=1; echo why >&2; exit 3", 3, "exited with 3: why"),
            ("kill -SEGV $$", -11, "SIGSEGV"),
            ("false; true", 1, "exited with 1"),
            ("false | true", 1, "exited with 1"),
        ],
    )
    def test_failing_command_is_data(self, runner: Runner, tmp_path: Path, text: str, code: int, said: str) -> None:
        """The error says how it ended, and what stderr says. One failing command, or stage of a pipe, is enough."""
        result = _run(runner, _command(tmp_path, text))
        assert (result.ending, result.exit_code) == ("exited", code)
        assert said in (result.error or "")

    def test_stale_folder_is_emptied(self, runner: Runner, tmp_path: Path) -> None:
        """Files of a killed attempt are gone."""
        job = _command(tmp_path, "ls")
        Path(job.folder, "deep").mkdir(parents=True)
        Path(job.folder, "deep", "old").write_text("old")
        assert _run(runner, job).exit_code == 0
        assert Path(job.folder, "stdout.txt").read_text().split() == ["stderr.txt", "stdout.txt"]

    @pytest.mark.parametrize("stream", [None, Stream("a=([0-9]+)")])
    def test_command_timeout(self, runner: Runner, tmp_path: Path, stream: Stream | None) -> None:
        """Also while it is watched."""
        job = _command(tmp_path, "echo a=1; sleep 1000", timeout_s=0.3, stream=stream)
        assert _run(runner, job, Seen()).ending == "timed_out"

    def test_setup_and_teardown(self, runner: Runner, tmp_path: Path) -> None:
        """In order; a failing setup keeps the command from running, a failing teardown is a failure."""
        job = _command(tmp_path, "cat a && echo 2 > b", setup="echo 1 > a", teardown="cat b > c")
        result = _run(runner, job)
        assert (result.exit_code, result.error) == (0, None)
        assert Path(job.folder, "c").read_text() == "2\n"
        job = _command(tmp_path, "echo > ran", setup="echo sorry; exit 3", teardown="echo > torn")
        result = _run(runner, job)
        assert result.ending == "exited"
        assert "setup exited with 3" in (result.error or "")
        assert [Path(job.folder, name).exists() for name in ("ran", "torn")] == [False, True]
        result = _run(runner, _command(tmp_path, "true", teardown="exit 4"))
        assert "teardown exited with 4" in (result.error or "")

    def test_call_returns_its_value(self, runner: Runner, tmp_path: Path) -> None:
        """Its output is in the folder, and its variables are set."""
        job = _call(tmp_path, "double", {"x": 21})
        result = _run(runner, job)
        assert (result.ending, result.exit_code, result.error) == ("exited", 0, None)
        assert result.value == {"y": 42}
        assert Path(job.folder, "stdout.txt").read_text() == "doubling 21\n"
        job = _call(tmp_path, "env", {"name": "SUITE_KNOB"}, env={"SUITE_KNOB": "2.5"})
        assert _run(runner, job).value == {"y": 2.5}

    @pytest.mark.parametrize(
        ("function", "arguments", "said"),
        [
            ("fail", {"x": 1}, "ValueError: no 1 (suite_callables.py:"),
            ("strange", {}, ""),
            ("leave", {"code": 3}, "exited with 3"),
        ],
    )
    def test_failing_call_is_data(
        self, runner: Runner, tmp_path: Path, function: str, arguments: dict[str, Any], said: str
    ) -> None:
        """One that raises, returns no plain value, or ends its process; the next call runs."""
        result = _run(runner, _call(tmp_path, function, arguments))
        assert result.ending == "exited"
        assert result.error
        assert said in result.error
        assert _run(runner, _call(tmp_path, "double", {"x": 1})).value == {"y": 2}

    def test_call_timeout(self, runner: Runner, tmp_path: Path) -> None:
        """The time-out ends the call, and the next one runs."""
        assert _run(runner, _call(tmp_path, "forever", {}, timeout_s=0.2)).ending == "timed_out"
        assert _run(runner, _call(tmp_path, "double", {"x": 1})).value == {"y": 2}

    def test_stop_ends_all_that_runs(self, runner: Runner, tmp_path: Path) -> None:
        """Every running job, and every later one, is interrupted."""
        begun = threading.Semaphore(0)
        jobs = [_command(tmp_path, "sleep 1000"), _call(tmp_path, "forever", {})]
        with ThreadPoolExecutor() as threads:
            runs = [threads.submit(runner.run, job, lambda _: begun.release()) for job in jobs]
            for _ in jobs:
                assert begun.acquire(timeout=PATIENCE_S)
            runner.stop()
            assert [run.result(PATIENCE_S).ending for run in runs] == ["interrupted", "interrupted"]
        assert _run(runner, _command(tmp_path, "true")).ending == "interrupted"

    def test_jobs_run_side_by_side(self, runner: Runner, tmp_path: Path) -> None:
        """Two jobs that wait for each other both end."""
        texts = [
            f"touch {tmp_path}/{mine}; while [ ! -e {tmp_path}/{other} ]; do sleep 0.02; done"
            for mine, other in (("a", "b"), ("b", "a"))
        ]
        jobs = [_command(tmp_path / name, text) for name, text in zip("xy", texts, strict=True)]
        with ThreadPoolExecutor() as threads:
            runs = [threads.submit(_run, runner, job) for job in jobs]
            assert [run.result(PATIENCE_S).exit_code for run in runs] == [0, 0]

    # intermediate values ------------------------------------------------------------------------------

    def test_values_of_a_command(self, runner: Runner, tmp_path: Path) -> None:
        """Every match of a whole line in order, numbered from 1; from a file that appears late, too."""
        text = "echo a=1 a=2.5; echo b=7; printf 'a='; sleep 0.3; echo 3; printf 'a=-4e1'"
        seen = Seen()
        result = _run(runner, _command(tmp_path, text, stream=_STREAM), seen)
        assert (result.ending, result.exit_code) == ("exited", 0)
        assert seen.values == [(1, 1.0), (2, 2.5), (3, 3.0), (4, -40.0)]
        text = "echo a=0; sleep 0.3; echo a=1 > out; echo a=2 >> out"
        seen = Seen()
        _run(runner, _command(tmp_path, text, stream=Stream("a=([0-9]+)", "out")), seen)
        assert seen.values == [(1, 1.0), (2, 2.0)]
        assert _run(runner, _command(tmp_path, "echo a=1", stream=_STREAM)).exit_code == 0  # without a watch

    @pytest.mark.parametrize("rest", ["sleep 1000", "true"])
    def test_command_that_is_pruned(self, runner: Runner, tmp_path: Path, rest: str) -> None:
        """However quick it is. It is ended, its later values are not reported, and teardown runs."""
        text = f"for i in 1 2 3 4; do echo a=$i; done; {rest}"
        job = _command(tmp_path, text, teardown="echo > torn", stream=_STREAM)
        seen = Seen(until=2)
        assert _run(runner, job, seen).ending == "pruned"
        assert seen.values == [(1, 1.0), (2, 2.0)]
        assert Path(job.folder, "torn").exists()

    @pytest.mark.parametrize("isolate", [True, False])
    def test_values_of_a_call(self, runner: Runner, tmp_path: Path, isolate: bool) -> None:
        """In order, and the call returns its value; it may report without a watch."""
        seen = Seen()
        job = _call(tmp_path, "climb", {"steps": 3}, isolate=isolate, reports=True)
        assert _run(runner, job, seen).value == {"y": 3}
        assert seen.values == [(1, 0.5), (2, 1.0), (3, 1.5)]
        assert _run(runner, job).value == {"y": 3}

    @pytest.mark.parametrize("isolate", [True, False])
    @pytest.mark.parametrize("function", ["climb", "swallow"])
    def test_call_that_is_pruned(self, runner: Runner, tmp_path: Path, function: str, isolate: bool) -> None:
        """Also if the function swallows the error; its later values are not reported, and the next call runs."""
        seen = Seen(until=2)
        job = _call(tmp_path, function, {"steps": 5}, isolate=isolate, reports=True)
        result = _run(runner, job, seen)
        assert (result.ending, result.error) == ("pruned", None)
        assert [step for step, _ in seen.values] == [1, 2]
        assert _run(runner, _call(tmp_path, "double", {"x": 1}, isolate=isolate)).value == {"y": 2}

    @pytest.mark.parametrize("isolate", [True, False])
    @pytest.mark.parametrize("function", ["wrong_step", "wrong_value"])
    def test_report_of_nonsense(self, runner: Runner, tmp_path: Path, function: str, isolate: bool) -> None:
        """An error of the function, at its line."""
        result = _run(runner, _call(tmp_path, function, {}, isolate=isolate, reports=True), Seen())
        assert "TypeError: report(step, value): " in (result.error or "")
        assert "(suite_callables.py:" in (result.error or "")

    def test_strangers_are_no_leftovers(self, runner: Runner) -> None:
        """A process other than the recorded one is left alone."""
        handles = [{"pid": 1, "start": "0", "boot": "none"}, {"pid": 2**22 + 1, "start": "17"}, {"job": "x"}]
        assert runner.end_leftovers(handles) == 0

    def test_close_twice(self, runner: Runner, tmp_path: Path) -> None:
        """Nothing happens the second time."""
        _run(runner, _call(tmp_path, "double", {"x": 1}))
        runner.close()
        runner.close()


_STREAM = Stream("a=([-0-9.e]+)")


class Seen:
    """A watch that remembers, and says so at its ``until``-th value."""

    def __init__(self, until: int | None = None) -> None:
        self.values: list[tuple[int, float]] = []
        self._until = until

    def __call__(self, step: int, value: float) -> bool:
        """Take note."""
        self.values.append((step, value))
        return len(self.values) == self._until


def _run(runner: Runner, job: CommandJob | CallJob, watch: Seen | None = None) -> JobResult:
    return runner.run(job, lambda _: None, watch)


def _command(tmp_path: Path, text: str, **options: Any) -> CommandJob:
    return CommandJob("1", str(tmp_path / "trials" / "1"), text, **options)


def _call(tmp_path: Path, function: str, arguments: dict[str, Any], **options: Any) -> CallJob:
    module = tmp_path / "suite_callables.py"
    if not module.exists():
        module.write_text(_CALLABLES)
        sys.modules.pop("suite_callables", None)
    folder = str(tmp_path / "trials" / "2")
    return CallJob("2", folder, f"suite_callables:{function}", arguments, paths=(str(tmp_path),), **options)
