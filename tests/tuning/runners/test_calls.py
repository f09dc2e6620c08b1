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
import ctypes, os, signal, subprocess, sys, time

STATE = {"calls": 0}

def pid(**_):
    STATE["calls"] += 1
    return {"pid": os.getpid(), "calls": STATE["calls"]}

def kill(number):
    os.kill(os.getpid(), number)

def segfault():
    ctypes.string_at(0)

def leave(code):
    sys.exit(code)

def children():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["setsid", "sleep", "1000"], start_new_session=True)
    return 1

def forks():
    if os.fork() == 0:
        return 2
    os.wait()
    return 1

def hog():
    open("began", "w").close()
    while True:
        pass

def strange(kind):
    import decimal
    import fractions
    loop = []
    loop.append(loop)
    return {
        "lambda": lambda: 1, "object": {"x": object()}, "loop": loop, "fraction": fractions.Fraction(1, 2),
        "decimal": {"x": decimal.Decimal("0.5")}, "none": None, "list": [1, 2.5],
    }[kind]

def numpy_scalar():
    import numpy
    return {"x": numpy.float32(0.5), "y": numpy.int64(3)}

def writes(trial_dir):
    with open(os.path.join(trial_dir, "made"), "w") as file:
        file.write("x")
    return 1

def wanders():
    os.chdir("/")
    return 1

def where():
    return {"cwd": os.getcwd()}

def memory(mb):
    block = bytearray(b"x") * (mb << 20)
    return len(block)

def raises(text):
    raise KeyError(text)

def shared():
    from multiprocessing import shared_memory
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

@property
def interrupt(self):
    pass

def ctrl_c():
    raise KeyboardInterrupt
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"calls_{os.getpid()}_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.fixture
def call(runner: LocalRunner, module: str, tmp_path: Path) -> Callable[..., JobResult]:
    def run(function: str, isolate: bool = True, timeout_s: float | None = None, **arguments: Any) -> JobResult:
        job = CallJob(
            "1",
            str(tmp_path / "trial"),
            f"{module}:{function}",
            arguments,
            (str(tmp_path),),
            isolate=isolate,
            timeout_s=timeout_s,
        )
        return runner.run(job, lambda *_: None)

    return run


def test_a_worker_is_reused(call: Callable[..., JobResult], tmp_path: Path) -> None:
    first, second = call("pid").value, call("pid").value
    assert first["pid"] == second["pid"] != os.getpid()
    assert second["calls"] == 2
    assert not (tmp_path / "trial").exists()  # nothing was printed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_killed_worker(call: Callable[..., JobResult], number: signal.Signals) -> None:
    result = call("kill", number=int(number))
    assert (result.ending, result.error) == ("exited", f"the worker died: killed by {number.name}")
    assert result.exit_code == -number
    assert call("pid").error is None


def test_a_segfault(call: Callable[..., JobResult], tmp_path: Path) -> None:
    assert call("segfault").error == "the worker died: killed by SIGSEGV"
    assert "in segfault" in (tmp_path / "trial" / "stderr.txt").read_text()
    assert call("pid").error is None


def test_sys_exit(call: Callable[..., JobResult]) -> None:
    assert (call("leave", code=3).error or "").startswith("SystemExit: 3 (")
    assert (call("leave", code="no luck").error or "").startswith("SystemExit: no luck (")


def test_a_worker_that_died_while_idle(call: Callable[..., JobResult]) -> None:
    os.kill(call("pid").value["pid"], signal.SIGKILL)
    assert call("pid").value["calls"] == 1


def test_children_are_ended_and_the_worker_is_not(call: Callable[..., JobResult], token: str, module: str) -> None:
    before = call("pid").value["pid"]
    assert call("children").value == 1
    assert marked(token) == [before]
    assert call("pid").value["pid"] == before


def test_a_function_that_forks(call: Callable[..., JobResult]) -> None:
    assert call("forks").value == 1
    assert call("pid").value["calls"] == 1


def test_a_function_that_never_lets_go(call: Callable[..., JobResult]) -> None:
    assert call("hog", timeout_s=0.2).ending == "timed_out"


@pytest.mark.parametrize(
    ("kind", "value"), [("fraction", 0.5), ("decimal", {"x": 0.5}), ("none", None), ("list", [1, 2.5])]
)
def test_values_that_can_be_had(call: Callable[..., JobResult], kind: str, value: object) -> None:
    result = call("strange", kind=kind)
    assert (result.error, result.value) == (None, value)


@pytest.mark.parametrize("kind", ["lambda", "object", "loop"])
def test_values_that_can_not(call: Callable[..., JobResult], kind: str) -> None:
    result = call("strange", kind=kind)
    assert result.ending == "exited"
    assert result.error
    assert call("pid").value["calls"] == 1  # the same worker


