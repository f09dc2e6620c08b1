from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.workloads.build import experiment

from tunegym.tuning.model.scenario import INJECTED, LiveSpec
from tunegym.tuning.model.space import Choice, EnvParam
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


def build(env_class: str = "live_bench:Server", drawn: tuple[str, ...] = (), **more: Any) -> Any:
    arguments = more.pop("arguments", {"size": 3})
    params = {name: EnvParam(Choice((1, 2))) for name in drawn}
    live = LiveSpec(env_class, arguments, **more)
    return experiment("live", {"env_class": env_class}, {}, arguments, params, live=live)


def parts(folder: Path, *arguments: Any, **more: Any) -> dict[str, str]:
    return LiveWorkload(build(*arguments, **more), folder).fingerprint_parts()


def test_where_a_server_lives_is_no_part_of_the_fingerprint(folder: Path) -> None:
    spec = build()
    moved = replace(spec, live=replace(spec.live, server="process", step_timeout_s=2.0, restarts=1))
    assert LiveWorkload(spec, folder).fingerprint() == LiveWorkload(moved, folder).fingerprint()


def test_parts_of_the_fingerprint(folder: Path) -> None:
    before = parts(folder)
    settings = ["env_class", "arguments", "env_params"]
    assert list(before) == [*settings, "file live_bench.py", "file live_beside.py"]

    def changed(after: dict[str, str]) -> set[str]:
        return {name for name in after if before[name] != after[name]}

    assert changed(parts(folder, arguments={"size": 4})) == {"arguments"}
    assert changed(parts(folder, drawn=("load",))) == {"env_params"}
    (folder / "live_beside.py").write_text("limit = 4\n")
    assert changed(parts(folder)) == {"file live_beside.py"}
    (folder / "weights.bin").write_bytes(b"1")
    assert "file weights.bin" in parts(folder, arguments={"size": "weights.bin"})
    for env_class, server in (
        (INJECTED, "in_process"),
        ("", "tcp://a:1"),
        ("x:Y", "tcp://a:1"),
        ("tunegym.servers:GymnasiumServer", "in_process"),
    ):
        assert list(parts(folder, env_class, server=server)) == settings


def test_declared_arguments(folder: Path) -> None:
    assert declared_arguments("live_bench:Server", folder) == {"size", "speed"}
    assert declared_arguments("live_bench:Missing", folder) is None
    for other in ("no reference", 3):
        assert declared_arguments(other, folder) == frozenset()
