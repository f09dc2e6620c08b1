"""Signatures of callables and server classes, found by a child process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.tuning.workloads import signature
from tunegym.tuning.workloads.signature import GymClass, argument_problems, describe, describe_class

pytestmark = pytest.mark.slow  # each starts a process

Written = Callable[..., tuple[str, ...]]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a module; returns the paths to find it in."""

    def write(text: str, name: str = "sig_bench") -> tuple[str, ...]:
        (tmp_path / f"{name}.py").write_text(text)
        return (str(tmp_path),)

    return write


@pytest.mark.parametrize(
    "text",
    [
        "def run(a, b=1): ...",
        "import functools\n@functools.lru_cache\ndef run(a, b=1): ...",
        "import functools\ndef base(z, a, b=1): ...\nrun = functools.partial(base, 1)",
        "class run:\n    def __init__(self, a, b=1): ...",
        "print('noise on stdout')\nclass C:\n    def __call__(self, a, b=1): ...\nrun = C()",
    ],
)
def test_callables(written: Written, text: str) -> None:
    found = describe("sig_bench:run", written(text))
    assert (found.parameters, found.required, found.takes_any) == (("a", "b"), ("a",), False)
    assert "sig_bench" not in sys.modules


def test_kinds_of_parameters(written: Written, tmp_path: Path) -> None:
    paths = written("def run(a, b=1, *rest, c, d=2, **more): ...\nclass C:\n    @staticmethod\n    def run(a): ...")
    found = describe("sig_bench:run", paths)
    assert (found.parameters, found.required, found.takes_any) == (("a", "b", "c", "d"), ("a", "c"), True)
    assert found.source_file == str(tmp_path / "sig_bench.py")
    assert describe("sig_bench:C.run", paths).parameters == ("a",)
    assert describe("textwrap:indent").parameters == ("text", "prefix", "predicate")


@pytest.mark.parametrize("ask", [describe, describe_class])
@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("sig_bench", "", "is a bare name"),
        ("sig_bench:Rum", "class Run: ...", r"(?s)sig_bench.py has no 'Rum'.*did you mean .Run."),
        ("sig_bench:run", "\nraise ValueError('x')", r"sig_bench.py raised ValueError: x \(line 2\)"),
        ("sig_bench:run", "import os\nprint('bye', flush=True)\nos._exit(5)", r"ended Python \(exit code 5\): bye"),
        ("sig_bench:run", "import os\nos.abort()", r"ended Python \(exit code -6\)"),
    ],
)
def test_modules_that_can_not_be_used(ask: Any, written: Written, target: str, text: str, message: str) -> None:
    with pytest.raises(UnresolvedReferenceError, match=message):
        ask(target, written(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [("run = 3", "sig_bench:run is not callable: it is 3"), ("def run(a, /, b): ...", "takes a by position only")],
)
def test_no_callable(written: Written, text: str, message: str) -> None:
    with pytest.raises(UnresolvedReferenceError, match=message):
        describe("sig_bench:run", written(text))


def test_an_import_that_hangs_is_ended(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "IMPORT_TIMEOUT_S", 1.0)
    paths = written("import subprocess, time\nsubprocess.Popen(['sleep', '300'])\ntime.sleep(300)\nrun = 1")
    begin = time.monotonic()
    with pytest.raises(UnresolvedReferenceError, match="took longer than 1 s"):
        describe("sig_bench:run", paths)
    assert time.monotonic() - begin < 200


METHODS = (
    "    def reset(self, *, seed=None, options=None): ...\n    def step(self, action): ...\n    def close(self): ...\n"
)
MODULE = f"""
from tunegym.tuning.ports import GymServer

class Good:
    def __init__(self, size, *, rate=1.0): ...
{METHODS}
class Applies(Good):
    def __init__(self, **anything): ...
    def apply_env_params(self, params): ...

class Plain:
{METHODS}
class Derived(GymServer):
{METHODS}
class Outer:
    class Inner(Good): ...
"""


def test_server_classes(written: Written, tmp_path: Path) -> None:
    paths = written(MODULE, "live_module")
    file = str(tmp_path / "live_module.py")
    good = describe_class("live_module:Good", paths)
    assert good == GymClass("live_module:Good", ("size", "rate"), ("size",), source_file=file)
    applies = describe_class("live_module:Applies", paths)
    assert (applies.parameters, applies.takes_any, applies.applies_env_params) == ((), True, True)
    for name in ("Plain", "Derived"):
        assert describe_class(f"live_module:{name}", paths) == GymClass(f"live_module:{name}", source_file=file)
    assert describe_class("live_module:Outer.Inner", paths).parameters == ("size", "rate")
    assert "live_module" not in sys.modules


def test_a_change_of_the_source_is_seen(written: Written) -> None:
    for arguments in (("a",), ("a", "bb")):
        paths = written(f"class A:\n    def __init__(self, {', '.join(arguments)}): ...\n{METHODS}")
        assert describe_class("sig_bench:A", paths).parameters == arguments


def test_arguments_that_do_not_fit() -> None:
    """The others are in tests/config/bad."""
    (odd,) = argument_problems(GymClass("m:Cart"), {"x": 1})
    assert (odd.allowed, odd.hint) == ("nothing", "remove it")
    assert argument_problems(GymClass("m:Cart", takes_any=True), {"x": 1}) == []
