"""The Slurm runner on a real cluster: outcomes, faults, and what it asks of Slurm."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.runners.conftest import runner_on
from tools.slurm_cluster import SlurmCluster, wait_for

from tunegym.core.errors import TunegymError
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, EnvParams, Space
from tunegym.tuning.model.trial import CallJob, CommandJob, JobHandle, JobResult, Stream
from tunegym.tuning.runners.slurm import SlurmRunner

PATIENCE_S = 120


def command(tmp_path: Path, text: str, name: str = "1", **more: Any) -> CommandJob:
    return CommandJob(name, str(tmp_path / "trials" / name), text, **more)


def run(runner: SlurmRunner, job: CommandJob | CallJob) -> JobResult:
    with contextlib.closing(runner):
        return runner.run(job, lambda _: None)


class Running:
    """A job under way on a thread."""

    def __init__(self, runner: SlurmRunner, job: CommandJob, began: Path) -> None:
        self.handles: list[JobHandle] = []
        self._pool = ThreadPoolExecutor(1)
        self._runner = runner
        self._future = self._pool.submit(runner.run, job, self.handles.append)
        wait_for(lambda: began.exists() or self._future.done(), "the job's beginning")

    def result(self) -> JobResult:
        try:
            return self._future.result(PATIENCE_S)
        finally:
            self._runner.stop()
            self._pool.shutdown()
            self._runner.close()


def test_odd_paths_and_parameters(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = tmp_path / "a %j\\n ü 'q\" $HOME\nline #SBATCH"
    text = "printf '%s' \"$KNOB\" > out; printf '%s' 'it''s ü\r\n$(x)'; pwd"
    knob = "a'b\"c $HOME `x` \\ ü\n#SBATCH --nodes=9"
    job = CommandJob("1", str(folder / "1"), text, env={"KNOB": knob})
    result = run(runner_on(env={"FROM_SYSTEM": "x y'z"}), job)
    assert (result.exit_code, result.error) == (0, None)
    assert Path(job.folder, "out").read_text() == knob
    assert result.nodes[0] in slurm.nodes


def test_the_control_folder_is_kept_with_the_trial(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = command(tmp_path, "mkdir job; printf x > job/own; srun hostname; echo $FROM_SYSTEM", num_nodes=2)
    result = run(runner_on(env={"FROM_SYSTEM": "here"}), job)
    assert result.error is None
    assert len(Path(job.folder, "stdout.txt").read_text().split()) == 3, "a line from each of two nodes"
    assert "-" in result.nodes[0] or "," in result.nodes[0]
    assert [path.name for path in Path(job.folder).parent.iterdir()] == ["1"]
    kept = [path for path in Path(job.folder).iterdir() if (path / "result.json").exists()]
    assert [path.name.startswith("job-") for path in kept] == [True], "its own folder `job` is left alone"


def test_big_output_of_many_at_once(slurm: SlurmCluster, tmp_path: Path) -> None:
    text = "head -c 8000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero > zeros; echo done"
    jobs = [command(tmp_path, text, str(number)) for number in range(8)]
    with contextlib.closing(runner_on(slots=8)) as runner, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: runner.run(job, lambda _: None), jobs))
    assert [(one.ending, one.error) for one in results] == [("exited", None)] * 8
    for job in jobs:
        assert Path(job.folder, "stdout.txt").stat().st_size == 8000000 + len("done\n")
        assert Path(job.folder, "zeros").stat().st_size == 3000000


def test_a_job_that_others_cancel_has_failed(slurm: SlurmCluster, tmp_path: Path) -> None:
    running = Running(runner_on(), command(tmp_path, "touch ../began; sleep 1000"), tmp_path / "trials" / "began")
    slurm.run("scancel", running.handles[0]["slurm"])
    result = running.result()
    assert result.ending == "exited"
    assert "was cancelled by someone else on n" in (result.error or "")


@pytest.mark.slow
def test_a_pruned_call_that_reports_no_more_is_ended(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text("import time\ndef train(report):\n    report(7, 0.5)\n    time.sleep(1000)\n")
    job = CallJob("1", str(tmp_path / "trials" / "1"), "silent:train", {}, paths=(str(tmp_path),), reports=True)
    seen: list[tuple[int, float]] = []
    with contextlib.closing(runner_on()) as runner:
        result = runner.run(job, lambda _: None, lambda *one: seen.append(one) is None)
    assert (result.ending, result.error) == ("pruned", None)
    assert seen == [(7, 0.5)]


@pytest.mark.slow
def test_time_limit(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm checks limits by the minute, so that the test shortens one that has passed."""
    job = command(tmp_path, "touch ../began; sleep 1000", teardown="touch ../torn")
    running = Running(runner_on(time_limit="2h"), job, tmp_path / "trials" / "began")
    shown = slurm.run("scontrol", "show", "job", running.handles[0]["slurm"])
    assert "TimeLimit=02:00:00" in shown
    assert "Requeue=0" in shown
    slurm.run("scontrol", "update", f"jobid={running.handles[0]['slurm']}", "timelimit=0")
    slurm.run("scontrol", "update", f"jobid={running.handles[0]['slurm']}", "endtime=now")
    result = running.result()
    assert (result.ending, result.error) == ("timed_out", "ended by Slurm after time_limit = 2h")
    assert (tmp_path / "trials" / "torn").exists()


