from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import Problem
from tunegym.tuning.model.scenario import Experiment, MetricSpec
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Range, Space
from tunegym.tuning.model.trial import JobResult, Stream
from tunegym.tuning.ports import MetricError, Workload
from tunegym.tuning.workloads.command import CommandWorkload

RATE = MetricSpec("rate", "regex", r"rate=(\S+)")


def experiment(
    command: Any = "run {a}", fixed: Any = None, knobs: Any = None, env: Any = None, **more: Any
) -> Experiment:
    args = {"command": command, **more.pop("args", {})}
    knobs = {"a": Choice((1, 2))} if knobs is None else knobs
    more.setdefault("metrics", (RATE,))
    more.setdefault("agent_metrics", ("rate",))
    return Experiment(
        "e", "command", args, Space(knobs, fixed or {}), EnvParams(env or {}), "grid_search", None, **more
    )


def check(*arguments: Any, **more: Any) -> list[Problem]:
    return CommandWorkload.check(experiment(*arguments, **more), Path("/scenario"))


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


class TestPlan:
    def test_stream(self) -> None:
        """Where the streamed metric is read from, and nothing where none is."""
        loss = MetricSpec("loss", "regex", "loss=(.+)", stream=True)
        for file, expected in ((None, "stdout.txt"), ("log.txt", "log.txt")):
            spec = experiment(metrics=(RATE, replace(loss, file=file)))
            job = CommandWorkload(spec, Path("/s")).plan(1, 1, {"a": 1}, "/t")
            assert job.stream == Stream("loss=(.+)", expected)
            assert job.reports
        job = CommandWorkload(experiment(), Path("/s")).plan(1, 1, {"a": 1}, "/t")
        assert (job.stream, job.reports) == (None, False)

    def test_placeholders(self) -> None:
        spec = experiment(
            "{scenario_dir}/run {a} {server.threads} {step}",
            args={"setup": "mkdir {trial_dir}/x", "teardown": "rm {a}"},
            fixed={"server.threads": "x y", "extra_env_vars.MODE": True, "extra_env_vars.LIST": ["a b", 1]},
            timeout_s=3.0,
        )
        workload: Workload = CommandWorkload(spec, Path("/my scenario"))
        job = workload.plan(17, 1, spec.parameters({"a": 2}, {}), "/results/000017")
        assert job.command == "/my scenario/run".replace("/my scenario", "'/my scenario'") + " 2 'x y' 17"  # type: ignore[union-attr]
        assert (job.setup, job.teardown) == ("mkdir /results/000017/x", "rm 2")  # type: ignore[union-attr]
        assert job.env == {"MODE": "true", "LIST": "a b 1"}
        assert (job.name, job.folder, job.timeout_s) == ("17", "/results/000017", 3.0)

    def test_repeats_have_names(self) -> None:
        workload = CommandWorkload(experiment(repeats=3), Path("."))
        assert workload.plan(17, 2, {"a": 1}, "/t").name == "17.2"

    def test_folders_are_absolute(self) -> None:
        job = CommandWorkload(experiment("{trial_dir} {scenario_dir} {a}"), Path(".")).plan(1, 1, {"a": 1}, "t")
        assert job.folder == str(Path("t").absolute())
        assert job.command == f"{Path('t').absolute()} {Path.cwd()} 1"


class TestRead:
    def read(self, tmp_path: Path, printed: str, result: JobResult, **more: Any) -> Any:
        (tmp_path / "stdout.txt").write_text(printed)
        workload = CommandWorkload(experiment(**more), tmp_path)
        return workload.read(workload.plan(1, 1, {"a": 1}, str(tmp_path)), result)

    def test_metrics_and_builtins(self, tmp_path: Path) -> None:
        metrics = self.read(tmp_path, "rate=2.5\n", JobResult("exited", 0, duration_s=1.5, cpu_s=0.5))
        assert metrics == {"rate": 2.5, "duration_s": 1.5, "cpu_s": 0.5}

    @pytest.mark.parametrize(
        ("printed", "result", "reason"),
        [
            ("rate=1", JobResult("exited", 3, error="exit code 3"), "exit code 3"),
            ("rate=1", JobResult("exited", 3), "exit code 3"),
            ("", JobResult("exited", 0), r"metric rate: no match for 'rate=(\S+)' in stdout.txt"),
            ("rate=nan", JobResult("exited", 0), "metric rate: is NaN"),
            ("rate=1", JobResult("exited", 0, cpu_s=math.inf), "metric cpu_s: is not finite"),
        ],
    )
    def test_reasons(self, tmp_path: Path, printed: str, result: JobResult, reason: str) -> None:
        with pytest.raises(MetricError) as caught:
            self.read(tmp_path, printed, result)
        assert str(caught.value) == reason


