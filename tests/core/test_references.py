from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import callable_by_name, resolve


@pytest.fixture(autouse=True)
def _own_modules() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def folder(tmp_path: Path, name: str, **files: str) -> str:
    root = tmp_path / name
    root.mkdir()
    for file, text in files.items():
        target = root / (file.replace("_in_", "/") + ".py")
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
    return str(root)


def test_two_scenarios_do_not_see_each_other(tmp_path: Path) -> None:
    one = folder(tmp_path, "one", bench="import shared\ndef f(): return shared.X", shared="X = 1")
    two = folder(tmp_path, "two", bench="import shared\ndef f(): return shared.X", shared="X = 2")
    first = resolve("bench:f", [one])
    assert (first(), resolve("bench:f", [two])(), resolve("bench:f", [one])(), first()) == (1, 2, 1, 1)


def test_a_module_is_imported_again_only_when_it_changed(tmp_path: Path) -> None:
    paths = [folder(tmp_path, "s", bench="class C: X = 1")]
    first = resolve("bench:C", paths)
    assert resolve("bench:C", paths) is first
    assert sys.path.count(paths[0]) == 1
    assert sys.path[0] == paths[0]
    (tmp_path / "s" / "bench.py").write_text("class C: X = 22")
    assert resolve("bench:C.X", paths) == 22


@pytest.mark.parametrize("init", [{"pack_in___init__": ""}, {}])
def test_submodules_are_forgotten_with_their_package(tmp_path: Path, init: dict[str, str]) -> None:
    one, two = (folder(tmp_path, name, **init, pack_in_inner=f"X = '{name}'") for name in ("one", "two"))
    assert [resolve("pack.inner:X", [path]) for path in (one, two, two, one)] == ["one", "two", "two", "one"]


def test_a_mere_folder_does_not_replace_a_package(tmp_path: Path) -> None:
    real = folder(tmp_path, "real", pack_in___init__="X = 1")
    mere = folder(tmp_path, "mere", pack_in_other="", bench="X = 2")
    (tmp_path / "mere" / "odd.py").mkdir()
    assert resolve("pack:X", [real]) == 1
    loaded = sys.modules["pack"]
    assert resolve("bench:X", [mere]) == 2
    assert sys.modules["pack"] is loaded


def test_an_installed_name_is_refused(tmp_path: Path) -> None:
    paths = [folder(tmp_path, "s", json="X = 1", pytest="X = 1", bench="X = 2")]
    for name in ("json", "pytest"):
        with pytest.raises(UnresolvedReferenceError, match=f"{name}.py has the name of the installed module"):
            resolve(f"{name}:X", paths)
    assert resolve("bench:X", paths) == 2
    assert sys.modules["pytest"] is pytest


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("bench", "'bench' is not of the form module:name"),
        ("bemch:f", r"(?s)there is no module 'bemch'.*did you mean .bench.\?"),
        ("bench.x:f", "there is no module 'bench.x'"),
        ("pack.iner:f", r"(?s)there is no module 'pack.iner'.*did you mean .pack.inner.\?"),
        ("bench:g_unction", r"(?s)bench.py has no 'g_unction'.*did you mean .function.\?"),
        ("bench:function.zzz", "bench.py: function has no 'zzz'"),
        ("raises:f", r"raises.py raised ValueError: no good \(line 3\)"),
        ("raises_inside:f", r"raises.py raised ValueError: no good \(line 3\)"),
        ("needs:f", r"needs.py raised ModuleNotFoundError: No module named 'not_there' \(line 1\)"),
        ("broken:f", r"broken.py has a syntax error: .* \(line 2\)"),
        ("exits:f", r"exits.py raised SystemExit: 3 \(line 2\)"),
    ],
)
def test_errors(tmp_path: Path, reference: str, message: str) -> None:
    paths = [folder(
        tmp_path, "s", bench="def function(): pass", raises="\n\nraise ValueError('no good')",
        raises_inside="import raises", needs="import not_there", broken="\ndef f(:\n",
        exits="import sys\nsys.exit(3)",
        pack_in___init__="", pack_in_inner="",
    )]  # fmt: skip
    with pytest.raises(UnresolvedReferenceError, match=message):
        resolve(reference, paths)


def test_module_that_the_program_imported_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_already.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("mine_already")
    assert resolve("mine_already:f", (str(tmp_path),)) is mine.f
    (tmp_path / "mine_already.py").write_text("def f(): return 22\n")
    assert resolve("mine_already:f", (str(tmp_path),))() == 22


VALUES = MappingProxyType({"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("function", "values", "result"),
    [
        (lambda b, a: (b, a), VALUES, (2, 1)),
        (lambda a: a, VALUES, 1),
        (lambda a, /, b: (a, b), VALUES, (1, 2)),
        (lambda **all_: all_, VALUES, VALUES),
        (lambda a, **rest: (a, rest), VALUES, (1, {"b": 2})),
        (lambda metrics: metrics, VALUES, VALUES),
        (lambda *, metrics: metrics, VALUES, VALUES),
        (lambda metrics, scale=2: (metrics["a"], scale), VALUES, (1, 2)),
        (len, VALUES, 2),
        (lambda a, scale=5: a * scale, VALUES, 5),
        (lambda a, b=7: (a, b), {"a": 1}, (1, 7)),
    ],
)
def test_callable_by_name(function: Any, values: Any, result: Any) -> None:
    assert callable_by_name(function, ["a", "b"])(values) == result


def test_many_threads_ask_at_once(tmp_path: Path) -> None:
    """The slots of a run resolve the same function at the same moment; its module is imported once."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.2)\ndef f():\n    return 1\n")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: resolve("slow_to_import:f", (str(tmp_path),)), range(8)))
    assert len(set(found)) == 1