def test_a_node_that_fails_is_no_failed_trial(slurm: SlurmCluster, tmp_path: Path) -> None:
    text = "echo $SLURM_JOB_NODELIST >> ../began; [ $(wc -l < ../began) -gt 1 ] || sleep 1000; echo a=1"
    job = command(tmp_path, text, stream=Stream("a=([0-9]+)"))
    running = Running(runner_on(), job, began := tmp_path / "trials" / "began")
    first = began.read_text().strip()
    slurm.fail_node(first)
    try:
        result = running.result()
    finally:
        slurm.restore_node(first)
    assert (result.ending, result.error) == ("exited", None)
    assert result.nodes == tuple(began.read_text().split())
    assert len(set(result.nodes)) == 2


def test_faults_end_after_the_retries(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = command(tmp_path, "touch ../began; sleep 1000")
    running = Running(runner_on(retries=0, nodes=("n2",)), job, tmp_path / "trials" / "began")
    slurm.fail_node("n2")
    try:
        result = running.result()
    finally:
        slurm.restore_node("n2")
    assert result.ending == "exited"
    assert "the cluster failed in 1 attempt: the job" in (result.error or "")
    assert "NODE_FAIL on n2" in (result.error or "")
    assert result.nodes == ("n2",)


@pytest.mark.parametrize(
    ("settings", "nodes", "said"),
    [
        ({"partition": "small"}, 2, "Slurm can never run this job: (PartitionNodeLimit|2 nodes of 1)"),
        ({"partition": "small", "time_limit": "2h"}, 1, "Slurm can never run this job: PartitionTimeLimit"),
        ({}, 7, "Slurm can never run this job: 7 nodes of 3"),
        ({"extra_sbatch_args": ("--cpus-per-task=40",)}, 1, "Slurm can never run this job: no node is large enough"),
        ({"partition": "nope"}, 1, "sbatch refused the job: "),
        ({"extra_sbatch_args": ("--mem=900G",)}, 1, "sbatch refused the job: "),
    ],
)
def test_requests_that_are_never_met(
    slurm: SlurmCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    nodes: int,
    said: str,
) -> None:
    if "large enough" in said:
        monkeypatch.setattr("tunegym.tuning.runners.slurm.UNCLEAR_S", 3.0)
    result = run(runner_on(**settings), command(tmp_path, "true", num_nodes=nodes))
    assert result.ending == "exited"
    assert re.match(said, result.error or "")


def experiment(num_nodes: Any = None) -> Experiment:
    knobs = {"num_nodes": Choice((1, num_nodes))} if isinstance(num_nodes, int) and num_nodes > 1 else {}
    return Experiment("e", "command", {"command": "true"}, Space(knobs, {}), EnvParams({}, 0), None, None, ())


@pytest.mark.parametrize(
    ("settings", "nodes", "said"),
    [
        ({}, 4, "e: a job of 4 nodes can never run: the partition gives it 3"),
        ({"partition": "small"}, 2, "a job of 2 nodes can never run: the partition gives it 1"),
        ({"exclude_nodes": ("n[2-3]",)}, 2, "a job of 2 nodes can never run: the partition gives it 1"),
        ({"partition": "smal"}, 1, "Slurm has no partition 'smal'"),
        ({"nodes": ("n1", "n9")}, 1, "nodes: the partition has no node n9"),
        ({"nodes": ("n1",), "exclude_nodes": ("n1",)}, 1, "a job of 1 node can never run: the partition gives it 0"),
    ],
)
def test_what_the_cluster_can_never_run_is_refused(
    slurm: SlurmCluster, settings: dict[str, Any], nodes: int, said: str
) -> None:
    with contextlib.closing(runner_on(**settings)) as runner:
        with pytest.raises(TunegymError, match="hint") as caught:
            runner.check([experiment(nodes)])
        assert said in str(caught.value)
    with contextlib.closing(runner_on()) as runner:
        runner.check([experiment(3)])


def test_without_slurm_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with contextlib.closing(runner_on()) as runner, pytest.raises(TunegymError, match="there is no command 'sinfo'"):
        runner.check([experiment()])


def test_nodes_are_chosen_and_excluded(slurm: SlurmCluster, tmp_path: Path) -> None:
    with contextlib.closing(runner_on(nodes=("n[2-3]",), exclude_nodes=("n3",))) as runner:
        for name in "12":
            assert runner.run(command(tmp_path, "true", name), lambda _: None).nodes == ("n2",)
        assert "#SBATCH --exclude=n1,n3\n" in runner.script(command(tmp_path, "true"))


def test_stop_cancels_its_own_jobs_only(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Also one that is pending; and a stop says what it waited for before."""
    other = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 1000")
    try:
        runner = runner_on(slots=4)
        with ThreadPoolExecutor(4) as pool:
            jobs = [command(tmp_path, "sleep 1000", str(number)) for number in range(4)]
            begun = threading.Semaphore(0)
            runs = [pool.submit(runner.run, job, lambda _: begun.release()) for job in jobs]
            try:
                for _ in jobs:
                    assert begun.acquire(timeout=PATIENCE_S)
                # Slurm gives one or two reasons: Resources, Priority.
                wait_for(
                    lambda: re.match("2 jobs pending|1 job pending.*1 job pending", runner.waiting), "two that wait"
                )
            finally:
                runner.stop()
            assert [run.result(PATIENCE_S).ending for run in runs] == ["interrupted"] * 4
        runner.close()
        wait_for(lambda: slurm.run("squeue", "-h", "-o", "%i") == other, "the other one alone")
    finally:
        slurm.run("scancel", other)


def test_settings_win_over_variables_of_sbatch(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would win over the script; they stay for what isn't set."""
    for name, value in {"PARTITION": "small", "JOB_NAME": "mine", "ACCOUNT": "kept"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    job = command(tmp_path, "squeue -h -j $SLURM_JOB_ID -o '%P %j %a'")
    assert run(runner_on("token", partition="debug"), job).error is None
    assert (Path(job.folder) / "stdout.txt").read_text() == "debug tunegym-token-1 kept\n"


@pytest.mark.parametrize("away_s", [3.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_a_controller_that_is_away_is_waited_for(
    slurm: SlurmCluster, tmp_path: Path, away_s: float, wait_until: Callable
) -> None:
    """While a job runs, and while one is submitted."""
    runner = runner_on(slots=2)
    running = Running(runner, command(tmp_path, "touch ../began; sleep 5"), tmp_path / "trials" / "began")
    slurm.stop_controller()
    back = threading.Timer(away_s, slurm.start_controller)
    try:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(runner.run, command(tmp_path, "echo x >> ../ran", "2"), lambda _: None)
            wait_for(lambda: "slurmctld takes no requests for " in runner.waiting, "the progress to tell of it")
            back.start()
            assert late.result(PATIENCE_S).error is None
    finally:
        back.join()
    assert running.result().error is None
    assert (tmp_path / "trials" / "ran").read_text() == "x\n"


@pytest.mark.parametrize(
    "shim",
    [
        # It submits the job, and then tells of a time-out.
        "SBATCH \"$@\" && echo 'sbatch: error: Socket timed out' >&2; exit 1",
        # There are too many jobs in the queue at first.
        "[ -e FLAG ] && exec SBATCH \"$@\"; touch FLAG; echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1",
    ],
    ids=["answer_lost", "submit_limit"],
)
def test_a_job_is_submitted_once_when_slurm_can_take_it(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shim: str
) -> None:
    path = tmp_path / "bin" / "sbatch"
    path.parent.mkdir()
    text = shim.replace("SBATCH", shutil.which("sbatch") or "").replace("FLAG", str(tmp_path / "flag"))
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    job = command(tmp_path, "echo x >> ../ran")
    assert run(runner_on(), job).error is None
    assert (tmp_path / "trials" / "ran").read_text() == "x\n"


def test_a_job_that_was_submitted_twice_runs_once(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The second one finds the claim of the first, and does nothing."""
    job = command(tmp_path, "echo x >> ../ran; while [ ! -e ../go ]; do sleep 0.1; done")
    running = Running(runner_on(), job, tmp_path / "trials" / "ran")
    control = tmp_path / "trials" / "1.job"
    twin = slurm.run("sbatch", "--parsable", "--output=/dev/null", str(control / "job.sh"))
    wait_for(lambda: "COMPLETED" in slurm.run("squeue", "-h", "-t", "all", "-j", twin, "-o", "%T"), "the twin's end")
    (tmp_path / "trials" / "go").touch()
    assert running.result().error is None
    assert (tmp_path / "trials" / "ran").read_text() == "x\n"


# after a driver that was killed ------------------------------------------------------------------------


def drive(token: str, jobs: list[CommandJob]) -> None:
    """What a driver does, for a process of its own."""
    runner = runner_on(token, slots=len(jobs))
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: runner.run(job, lambda _: None), jobs))


def test_a_running_job_is_adopted(slurm: SlurmCluster, tmp_path: Path, token: str) -> None:
    """Its values are told from the start, and it runs once; another job of the same name is ended."""
    job = command(
        tmp_path, "echo x >> ../ran; echo a=1; while [ ! -e ../go ]; do sleep 0.1; done", stream=Stream("a=(.)")
    )
    other = command(tmp_path, "touch ../other; sleep 1000", "2")
    driver = multiprocessing.get_context("spawn").Process(target=drive, args=(token, [job, other]))
    driver.start()
    wait_for(lambda: (tmp_path / "trials" / "ran").exists() and (tmp_path / "trials" / "other").exists(), "both")
    driver.kill()
    driver.join()
    with contextlib.closing(runner_on(token, slots=2)) as second:
        assert second.end_leftovers([]) == 0
        seen: list[tuple[int, float]] = []
        with ThreadPoolExecutor(2) as pool:
            adopted = pool.submit(second.run, job, lambda _: None, lambda *one: bool(seen.append(one)))
            changed = pool.submit(second.run, command(tmp_path, "echo changed", "2"), lambda _: None)
            assert changed.result(PATIENCE_S).error is None
            (tmp_path / "trials" / "go").touch()
            assert adopted.result(PATIENCE_S).error is None
        assert seen == [(1, 1.0)]
        assert (tmp_path / "trials" / "ran").read_text() == "x\n"
        assert (tmp_path / "trials" / "2" / "stdout.txt").read_text() == "changed\n"


def test_a_result_that_nobody_took_is_taken(slurm: SlurmCluster, tmp_path: Path, token: str) -> None:
    """Before and after the driver has put it into the trial's folder. Other leftovers are cancelled at the end."""
    job = command(tmp_path, "echo x >> ../ran")
    first = run(runner_on(token), job)
    again = runner_on(token)
    again.end_leftovers([])
    assert run(again, job) == first
    (tmp_path / "trials" / "1" / "job").rename(tmp_path / "trials" / "1.job")
    again = runner_on(token)
    again.end_leftovers([])
    assert run(again, job) == first
    assert (tmp_path / "trials" / "ran").read_text() == "x\n"
    assert run(runner_on(token), job).error is None, "without a killed driver it runs again"
    assert (tmp_path / "trials" / "ran").read_text() == "x\nx\n"
