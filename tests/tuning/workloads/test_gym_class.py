"""What is a server's class, and what does it take?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.tuning.workloads import signature
from tunegym.tuning.workloads.signature import GymClass, argument_problems, describe_class

pytestmark = pytest.mark.slow  # classes are looked at in processes of their own

MODULE = """
import abc, os
from typing import Protocol
from tunegym.tuning.ports import GymServer

print("importing")
VALUE = 3

def make():
    return Good()

class Base:
    def __init__(self, size, *, rate=1.0):
        pass
    def reset(self, *, seed=None, options=None):
        ...
    def step(self, action):
        ...
    def close(self):
        ...

class Good(Base):
    pass

class Applies(Base):
    def __init__(self, **anything):
        pass
    def apply_env_params(self, params):
        ...

class Plain:
    reset = Base.reset
    step = Base.step
    close = Base.close

class Derived(GymServer):
    reset = Base.reset
    step = Base.step
    close = Base.close

class Forgot(GymServer):
    reset = Base.reset
    step = Base.step

class NoStep:
    reset = Base.reset
    close = Base.close
    def stepp(self, action): ...

class Nothing:
    step = 3

class OddReset(Base):
    def reset(self): ...

class OddStep(Base):
    def step(self): ...

class Positional(Base):
    def __init__(self, size, /): ...

class Abstract(Base, abc.ABC):
    @abc.abstractmethod
    def more(self): ...

class Outer:
    class Inner(Base):
        pass
"""


@pytest.fixture
def described(tmp_path: Path) -> Callable[[str], GymClass]:
    (tmp_path / "live_module.py").write_text(MODULE)
    return lambda name: describe_class(f"live_module:{name}", (str(tmp_path),))


def test_what_a_class_takes(described: Callable[[str], GymClass], tmp_path: Path) -> None:
    found = described("Good")
    file = str(tmp_path / "live_module.py")
    assert found == GymClass("live_module:Good", ("size", "rate"), ("size",), source_file=file)
    found = described("Applies")
    assert found == GymClass("live_module:Applies", takes_any=True, applies_env_params=True, source_file=file)
    for name in ("Plain", "Derived"):
        assert described(name) == GymClass(f"live_module:{name}", source_file=file)
    assert described("Outer.Inner").parameters == ("size", "rate")
    assert "live_module" not in sys.modules


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("make", "live_module:make is no class: it is a function", "class"),
        ("VALUE", "live_module:VALUE is no class: it is a int", "class"),
        ("NoStep", r"NoStep has no step\(\)", "did you mean step -> stepp"),
        ("Nothing", r"Nothing has no reset\(\), step\(\), close\(\)", "a server has reset"),
        ("Forgot", r"Forgot has no close\(\)", "a server has reset"),
        ("OddReset", r"OddReset.reset\(\) can't be called as tunegym does: .*seed", r"reset(seed, options)"),
        ("OddStep", r"OddStep.step\(\) can't be called as tunegym does: too many", r"step(action)"),
        ("Positional", "takes size by position only", "remove the /"),
        ("Abstract", "Abstract is abstract: more", "define"),
    ],
)
def test_what_is_no_server(described: Callable[[str], GymClass], name: str, what: str, hint: str) -> None:
    with pytest.raises(UnresolvedReferenceError, match=what) as error:
        described(name)
    assert hint in (error.value.hint or "")


@pytest.mark.parametrize(
    ("reference", "what", "hint"),
    [
        ("Good", "'Good' is a bare name: the module is missing", "package.module:Class"),
        ("live module:Good", "not of the form module:Class", "package.module:Class"),
        ("", "not of the form module:Class", "package.module:Class"),
        ("live_modul:Good", "there is no module 'live_modul'", "did you mean 'live_module'"),
        ("live_module:Goood", "live_module.py has no 'Goood'", "did you mean 'Good'"),
    ],
)
def test_what_is_not_there(
    described: Callable[[str], GymClass], tmp_path: Path, reference: str, what: str, hint: str
) -> None:
    with pytest.raises(UnresolvedReferenceError, match=what) as error:
        describe_class(reference, (str(tmp_path),))
    assert hint in (error.value.hint or "")


def test_only_classes_are_suggested(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text("import sys as np\nclass Server: ...\ndef nope_(): ...\n")
    with pytest.raises(UnresolvedReferenceError) as caught:
        describe_class("few:Nope", (str(tmp_path),))
    assert (caught.value.message, caught.value.hint) == ("few.py has no 'Nope'", "it has: Server")
    with pytest.raises(UnresolvedReferenceError) as caught:
        describe_class("few:Sever", (str(tmp_path),))
    assert caught.value.hint == "did you mean 'Server'?"


def test_modules_that_can_not_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_live.py").write_text("class A:\n  def f(self:\n")
    with pytest.raises(UnresolvedReferenceError, match="syntax error"):
        describe_class("broken_live:A", (str(tmp_path),))
    (tmp_path / "leaving_live.py").write_text("import os, sys\nsys.stderr.write('bye\\n')\nos._exit(4)\n")
    with pytest.raises(UnresolvedReferenceError, match=r"ended Python \(exit code 4\): bye"):
        describe_class("leaving_live:A", (str(tmp_path),))
    (tmp_path / "slow_live.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setattr(signature, "IMPORT_TIMEOUT_S", 0.5)
    with pytest.raises(UnresolvedReferenceError, match=r"importing slow_live took longer than 0\.5 s"):
        describe_class("slow_live:A", (str(tmp_path),))


def test_a_change_of_the_source_is_seen(tmp_path: Path) -> None:
    methods = "    def reset(self, seed, options): ...\n    def step(self, action): ...\n    def close(self): ...\n"
    file = tmp_path / "changing_live.py"
    file.write_text(f"class A:\n    def __init__(self, a): ...\n{methods}")
    assert describe_class("changing_live:A", (str(tmp_path),)).parameters == ("a",)
    file.write_text(f"class A:\n    def __init__(self, a, bb): ...\n{methods}")
    assert describe_class("changing_live:A", (str(tmp_path),)).parameters == ("a", "bb")


def test_arguments_that_do_not_fit() -> None:
    takes = GymClass("m:Cart", ("length", "mass"), ("mass",))
    assert argument_problems(takes, {"mass": 1}) == []
    unknown, missing = argument_problems(takes, {"lenght": 1})
    assert (unknown.where, unknown.what) == ("lenght", "Cart() doesn't take this argument")
    assert unknown.allowed == "length, mass"
    assert unknown.hint == "did you mean 'length'?"
    assert (missing.where, missing.what) == ("mass", "Cart() needs this argument, and it is missing")
    (odd,) = argument_problems(GymClass("m:Cart"), {"x": 1})
    assert (odd.allowed, odd.hint) == ("nothing", "remove it")
    assert argument_problems(GymClass("m:Cart", takes_any=True), {"x": 1}) == []
