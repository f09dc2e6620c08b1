from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import Problem
from tunegym.tuning.model.scenario import INJECTED, Experiment, LiveSpec
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Space
from tunegym.tuning.workloads.live import LiveWorkload, declared_arguments

SOURCE = """
import live_beside

class Server:
    def __init__(self, size, speed=1.0): ...
    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...
    def close(self): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "live_bench.py").write_text(SOURCE)
    (tmp_path / "live_beside.py").write_text("limit = 3\n")
    return tmp_path


def experiment(env_class: str = "live_bench:Server", drawn: tuple[str, ...] = (), **more: Any) -> Experiment:
    arguments = more.pop("arguments", {"size": 3})
    params = {name: EnvParam(Choice((1, 2))) for name in drawn}
    live = LiveSpec(env_class, arguments, **more)
    space = Space({}, arguments)
    return Experiment("e", "live", {"env_class": env_class}, space, EnvParams(params), "ppo", None, (), live=live)


def checked(folder: Path, *arguments: Any, **more: Any) -> list[Problem]:
    return LiveWorkload.check(experiment(*arguments, **more), folder)


class TestCheck:
    def test_nothing_is_wrong(self, folder: Path) -> None:
        assert checked(folder) == []

    def test_arguments(self, folder: Path) -> None:
        unknown, missing = checked(folder, arguments={"siez": {"a": 1}})
        assert (unknown.where, unknown.found) == ("cmd_args.siez", "{a = 1}")
        assert unknown.allowed == "size, speed"
        assert (missing.where, missing.found) == ("cmd_args.size", None)

    def test_env_params(self, folder: Path) -> None:
        (problem,) = checked(folder, drawn=("load",))
        assert problem.where == "env_params"
        assert "apply_env_params" in problem.what

    @pytest.mark.parametrize(
        "env_class", ["", "Server", "a.b", "a b:c", ":", "a:", ":b", "a:b:c", "live_bench:Sever", "x:y"]
    )
    def test_no_such_class(self, env_class: str, folder: Path) -> None:
        (problem,) = checked(folder, env_class)
        assert problem.where == "cmd_args.env_class"
        assert problem.hint

    @pytest.mark.parametrize("env_class", ["", "there:Server"])
    def test_elsewhere_nothing_is_imported(self, env_class: str, folder: Path) -> None:
        assert checked(folder, env_class, server="tcp://127.0.0.1:7000", drawn=("load",)) == []

    def test_given_in_python(self, folder: Path) -> None:
        assert checked(folder, INJECTED, drawn=("load",)) == []


class TestFingerprint:
    def parts(self, folder: Path, *arguments: Any, **more: Any) -> dict[str, str]:
        return LiveWorkload(experiment(*arguments, **more), folder).fingerprint_parts()

    def test_parts(self, folder: Path) -> None:
        assert list(self.parts(folder)) == [
            "env_class",
            "arguments",
            "env_params",
            "file live_bench.py",
            "file live_beside.py",
        ]

    def test_where_it_lives_decides_nothing(self, folder: Path) -> None:
        spec = experiment()
        assert spec.live is not None
        moved = replace(spec, live=replace(spec.live, server="process", step_timeout_s=2.0, restarts=1))
        assert LiveWorkload(spec, folder).fingerprint() == LiveWorkload(moved, folder).fingerprint()

    @pytest.mark.parametrize("change", ["arguments", "env_params", "file live_beside.py"])
    def test_what_changes_it(self, change: str, folder: Path) -> None:
        before = self.parts(folder)
        if change.startswith("file"):
            (folder / "live_beside.py").write_text("limit = 4\n")
            after = self.parts(folder)
        elif change == "arguments":
            after = self.parts(folder, arguments={"size": 4})
        else:
            after = self.parts(folder, drawn=("load",))
        assert {name for name in after if before[name] != after[name]} == {change}

    def test_a_file_that_an_argument_names(self, folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"1")
        assert "file weights.bin" in self.parts(folder, arguments={"size": "weights.bin"})

    @pytest.mark.parametrize(
        ("env_class", "server"), [(INJECTED, "in_process"), ("", "tcp://a:1"), ("x:Y", "tcp://a:1")]
    )
    def test_what_is_not_here_has_no_files(self, env_class: str, server: str, folder: Path) -> None:
        assert list(self.parts(folder, env_class, server=server)) == ["env_class", "arguments", "env_params"]


def test_declared_arguments(folder: Path) -> None:
    assert declared_arguments("live_bench:Server", folder) == {"size", "speed"}
    assert declared_arguments("live_bench:Missing", folder) == frozenset()
    assert declared_arguments("no reference", folder) == frozenset()
    assert declared_arguments(3, folder) == frozenset()
