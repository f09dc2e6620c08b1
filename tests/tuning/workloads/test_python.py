from __future__ import annotations

import math
import timeit
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import Problem
from tunegym.tuning.model.scenario import Experiment, MetricSpec, PrunerSpec
from tunegym.tuning.model.space import Choice, EnvParams, Space
from tunegym.tuning.model.trial import JobResult
from tunegym.tuning.ports import MetricError, Workload
from tunegym.tuning.workloads.python import PythonWorkload

SOURCE = """
def run(a, b=2): ...
def nested(a, server, num_nodes=1): ...
def given(a, step, trial_dir, scenario_dir): ...
def anything(**kwargs): ...
def reports(a, report): ...
class C:
    def method(self, a): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "py_bench.py").write_text(SOURCE)
    return tmp_path


def experiment(target: Any = "py_bench:run", knobs: Any = None, fixed: Any = None, **more: Any) -> Experiment:
    more.setdefault("agent_metrics", ("rate",))
    knobs = {"a": Choice((1, 2))} if knobs is None else knobs
    return Experiment(
        "e", "python", {"callable": target}, Space(knobs, fixed or {}), EnvParams({}), "grid_search", None, **more
    )


class TestPlan:
    def plan(self, folder: Path, function: str, parameters: dict[str, Any], **more: Any) -> Any:
        spec = experiment(f"py_bench:{function}", fixed={k: v for k, v in parameters.items() if k != "a"}, **more)
        workload: Workload = PythonWorkload(spec, folder)
        return workload.plan(17, 2, parameters, "/t/17")

    def test_arguments(self, folder: Path) -> None:
        job = self.plan(folder, "run", {"a": 1, "b": 3}, timeout_s=9.0, repeats=2)
        assert (job.name, job.target, dict(job.arguments)) == ("17.2", "py_bench:run", {"a": 1, "b": 3})
        assert (job.paths, job.isolate, job.timeout_s, job.env) == ((str(folder),), True, 9.0, {})

    def test_nested_and_environment(self, folder: Path) -> None:
        parameters = {"a": 1, "server.threads": 4, "server.io.depth": 2, "extra_env_vars.X": True, "num_nodes": 2}
        job = self.plan(folder, "nested", parameters, isolate=False)
        assert job.arguments == {"a": 1, "server": {"threads": 4, "io": {"depth": 2}}, "num_nodes": 2}
        assert (job.env, job.isolate) == ({"X": "true"}, False)

    def test_report_only_if_taken(self, folder: Path) -> None:
        """One that takes anything is given it where a pruner wants to hear of it."""
        pruned = PrunerSpec("median")
        assert self.plan(folder, "reports", {"a": 1}).reports
        assert self.plan(folder, "reports", {"a": 1}).arguments == {"a": 1}
        assert not self.plan(folder, "run", {"a": 1}).reports
        assert not self.plan(folder, "anything", {"a": 1}).reports
        assert self.plan(folder, "anything", {"a": 1}, pruner=pruned).reports

    def test_num_nodes_only_if_taken(self, folder: Path) -> None:
        assert self.plan(folder, "run", {"a": 1, "num_nodes": 2}).arguments == {"a": 1}
        assert self.plan(folder, "anything", {"a": 1, "num_nodes": 2}).arguments == {"a": 1, "num_nodes": 2}

    def test_given(self, folder: Path) -> None:
        job = self.plan(folder, "given", {"a": 1})
        assert job.arguments == {"a": 1, "step": 17, "trial_dir": "/t/17", "scenario_dir": str(folder)}


class TestRead:
    def read(self, folder: Path, value: Any, metrics: tuple[str, ...] = ("rate",), **result: Any) -> Any:
        workload = PythonWorkload(experiment(agent_metrics=metrics), folder)
        job = workload.plan(1, 1, {"a": 1}, "/t")
        return workload.read(job, JobResult("exited", 0, value=value, **{"duration_s": 1.5, **result}))

    def test_mapping(self, folder: Path) -> None:
        found = self.read(folder, {"rate": 3, "extra": 0.5})
        assert found == {"rate": 3.0, "extra": 0.5, "duration_s": 1.5}
        assert type(found["rate"]) is float

    @pytest.mark.parametrize("value", [2, 2.0, Fraction(2)])
    def test_single_number(self, folder: Path, value: Any) -> None:
        assert self.read(folder, value) == {"rate": 2.0, "duration_s": 1.5}

    def test_numpy(self, folder: Path) -> None:
        numpy = pytest.importorskip("numpy")
        for value in (numpy.float32(2), numpy.int64(2), numpy.array(2.0), numpy.array([2.0])):
            found = self.read(folder, {"rate": value})["rate"]
            assert (found, type(found)) == (2.0, float)
        for value in (numpy.bool_(True), numpy.zeros(3), numpy.float64("nan")):
            with pytest.raises(MetricError):
                self.read(folder, {"rate": value})

    def test_builtins_are_a_fallback(self, folder: Path) -> None:
        assert self.read(folder, {"rate": 1.0, "duration_s": 9.0}, cpu_s=0.5) == {
            "rate": 1.0,
            "duration_s": 9.0,
            "cpu_s": 0.5,
        }
        assert self.read(folder, {"x": 1.0}, metrics=("duration_s",))["duration_s"] == 1.5

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ({"rat": 1.0}, "metric rate: py_bench:run did not return it (there is: rat, duration_s)"),
            ({"rate": True}, "metric rate: true is not a number"),
            ({"rate": math.nan}, "metric rate: is NaN"),
            ({"rate": -math.inf}, "metric rate: is infinite"),
            ({"rate": 10**400}, "metric rate: is infinite"),
            ({"rate": "3"}, "metric rate: '3' is not a number"),
            ({"rate": None}, "metric rate: null is not a number"),
            ({"rate": [1]}, "metric rate: [1] is not a number"),
            ({1: 1.0, "rate": 1.0}, "the name of a metric must be a string, not 1"),
            (None, "py_bench:run returned None instead of a mapping of metric names to numbers"),
            (True, "metric rate: true is not a number"),
            (object, "metric rate: <class 'object'> is not a number"),
        ],
    )
    def test_reasons(self, folder: Path, value: Any, reason: str) -> None:
        with pytest.raises(MetricError) as caught:
            self.read(folder, value)
        assert str(caught.value) == reason

    def test_one_number_for_two_metrics(self, folder: Path) -> None:
        with pytest.raises(
            MetricError, match=r"returned a number instead of a mapping with the agent_metrics \(a, b\)"
        ):
            self.read(folder, 3, metrics=("a", "b"))

    def test_one_number_beside_built_in_metrics(self, folder: Path) -> None:
        """What every call has is not the callable's to give."""
        assert self.read(folder, 3, metrics=("a", "duration_s")) == {"a": 3.0, "duration_s": 1.5}

    def test_a_job_that_failed(self, folder: Path) -> None:
        with pytest.raises(MetricError, match="ValueError: x"):
            self.read(folder, {"rate": 1.0}, error="ValueError: x")

    def test_is_quick(self, folder: Path) -> None:
        workload = PythonWorkload(experiment(isolate=False), folder)
        result = JobResult("exited", 0, value={"rate": 1.0})

        def once() -> None:
            workload.read(workload.plan(1, 1, {"a": 1}, "/t/1"), result)

        assert min(timeit.repeat(once, number=1000, repeat=5)) / 1000 < 30e-6


