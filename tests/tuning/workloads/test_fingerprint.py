from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.workloads.build import experiment

from tunegym.tuning.model.scenario import Budget, MetricSpec, PrunerSpec
from tunegym.tuning.model.space import Choice
from tunegym.tuning.workloads import fingerprint
from tunegym.tuning.workloads.command import CommandWorkload
from tunegym.tuning.workloads.python import PythonWorkload

RATE = MetricSpec("rate", "regex", "x")


def command(folder: Path, text: str = "sh {scenario_dir}/run.sh {a}", **more: Any) -> CommandWorkload:
    return CommandWorkload(experiment("command", {"command": text}, **{"metrics": (RATE,), **more}), folder)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text("echo 1")
    (tmp_path / "fast.ini").write_text("x")
    return tmp_path


def test_parts_that_count(folder: Path) -> None:
    base = command(folder)
    streamed = (replace(RATE, stream=True),)
    same = [
        command(folder, knobs={"a": Choice((1, 2, 3))}),
        command(folder, budget=Budget(9), timeout_s=3.0, agent_ends_after=3, repeats=4, cache=False),
        command(folder, metrics=streamed, pruner=PrunerSpec("x")),
    ]
    assert {workload.fingerprint() for workload in same} == {base.fingerprint()}
    different = {
        "command": command(folder, "sh {scenario_dir}/run.sh {a} x"),
        "fixed parameters": command(folder, fixed={"b": 1}),
        "environment variables": command(folder, fixed={"extra_env_vars.X": 1}),
        "metrics": command(folder, metrics=(MetricSpec("rate", "regex", "y"),)),
    }
    for part, workload in different.items():
        assert changed(base.fingerprint_parts(), workload.fingerprint_parts()) == {part}
        assert workload.fingerprint() != base.fingerprint()
    prints = {command(folder, fixed={"b": value}).fingerprint() for value in (1, 1.0, True, "1")}
    assert len(prints) == 4
    assert set(base.fingerprint_parts()) == {*different, "file run.sh"}
    before = base.fingerprint_parts()
    (folder / "run.sh").write_text("echo 2")
    assert changed(before, command(folder).fingerprint_parts()) == {"file run.sh"}


def test_files_are_found(folder: Path) -> None:
    def files(text: str, **more: Any) -> set[str]:
        return {part for part in command(folder, text, **more).fingerprint_parts() if part.startswith("file ")}

    assert files("cat<fast.ini; ./run.sh --c=fast.ini # it's fine") == {"file fast.ini", "file run.sh"}
    assert files('sh "{scenario_dir}/run.sh" \'') == set()
    assert files("sh {scenario_dir}/run.sh 'open") == {"file run.sh"}
    assert files("true {a}", knobs={"a": Choice(("fast.ini", "none.ini"))}) == {"file fast.ini"}
    assert files("true {b}", fixed={"b": ["fast.ini", "x" * 5000, "y" * 300]}) == {"file fast.ini"}
    assert files("cat /proc/cpuinfo /dev/null . ..") == set()
    assert files(f"cat {sys.executable}") == {f"file {os.path.normpath(sys.executable)}"}


def test_large_files_by_size_and_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 10)
    file = folder / "big"
    file.write_bytes(b"x" * 20)
    os.utime(file, (1, 1))
    first = fingerprint.file_digest(file)
    file.write_bytes(b"y" * 20)
    os.utime(file, (1, 1))
    assert fingerprint.file_digest(file) == first
    os.utime(file, (2, 2))
    assert fingerprint.file_digest(file) != first


def test_a_scenario_may_move(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "run.sh").write_text("echo 1")
    assert command(elsewhere).fingerprint() == command(folder).fingerprint()


def test_python_follows_imports_beside_the_scenario(tmp_path: Path) -> None:
    files = {
        "fp_bench.py": "import json, one\nfrom pack import inner\ndef run(a): import late",
        "one.py": "import fp_bench",
        "late.py": "",
        "unrelated.py": "",
        "pack/__init__.py": "",
        "pack/inner.py": "from . import beside\nfrom .deep.er import x",
        "pack/beside.py": "",
        "pack/deep/__init__.py": "",
        "pack/deep/er.py": "x = 1\nfrom .. import upper",
        "pack/upper.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    workload = PythonWorkload(experiment("python", {"callable": "fp_bench:run"}), tmp_path)
    parts = workload.fingerprint_parts()
    assert {part[5:] for part in parts if part.startswith("file ")} == set(files) - {"unrelated.py"}
    (tmp_path / "pack/upper.py").write_text("x = 1")
    assert changed(parts, workload.fingerprint_parts()) == {"file pack/upper.py"}
