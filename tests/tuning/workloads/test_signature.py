from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.tuning.workloads import signature
from tunegym.tuning.workloads.signature import describe

pytestmark = pytest.mark.slow  # modules are looked at in processes of their own


def module(tmp_path: Path, text: str, name: str = "sig_bench") -> tuple[str, ...]:
    (tmp_path / f"{name}.py").write_text(text)
    return (str(tmp_path),)


def test_a_function_is_not_imported_here(tmp_path: Path) -> None:
    paths = module(tmp_path, "def run(a, b=1, *rest, c, d=2, **more): ...")
    found = describe("sig_bench:run", paths)
    assert found.parameters == ("a", "b", "c", "d")
    assert found.required == ("a", "c")
    assert found.takes_any
    assert found.source_file == str(tmp_path / "sig_bench.py")
    assert "sig_bench" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "def run(a, b=1): ...",
        "import functools\n@functools.lru_cache\ndef run(a, b=1): ...",
        "import functools\ndef base(z, a, b=1): ...\nrun = functools.partial(base, 1)",
        "if True:\n    def run(a, b=1): ...\nelse:\n    def run(c): ...",
        "def run(c): ...\ndef run(a, b=1): ...",
        "class run:\n    def __init__(self, a, b=1): ...",
        "print('noise on stdout')\nclass C:\n    def __call__(self, a, b=1): ...\nrun = C()",
    ],
)
def test_anything_else_is_imported_elsewhere(tmp_path: Path, text: str) -> None:
    found = describe("sig_bench:run", module(tmp_path, text))
    assert found.parameters == ("a", "b")
    assert found.required == ("a",)
    assert not found.takes_any
    assert "sig_bench" not in sys.modules


def test_methods_and_installed_modules(tmp_path: Path) -> None:
    paths = module(tmp_path, "class C:\n    @staticmethod\n    def run(a): ...")
    assert describe("sig_bench:C.run", paths).parameters == ("a",)
    assert describe("textwrap:indent").parameters == ("text", "prefix", "predicate")


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("sig_bench", "", "is a bare name"),
        ("sig bench:x", "", "not of the form"),
        ("sig_bemch:run", "", r"(?s)no module 'sig_bemch'.*did you mean 'sig_bench'"),
        ("sig_bench:rum", "def run(): ...", r"(?s)sig_bench.py has no 'rum'.*did you mean 'run'"),
        ("sig_bench:run", "def run(:", "sig_bench.py has a syntax error"),
        ("sig_bench:run", "\nraise ValueError('x')", r"sig_bench.py raised ValueError: x \(line 2\)"),
        ("sig_bench:run", "run = 3", "sig_bench:run is not callable: it is 3"),
        ("sig_bench:run", "def run(a, /, b): ...", "takes a by position only"),
        ("sig_bench:run", "import os\nos._exit(5)", r"ended Python \(exit code 5\)"),
        ("sig_bench:run", "import os\nos.abort()", r"ended Python \(exit code -6\)"),
    ],
)
def test_errors(tmp_path: Path, target: str, text: str, message: str) -> None:
    with pytest.raises(UnresolvedReferenceError, match=message):
        describe(target, module(tmp_path, text))


def test_an_import_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "IMPORT_TIMEOUT_S", 1.0)
    paths = module(tmp_path, "import subprocess, time\nsubprocess.Popen(['sleep', '30'])\ntime.sleep(30)\nrun = 1")
    begin = time.monotonic()
    with pytest.raises(UnresolvedReferenceError, match="took longer than 1 s"):
        describe("sig_bench:run", paths)
    assert time.monotonic() - begin < 10
