"""The command workload. Messages of ``check`` are in tests/config/bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.workloads.build import experiment

from tunegym.tuning.model.scenario import MetricSpec
from tunegym.tuning.model.trial import JobResult, Stream
from tunegym.tuning.ports import MetricError, Workload
from tunegym.tuning.workloads.command import CommandWorkload

RATE = MetricSpec("rate", "regex", r"rate=(\S+)")


def build(command: Any = "run {a}", **more: Any) -> Any:
    more.setdefault("metrics", (RATE,))
    return experiment("command", {"command": command, **more.pop("args", {})}, **more)


def test_stream_of_a_plan() -> None:
    loss = MetricSpec("loss", "regex", "loss=(.+)", stream=True)
    for file, expected in ((None, "stdout.txt"), ("log.txt", "log.txt")):
        spec = build(metrics=(RATE, replace(loss, file=file)))
        assert CommandWorkload(spec, Path("/s")).plan(1, 1, {"a": 1}, "/t").stream == Stream("loss=(.+)", expected)
    assert CommandWorkload(build(), Path("/s")).plan(1, 1, {"a": 1}, "/t").stream is None


def test_plan() -> None:
    spec = build(
        "{scenario_dir}/run {a} {server.threads} {step}",
        args={"setup": "mkdir {trial_dir}/x", "teardown": "rm {a}"},
        fixed={"server.threads": "x y", "extra_env_vars.MODE": True, "extra_env_vars.LIST": ["a b", 1]},
        timeout_s=3.0,
        repeats=3,
    )
    workload: Workload = CommandWorkload(spec, Path("/my scenario"))
    job: Any = workload.plan(17, 2, spec.parameters({"a": 2}, {}), "/results/000017")
    assert job.command == "'/my scenario'/run 2 'x y' 17"
    assert (job.setup, job.teardown) == ("mkdir /results/000017/x", "rm 2")
    assert job.env == {"MODE": "true", "LIST": "a b 1"}
    assert (job.name, job.folder, job.timeout_s) == ("17.2", "/results/000017", 3.0)


def test_folders_are_absolute() -> None:
    job = CommandWorkload(build("{trial_dir} {scenario_dir} {a}"), Path(".")).plan(1, 1, {"a": 1}, "t")
    assert (job.name, job.folder) == ("1", str(Path("t").absolute()))
    assert job.command == f"{Path('t').absolute()} {Path.cwd()} 1"


def test_read(tmp_path: Path) -> None:
    """The declared metrics and the built-in ones. How a metric is missing or no number is in ``test_extract``."""
    workload = CommandWorkload(build(), tmp_path)
    job = workload.plan(1, 1, {"a": 1}, str(tmp_path))
    (tmp_path / "stdout.txt").write_text("rate=2.5\n")
    found = workload.read(job, JobResult("exited", 0, duration_s=1.5, cpu_s=0.5))
    assert found == {"rate": 2.5, "duration_s": 1.5, "cpu_s": 0.5}
    for printed, code, reason in (("rate=1", 3, "exit code 3"), ("", 0, "metric rate: no match")):
        (tmp_path / "stdout.txt").write_text(printed)
        with pytest.raises(MetricError, match=reason):
            workload.read(job, JobResult("exited", code))
