"""Calls of Python functions, in warm workers and in the driver's process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.processes import marked, process_start_time
from tunegym.tuning.model.trial import CallJob, JobResult
from tunegym.tuning.runners.local import LocalRunner

MODULE = """
import decimal, fractions, os, subprocess, sys
from multiprocessing import shared_memory

CALLS = []

def pid(**_):
    CALLS.append(1)
    return {"pid": os.getpid(), "calls": len(CALLS), "cwd": os.getcwd()}

def kill(number):
    os.kill(os.getpid(), number)

def leave(code):
    sys.exit(code)

def children():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["setsid", "sleep", "1000"], start_new_session=True)
    return {"pid": subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}).pid}

def forks():
    if os.fork() == 0:
        return 2
    os.wait()
    return 1

def strange(kind):
    import numpy
    loop = []
    loop.append(loop)
    return {
        "object": {"x": object()}, "loop": loop, "fraction": fractions.Fraction(1, 2),
        "decimal": {"x": decimal.Decimal("0.5")}, "none": None, "list": [1, 2.5],
        "numpy": {"x": numpy.float32(0.5), "y": numpy.int64(3), "z": numpy.array([0.5]), 1: numpy.bool_(True)},
        "array": {"x": numpy.zeros(3)},
    }[kind]

def writes(trial_dir):
    with open(os.path.join(trial_dir, "made"), "w") as file:
        file.write("x")
    os.chdir("/")
    return 1

def memory(mb):
    return len(bytearray(b"x") * (mb << 20))

def raises(text):
    raise KeyError(text)

def shared():
    block = shared_memory.SharedMemory(create=True, size=100)
    block.close()
    block.unlink()
    return os.getpid()

def prints(text):
    print(text)
    print(text, file=sys.stderr)
    os.system("echo child")
    return 1

class Group:
    @staticmethod
    def method(x):
        return x

def ctrl_c():
    raise KeyboardInterrupt