class TestCheck:
    def check(self, folder: Path, *arguments: Any, **more: Any) -> list[Problem]:
        return PythonWorkload.check(experiment(*arguments, **more), folder)

    def only(self, folder: Path, *arguments: Any, **more: Any) -> Problem:
        problems = self.check(folder, *arguments, **more)
        assert len(problems) == 1, problems
        return problems[0]

    def test_good(self, folder: Path) -> None:
        assert self.check(folder) == []
        assert self.check(folder, "py_bench:nested", fixed={"server.threads": 3}) == []
        assert self.check(folder, "py_bench:given", fixed={"extra_env_vars.X": 3, "num_nodes": 1}) == []
        assert self.check(folder, "py_bench:anything", fixed={"z": 3}) == []

    @pytest.mark.parametrize(
        ("target", "hint"),
        [
            ("py_bench", None),
            ("py_bemch:run", "did you mean 'py_bench'?"),
            ("py_bench:rum", "did you mean 'run'?"),
            (3, None),
        ],
    )
    def test_bad_references(self, folder: Path, target: Any, hint: str | None) -> None:
        problem = self.only(folder, target)
        assert problem.where == "cmd_args.callable"
        assert hint is None or problem.hint == hint

    def test_argument_not_taken(self, folder: Path) -> None:
        (folder / "other.py").write_text("def run(a, buffer=1): ...")
        problem = self.only(folder, "other:run", fixed={"bufer": 3})
        assert problem.where == "cmd_args.bufer"
        assert problem.what == "other:run takes no argument 'bufer'"
        assert (problem.allowed, problem.hint) == ("a, buffer", "did you mean 'buffer'?")

    def test_argument_not_given(self, folder: Path) -> None:
        problem = self.only(folder, "py_bench:nested")
        assert problem.what == "py_bench:nested needs an argument 'server' that no parameter gives"
        assert self.only(folder, "py_bench:C.method").hint == "name a function or a static method"

    def test_metrics_and_reserved(self, folder: Path) -> None:
        assert self.only(folder, metrics=(MetricSpec("rate", "regex", "x"),)).where == "metrics"
        assert self.check(folder, "py_bench:given", fixed={"step": 1})[0].where == "cmd_args.step"

    def test_tuned_num_nodes_must_be_taken(self, folder: Path) -> None:
        problem = self.only(folder, knobs={"a": Choice((1, 2)), "num_nodes": Choice((1, 2))})
        assert problem.where == "num_nodes"
