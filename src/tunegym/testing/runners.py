"""What every runner must do. Subclass ``RunnerSuite``, say how to make yours, and let pytest collect it.

The runner is asked to run real processes; commands and callables must be able to see the test's folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
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
        """Output goes to files, started is called, the built-in metrics are there."""
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

    def test_failing_command_is_data(self, runner: Runner, tmp_path: Path) -> None:
        """A non-zero exit says which, and the last line of stderr."""
        result = _run(runner, _command(tmp_path, "echo metric=1; echo why >&2; exit 3"))
        assert (result.ending, result.exit_code) == ("exited", 3)
        assert result.error is not None
        assert "exited with 3" in result.error
        assert "why" in result.error

    def test_command_that_kills_itself(self, runner: Runner, tmp_path: Path) -> None:
        """A signal is named."""
        result = _run(runner, _command(tmp_path, "kill -SEGV $$"))
        assert (result.ending, result.exit_code) == ("exited", -11)
        assert "SIGSEGV" in (result.error or "")

    def test_stale_folder_is_emptied(self, runner: Runner, tmp_path: Path) -> None:
        """What a killed attempt left isn't seen by the next."""
        job = _command(tmp_path, "ls")
        Path(job.folder, "deep").mkdir(parents=True)
        Path(job.folder, "deep", "old").write_text("old")
        Path(job.folder, "result.json").write_text("{}")
        assert _run(runner, job).exit_code == 0
        assert "result.json" not in Path(job.folder, "stdout.txt").read_text()
        assert not Path(job.folder, "deep").exists()

    def test_command_timeout(self, runner: Runner, tmp_path: Path) -> None:
        """The time-out ends the job."""
        assert _run(runner, _command(tmp_path, "sleep 1000", timeout_s=0.2)).ending == "timed_out"

    def test_setup_and_teardown_in_order(self, runner: Runner, tmp_path: Path) -> None:
        """Each part sees what the one before made."""
        job = _command(tmp_path, "cat a && echo 2 > b", setup="echo 1 > a", teardown="cat b > c")
        result = _run(runner, job)
        assert (result.exit_code, result.error) == (0, None)
        assert Path(job.folder, "c").read_text() == "2\n"

    def test_failing_setup_keeps_the_command_from_running(self, runner: Runner, tmp_path: Path) -> None:
        """But teardown runs."""
        job = _command(tmp_path, "echo > ran", setup="echo sorry; exit 3", teardown="echo > torn")
        result = _run(runner, job)
        assert result.ending == "exited"
        assert "setup exited with 3" in (result.error or "")
        assert not Path(job.folder, "ran").exists()
        assert Path(job.folder, "torn").exists()

    def test_failing_teardown_is_a_failure(self, runner: Runner, tmp_path: Path) -> None:
        """Also when the command did well."""
        result = _run(runner, _command(tmp_path, "true", teardown="exit 4"))
        assert "teardown exited with 4" in (result.error or "")

    def test_call_returns_its_value(self, runner: Runner, tmp_path: Path) -> None:
        """And what it printed is in the folder."""
        job = _call(tmp_path, "double", {"x": 21})
        result = _run(runner, job)
        assert (result.ending, result.exit_code, result.error) == ("exited", 0, None)
        assert result.value == {"y": 42}
        assert Path(job.folder, "stdout.txt").read_text() == "doubling 21\n"

    def test_call_with_environment(self, runner: Runner, tmp_path: Path) -> None:
        """Set for the call."""
        job = _call(tmp_path, "env", {"name": "SUITE_KNOB"}, env={"SUITE_KNOB": "2.5"})
        assert _run(runner, job).value == {"y": 2.5}

    def test_call_that_raises(self, runner: Runner, tmp_path: Path) -> None:
        """The error in one line, and where it was raised."""
        result = _run(runner, _call(tmp_path, "fail", {"x": 1}))
        assert result.ending == "exited"
        assert "ValueError: no 1 (suite_callables.py:" in (result.error or "")

    def test_call_with_a_strange_value(self, runner: Runner, tmp_path: Path) -> None:
        """An error of the job, not of the runner."""
        result = _run(runner, _call(tmp_path, "strange", {}))
        assert result.ending == "exited"
        assert result.error

    def test_call_that_takes_its_process_down(self, runner: Runner, tmp_path: Path) -> None:
        """The runner survives, and the next call runs."""
        result = _run(runner, _call(tmp_path, "leave", {"code": 3}))
        assert result.ending == "exited"
        assert "exited with 3" in (result.error or "")
        assert _run(runner, _call(tmp_path, "double", {"x": 1})).value == {"y": 2}

    def test_call_timeout(self, runner: Runner, tmp_path: Path) -> None:
        """The time-out ends the call, and the next one runs."""
        assert _run(runner, _call(tmp_path, "forever", {}, timeout_s=0.2)).ending == "timed_out"
        assert _run(runner, _call(tmp_path, "double", {"x": 1})).value == {"y": 2}

    def test_stop_ends_all_that_runs(self, runner: Runner, tmp_path: Path) -> None:
        """Every running job, and every later one, is interrupted."""
        jobs = [_command(tmp_path, "sleep 1000"), _call(tmp_path, "forever", {})]
        results: list[JobResult] = []
        begun = threading.Semaphore(0)

        def run(job: CommandJob | CallJob) -> None:
            results.append(runner.run(job, lambda *_: begun.release()))

        threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=PATIENCE_S)
        runner.stop()
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert [result.ending for result in results] == ["interrupted", "interrupted"]
        assert _run(runner, _command(tmp_path, "true")).ending == "interrupted"

    def test_jobs_run_side_by_side(self, runner: Runner, tmp_path: Path) -> None:
        """Two jobs that wait for each other both end."""
        texts = [
            f"touch {tmp_path}/{mine}; while [ ! -e {tmp_path}/{other} ]; do sleep 0.02; done"
            for mine, other in (("a", "b"), ("b", "a"))
        ]
        jobs = [_command(tmp_path / name, text) for name, text in zip("xy", texts, strict=True)]
        results: list[JobResult] = []
        threads = [
            threading.Thread(target=lambda job=job: results.append(_run(runner, job)), daemon=True) for job in jobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [result.exit_code for result in results] == [0, 0]

    # intermediate values ------------------------------------------------------------------------------

    def test_values_of_a_command(self, runner: Runner, tmp_path: Path) -> None:
        """Every match of a whole line in order, the last line's end left out or not, numbered from 1."""
        text = "echo a=1 a=2.5; echo b=7; printf 'a='; sleep 0.3; echo 3; printf 'a=-4e1'"
        seen = Seen()
        result = runner.run(_command(tmp_path, text, stream=_STREAM), _ignore, seen)
        assert (result.ending, result.exit_code) == ("exited", 0)
        assert seen.values == [(1, 1.0), (2, 2.5), (3, 3.0), (4, -40.0)]

    def test_values_from_a_file(self, runner: Runner, tmp_path: Path) -> None:
        """That appears late."""
        seen = Seen()
        job = _command(
            tmp_path, "echo a=0; sleep 0.3; echo a=1 > out; echo a=2 >> out", stream=Stream("a=([0-9]+)", "out")
        )
        runner.run(job, _ignore, seen)
        assert seen.values == [(1, 1.0), (2, 2.0)]

    def test_command_that_is_pruned(self, runner: Runner, tmp_path: Path) -> None:
        """It is ended, nothing more is told of it, and teardown runs."""
        job = _command(
            tmp_path,
            "for i in 1 2 3 4; do echo a=$i; done; sleep 1000",
            teardown="echo > torn",
            stream=_STREAM,
        )
        seen = Seen(until=2)
        assert runner.run(job, _ignore, seen).ending == "pruned"
        assert seen.values == [(1, 1.0), (2, 2.0)]
        assert Path(job.folder, "torn").exists()

    def test_command_that_is_quicker_than_its_judge(self, runner: Runner, tmp_path: Path) -> None:
        """Pruned all the same: what is pruned depends on the values alone."""
        seen = Seen(until=2)
        assert runner.run(_command(tmp_path, "echo a=1; echo a=2", stream=_STREAM), _ignore, seen).ending == "pruned"

    def test_command_that_nobody_watches(self, runner: Runner, tmp_path: Path) -> None:
        """Runs as any other."""
        assert _run(runner, _command(tmp_path, "echo a=1", stream=_STREAM)).exit_code == 0

    def test_streaming_command_timeout(self, runner: Runner, tmp_path: Path) -> None:
        """As without a stream."""
        job = _command(tmp_path, "echo a=1; sleep 1000", timeout_s=0.5, stream=_STREAM)
        assert runner.run(job, _ignore, Seen()).ending == "timed_out"

    @pytest.mark.parametrize("isolate", [True, False])
    def test_values_of_a_call(self, runner: Runner, tmp_path: Path, isolate: bool) -> None:
        """In order, and the call returns as ever."""
        seen = Seen()
        job = _call(tmp_path, "climb", {"steps": 3}, isolate=isolate, reports=True)
        assert runner.run(job, _ignore, seen).value == {"y": 3}
        assert seen.values == [(1, 0.5), (2, 1.0), (3, 1.5)]

    @pytest.mark.parametrize("isolate", [True, False])
    @pytest.mark.parametrize("function", ["climb", "swallow"])
    def test_call_that_is_pruned(self, runner: Runner, tmp_path: Path, function: str, isolate: bool) -> None:
        """However the function takes it; nothing more is told of it, and the next call runs."""
        seen = Seen(until=2)
        job = _call(tmp_path, function, {"steps": 5}, isolate=isolate, reports=True)
        result = runner.run(job, _ignore, seen)
        assert (result.ending, result.error) == ("pruned", None)
        assert [step for step, _ in seen.values] == [1, 2]
        assert _run(runner, _call(tmp_path, "double", {"x": 1}, isolate=isolate)).value == {"y": 2}

    @pytest.mark.parametrize("isolate", [True, False])
    def test_call_that_nobody_watches(self, runner: Runner, tmp_path: Path, isolate: bool) -> None:
        """It may report as it likes."""
        job = _call(tmp_path, "climb", {"steps": 5}, isolate=isolate, reports=True)
        assert _run(runner, job).value == {"y": 5}

    @pytest.mark.parametrize("isolate", [True, False])
    @pytest.mark.parametrize("function", ["wrong_step", "wrong_value"])
    def test_report_of_nonsense(self, runner: Runner, tmp_path: Path, function: str, isolate: bool) -> None:
        """An error of the function's own, at its own line."""
        result = runner.run(_call(tmp_path, function, {}, isolate=isolate, reports=True), _ignore, Seen())
        assert "TypeError: report(step, value): " in (result.error or "")
        assert "(suite_callables.py:" in (result.error or "")

    def test_no_leftovers_of_nobody(self, runner: Runner) -> None:
        """A process that is not the one written down is left alone."""
        assert (
            runner.end_leftovers(
                [{"pid": 1, "start": "0", "boot": "none"}, {"pid": 2**22 + 1, "start": "17"}, {"job": "x"}]
            )
            == 0
        )

    def test_close_twice(self, runner: Runner, tmp_path: Path) -> None:
        """Is fine."""
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


def _ignore(handle: JobHandle) -> None:
    del handle


def _run(runner: Runner, job: CommandJob | CallJob) -> JobResult:
    return runner.run(job, lambda *_: None)


def _command(tmp_path: Path, text: str, **options: Any) -> CommandJob:
    return CommandJob("1", str(tmp_path / "trials" / "1"), text, **options)


def _call(tmp_path: Path, function: str, arguments: dict[str, Any], **options: Any) -> CallJob:
    module = tmp_path / "suite_callables.py"
    if not module.exists():
        module.write_text(_CALLABLES)
        sys.modules.pop("suite_callables", None)
    folder = str(tmp_path / "trials" / "2")
    return CallJob("2", folder, f"suite_callables:{function}", arguments, paths=(str(tmp_path),), **options)