"""

Call = Callable[..., JobResult]
both = pytest.mark.parametrize("isolate", [True, False])


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"calls_{os.getpid()}_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.fixture
def call(runner: LocalRunner, module: str, tmp_path: Path) -> Call:
    def run(function: str, isolate: bool = True, timeout_s: float | None = None, **arguments: Any) -> JobResult:
        options: dict[str, Any] = {"paths": (str(tmp_path),), "isolate": isolate, "timeout_s": timeout_s}
        job = CallJob("1", str(tmp_path / "trial"), f"{module}:{function}", arguments, **options)
        return runner.run(job, lambda *_: None)

    return run


def test_a_worker_is_reused_until_it_dies(call: Call, tmp_path: Path) -> None:
    first, second = call("pid").value, call("pid").value
    assert first["pid"] == second["pid"] != os.getpid()
    assert second["calls"] == 2
    assert not (tmp_path / "trial").exists()  # nothing was printed
    os.kill(first["pid"], signal.SIGKILL)
    assert call("pid").value["calls"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_worker(call: Call, tmp_path: Path, number: signal.Signals) -> None:
    """A crash leaves its traceback."""
    result = call("kill", number=int(number))
    assert (result.ending, result.error) == ("exited", f"the worker died: killed by {number.name}")
    assert result.exit_code == -number
    if number is signal.SIGSEGV:
        assert "in kill" in (tmp_path / "trial" / "stderr.txt").read_text()
    assert call("pid").error is None


@both
@pytest.mark.parametrize("code", [3, "no luck"])
def test_sys_exit_is_an_error(call: Call, code: Any, isolate: bool) -> None:
    assert (call("leave", isolate, code=code).error or "").startswith(f"SystemExit: {code} (")


def test_children_are_ended_and_the_worker_is_not(call: Call, token: str, wait_until: Callable[..., None]) -> None:
    before = call("pid").value["pid"]
    hidden = call("children").value["pid"]  # in another session, and without the mark
    wait_until(lambda: process_start_time(hidden) is None)
    assert marked(token) == [before]
    assert call("forks").value == 1
    assert call("pid").value["pid"] == before


@both
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("fraction", 0.5),
        ("decimal", {"x": 0.5}),
        ("none", None),
        ("list", [1, 2.5]),
        ("numpy", {"x": 0.5, "y": 3, "z": 0.5, "1": True}),
        ("array", ...),
        ("object", ...),
        ("loop", ...),
    ],
)
def test_values(call: Call, kind: str, value: Any, isolate: bool) -> None:
    """Plain data comes back, also from scalars of any library; anything else is an error, and the worker goes on."""
    result = call("strange", isolate, kind=kind)
    assert result.ending == "exited"
    if value is ...:
        assert result.error
    else:
        assert (result.error, repr(result.value)) == (None, repr(value))
    assert call("pid", isolate).value["calls"] == 1


@both
def test_trial_dir(call: Call, tmp_path: Path, isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "trial"
    (folder / "old").mkdir(parents=True)
    assert call("writes", isolate, trial_dir=str(folder)).value == 1
    assert [path.name for path in folder.iterdir()] == ["made"]
    if isolate:  # the working folder is restored
        assert call("pid").value["cwd"] == str(tmp_path)


def test_memory_is_the_calls_own(call: Call) -> None:
    large, small = call("memory", mb=150).max_rss_mb, call("memory", mb=1).max_rss_mb
    assert 0 < (small or 0) < (large or 0)


@both
def test_an_exception(call: Call, tmp_path: Path, module: str, isolate: bool) -> None:
    line = MODULE[: MODULE.index("raise KeyError")].count("\n") + 1
    assert call("raises", isolate, text="x").error == f"KeyError: 'x' ({module}.py:{line})"
    traceback = (tmp_path / "trial" / "stderr.txt").read_text()
    assert traceback.startswith("Traceback")
    assert "raise KeyError(text)" in traceback


@both
@pytest.mark.parametrize("target", ["nowhere", "Group.nothing"])
def test_targets_that_are_not_there(call: Call, isolate: bool, target: str) -> None:
    assert call(target, isolate).error
    assert call("Group.method", isolate, x=3).value == 3


def test_output_of_children_too(call: Call, tmp_path: Path) -> None:
    call("prints", text="grüße")
    assert (tmp_path / "trial" / "stdout.txt").read_text(encoding="utf-8") == "grüße\nchild\n"
    assert (tmp_path / "trial" / "stderr.txt").read_text(encoding="utf-8") == "grüße\n"


def test_the_resource_tracker_of_multiprocessing_is_spared(call: Call, token: str) -> None:
    first = call("shared").value
    assert call("shared").value == first
    assert len(marked(token)) == 2


def test_a_call_that_can_not_be_sent(runner: LocalRunner, call: Call, module: str, tmp_path: Path) -> None:
    assert "can't be sent" in (call("pid", x=lambda: 1).error or "")
    job = CallJob("1", str(tmp_path / "t"), f"{module}:pid", {}, (str(tmp_path),), env={"A": "x\0y"})
    assert "ValueError" in (runner.run(job, lambda *_: None).error or "")


def test_workers_of_other_folders_are_others(runner: LocalRunner, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_name.py").write_text(f"def f(): return {ord(name)}")
    for name in "aba":
        job = CallJob("1", str(tmp_path / "t"), "same_name:f", {}, (str(tmp_path / name),))
        assert runner.run(job, lambda *_: None).value == ord(name)


def test_in_process(call: Call, runner: LocalRunner, tmp_path: Path, module: str) -> None:
    result = call("pid", isolate=False)
    assert result.value["pid"] == os.getpid()
    assert (result.ending, result.exit_code, result.error, result.max_rss_mb) == ("exited", 0, None, None)
    assert result.cpu_s is not None
    assert not (tmp_path / "trial").exists()
    with pytest.raises(KeyboardInterrupt):
        call("ctrl_c", isolate=False)
    runner.stop()
    assert call("pid", isolate=False).ending == "interrupted"
    sys.modules.pop(module, None)