def test_scalars_of_numpy_become_plain(call: Callable[..., JobResult]) -> None:
    value = call("numpy_scalar").value
    assert value == {"x": 0.5, "y": 3}
    assert [type(item) for item in value.values()] == [float, int]


@pytest.mark.parametrize("isolate", [True, False])
def test_trial_dir(call: Callable[..., JobResult], tmp_path: Path, isolate: bool) -> None:
    folder = tmp_path / "trial"
    (folder / "old").mkdir(parents=True)
    assert call("writes", isolate, trial_dir=str(folder)).value == 1
    assert [path.name for path in folder.iterdir()] == ["made"]


def test_the_working_folder_is_restored(call: Callable[..., JobResult]) -> None:
    call("wanders")
    assert call("where").value == {"cwd": os.getcwd()}


def test_memory_is_the_calls_own(call: Callable[..., JobResult]) -> None:
    large, small = call("memory", mb=150), call("memory", mb=1)
    assert large.max_rss_mb is not None
    assert small.max_rss_mb is not None
    assert large.max_rss_mb > 150 > small.max_rss_mb


@pytest.mark.parametrize("isolate", [True, False])
def test_an_exception(call: Callable[..., JobResult], tmp_path: Path, module: str, isolate: bool) -> None:
    line = MODULE[: MODULE.index("raise KeyError")].count("\n") + 1
    assert call("raises", isolate, text="x").error == f"KeyError: 'x' ({module}.py:{line})"
    traceback = (tmp_path / "trial" / "stderr.txt").read_text()
    assert traceback.startswith("Traceback")
    assert "raise KeyError(text)" in traceback


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("target", ["nowhere", "Group.nothing"])
def test_targets_that_are_not_there(call: Callable[..., JobResult], isolate: bool, target: str) -> None:
    assert call(target, isolate).error
    assert call("Group.method", isolate, x=3).value == 3


def test_output_of_children_too(call: Callable[..., JobResult], tmp_path: Path) -> None:
    call("prints", text="grüße")
    assert (tmp_path / "trial" / "stdout.txt").read_text(encoding="utf-8") == "grüße\nchild\n"
    assert (tmp_path / "trial" / "stderr.txt").read_text(encoding="utf-8") == "grüße\n"


def test_the_helper_of_multiprocessing_is_spared(call: Callable[..., JobResult], token: str) -> None:
    first = call("shared").value
    assert call("shared").value == first
    assert len(marked(token)) == 2


def test_arguments_that_can_not_be_sent(call: Callable[..., JobResult]) -> None:
    assert "can't be sent" in (call("pid", x=lambda: 1).error or "")


def test_a_bad_environment_variable(runner: LocalRunner, module: str, tmp_path: Path) -> None:
    job = CallJob("1", str(tmp_path / "t"), f"{module}:pid", {}, (str(tmp_path),), env={"A": "x\0y"})
    assert "ValueError" in (runner.run(job, lambda *_: None).error or "")


def test_workers_of_other_folders_are_others(runner: LocalRunner, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_name.py").write_text(f"def f(): return {ord(name)}")
    for name in "aba":
        job = CallJob("1", str(tmp_path / "t"), "same_name:f", {}, (str(tmp_path / name),))
        assert runner.run(job, lambda *_: None).value == ord(name)


def test_in_process(call: Callable[..., JobResult], tmp_path: Path, module: str) -> None:
    result = call("pid", isolate=False)
    assert result.value["pid"] == os.getpid()
    assert (result.ending, result.exit_code, result.error, result.max_rss_mb) == ("exited", 0, None, None)
    assert result.cpu_s is not None
    assert not (tmp_path / "trial").exists()
    assert call("leave", isolate=False, code=3).error.startswith("SystemExit: 3")  # type: ignore[union-attr]
    with pytest.raises(KeyboardInterrupt):
        call("ctrl_c", isolate=False)
    sys.modules.pop(module, None)


def test_in_process_after_stop(call: Callable[..., JobResult], runner: LocalRunner) -> None:
    runner.stop()
    assert call("pid", isolate=False).ending == "interrupted"


def test_children_without_a_mark_in_sessions_of_their_own_are_ended(
    runner: LocalRunner, tmp_path: Path, wait: Callable[..., None]
) -> None:
    (tmp_path / "hides.py").write_text(
        "import subprocess\n"
        "def f():\n"
        "    return {'pid': subprocess.Popen(['sleep', '1000'], start_new_session=True, env={}).pid}\n"
    )
    result = runner.run(CallJob("1", str(tmp_path / "t"), "hides:f", {}, (str(tmp_path),)), lambda *_: None)
    assert result.error is None
    wait(lambda: process_start_time(result.value["pid"]) is None)
