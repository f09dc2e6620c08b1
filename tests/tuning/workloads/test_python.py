"""The python workload. Messages of ``check`` are in tests/config/bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tuning.workloads.build import experiment

from tunegym.tuning.model.scenario import PrunerSpec
from tunegym.tuning.model.trial import JobResult
from tunegym.tuning.ports import MetricError, Workload
from tunegym.tuning.workloads.python import PythonWorkload

SOURCE = """
def run(a, b=2): ...
def nested(a, server, num_nodes=1): ...
def given(a, step, trial_dir, scenario_dir): ...
def anything(**kwargs): ...
def reports(a, report): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "py_bench.py").write_text(SOURCE)
    return tmp_path


def build(target: Any = "py_bench:run", **more: Any) -> Any:
    return experiment("python", {"callable": target}, **more)


def plan(folder: Path, function: str, parameters: dict[str, Any], **more: Any) -> Any:
    spec = build(f"py_bench:{function}", fixed={k: v for k, v in parameters.items() if k != "a"}, **more)
    workload: Workload = PythonWorkload(spec, folder)
    return workload.plan(17, 2, parameters, "/t/17")


def test_plan(folder: Path) -> None:
    job = plan(folder, "run", {"a": 1, "b": 3}, timeout_s=9.0, repeats=2)
    assert (job.name, job.target, dict(job.arguments)) == ("17.2", "py_bench:run", {"a": 1, "b": 3})
    assert (job.paths, job.isolate, job.timeout_s, job.env) == ((str(folder),), True, 9.0, {})
    parameters = {"a": 1, "server.threads": 4, "server.io.depth": 2, "extra_env_vars.X": True, "num_nodes": 2}
    job = plan(folder, "nested", parameters, isolate=False)
    assert job.arguments == {"a": 1, "server": {"threads": 4, "io": {"depth": 2}}, "num_nodes": 2}
    assert (job.env, job.isolate) == ({"X": "true"}, False)


def test_arguments_are_given_only_if_taken(folder: Path) -> None:
    given = {"a": 1, "step": 17, "trial_dir": "/t/17", "scenario_dir": str(folder)}
    assert plan(folder, "given", {"a": 1}).arguments == given
    assert plan(folder, "run", {"a": 1, "num_nodes": 2}).arguments == {"a": 1}
    assert plan(folder, "anything", {"a": 1, "num_nodes": 2}).arguments == {"a": 1, "num_nodes": 2}
    assert plan(folder, "reports", {"a": 1}).reports
    assert plan(folder, "reports", {"a": 1}).arguments == {"a": 1}
    assert not plan(folder, "run", {"a": 1}).reports
    assert not plan(folder, "anything", {"a": 1}).reports
    assert plan(folder, "anything", {"a": 1}, pruner=PrunerSpec("median")).reports


def read(folder: Path, value: Any, metrics: tuple[str, ...] = ("rate",), **result: Any) -> Any:
    workload = PythonWorkload(build(agent_metrics=metrics), folder)
    job = workload.plan(1, 1, {"a": 1}, "/t")
    return workload.read(job, JobResult("exited", 0, value=value, **{"duration_s": 1.5, **result}))


@pytest.mark.parametrize("rate", [2, 2.0])
def test_a_number_or_numbers_by_name(folder: Path, rate: float) -> None:
    assert read(folder, rate) == {"rate": 2.0, "duration_s": 1.5}
    found = read(folder, {"rate": rate, "extra": 0.5})
    assert found == {"rate": 2.0, "extra": 0.5, "duration_s": 1.5}
    assert type(found["rate"]) is float


def test_built_in_metrics_are_a_fallback(folder: Path) -> None:
    returned = {"rate": 1.0, "duration_s": 9.0}
    assert read(folder, returned, cpu_s=0.5) == {**returned, "cpu_s": 0.5}
    assert read(folder, {"x": 1.0}, metrics=("duration_s",))["duration_s"] == 1.5
    assert read(folder, 3, metrics=("a", "duration_s")) == {"a": 3.0, "duration_s": 1.5}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"rate": True}, "metric rate: true is not a number"),
        ({"rate": 10**400}, "metric rate: is infinite"),
        ({"rate": "3"}, "metric rate: '3' is not a number"),
        (None, "py_bench:run returned None instead of a mapping of metric names to numbers"),
        (True, "metric rate: true is not a number"),
    ],
)
def test_values_that_are_no_metrics(folder: Path, value: Any, reason: str) -> None:
    with pytest.raises(MetricError) as caught:
        read(folder, value)
    assert str(caught.value) == reason


def test_other_failures_of_a_call(folder: Path) -> None:
    with pytest.raises(MetricError, match=r"a number instead of a mapping with the agent_metrics \(a, b\)"):
        read(folder, 3, metrics=("a", "b"))
    with pytest.raises(MetricError, match="ValueError: x"):
        read(folder, {"rate": 1.0}, error="ValueError: x")