class TestCheck:
    def test_good(self) -> None:
        assert check() == []
        assert check("run {a} ${{HOME}}", args={"setup": "x {b}", "teardown": "y {step}"}, fixed={"b": 1}) == []
        assert check("true {x}", knobs={}, env={"x": EnvParam(Range(0, 1))}) == []
        assert check("true", knobs={"extra_env_vars.X": Choice((1, 2))}) == []
        assert check("true", knobs={}, fixed={"num_nodes": 2}) == []
        assert check(agent_metrics=("rate", "max_rss_mb")) == []

    def test_placeholder_without_parameter(self) -> None:
        problem = only(check("run {a} {bufer}", fixed={"extra_env_vars.buffer": 3}))
        assert problem.where == "cmd_args.command"
        assert problem.what == "the placeholder {bufer} has no parameter"
        assert problem.allowed == "extra_env_vars.buffer, a, trial_dir, scenario_dir, step"
        assert problem.hint == "add bufer to cmd_args, or for a literal brace write {{bufer}}"
        problem = check("run {a} {bufer}", fixed={"buffer": 3})[0]
        assert problem.hint == "did you mean 'buffer'? For a literal brace write {{bufer}}"

    def test_in_setup(self) -> None:
        assert only(check(args={"setup": "{zz}"})).where == "cmd_args.setup"
        assert only(check(args={"teardown": "{"})).where == "cmd_args.teardown"

    def test_unused_parameter(self) -> None:
        problem = only(check(fixed={"b": 1}, constraints=("a < b",)))
        assert problem.where == "cmd_args.b"
        assert problem.what == "no placeholder or environment variable uses the parameter 'b'"
        assert only(check(knobs={"a": Choice((1, 2)), "num_nodes": Choice((1, 2))})).where == "num_nodes"

    @pytest.mark.parametrize("name", ["trial_dir", "scenario_dir", "step"])
    def test_reserved(self, name: str) -> None:
        problem = only(check(f"run {{a}} {{{name}}}", fixed={name: 1}))
        assert (problem.where, problem.hint) == (f"cmd_args.{name}", "rename the parameter")

    @pytest.mark.parametrize("command", [3, "", "  ", ["a"], "a\0b"])
    def test_no_command(self, command: object) -> None:
        assert only(check(command)).where == "cmd_args.command"

    def test_bad_template(self) -> None:
        problem = only(check("awk {"))
        assert problem.what == "the { at position 4 is never closed"
        assert problem.hint == "for a literal brace write {{ and }}"

    def test_values(self) -> None:
        assert only(check(knobs={"a": Choice(("x", "a\0"))})).where == "cmd_args.a"
        assert only(check(fixed={"extra_env_vars.A=B": 1})).where == "extra_env_vars.A=B"

    def test_metric_that_nothing_produces(self) -> None:
        problem = only(check(agent_metrics=("ratte",)))
        assert (problem.where, problem.hint) == ("agent_metrics", "did you mean 'rate'?")
        assert problem.allowed == "rate, duration_s, cpu_s, max_rss_mb"

    @pytest.mark.parametrize(
        ("spec", "where"),
        [
            (MetricSpec("rate", "regex", "(["), "metrics.rate.regex"),
            (MetricSpec("rate", "json", "a["), "metrics.rate.json"),
            (MetricSpec("rate", "csv", " "), "metrics.rate.csv"),
        ],
    )
    def test_bad_specs(self, spec: MetricSpec, where: str) -> None:
        assert only(check(metrics=(spec,))).where == where

    def test_builtin_redefined(self) -> None:
        problem = only(check(metrics=(RATE, MetricSpec("cpu_s", "regex", "x"))))
        assert problem.what == "'cpu_s' is a built-in metric"


def test_the_plan_runs(tmp_path: Path) -> None:
    spec = experiment("printf 'rate=%s\\n' {a}", knobs={"a": Choice((1.5, 2.5))})
    workload = CommandWorkload(spec, tmp_path)
    job = workload.plan(1, 1, {"a": 1.5}, str(tmp_path))
    with (tmp_path / "stdout.txt").open("wb") as out:
        subprocess.run(job.command, shell=True, stdout=out, check=True)
    assert workload.read(job, JobResult("exited", 0))["rate"] == 1.5
