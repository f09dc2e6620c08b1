"""The Ray runner beyond the contract of runners: a real cluster of three simulated nodes, and its faults."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.config.conftest import GOOD
from tests.ray_cluster import ThreeNodes

from tunegym import scenario
from tunegym.core.errors import RunnerError
from tunegym.core.processes import marked
from tunegym.tuning.model.trial import CallJob, CommandJob, JobHandle, JobResult, Stream
from tunegym.tuning.runners import ray_host
from tunegym.tuning.runners.ray import RayConfig, RayRunner

Make = Callable[..., RayRunner]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(12)
    yield pool
    pool.shutdown(wait=False)


@pytest.fixture
def make(token: str, tmp_path: Path, ray_connected: str, threads: ThreadPoolExecutor) -> Iterator[Make]:
    """Make a runner on the cluster, with these settings."""
    (tmp_path / "scenario").mkdir()
    runners: list[RayRunner] = []

    def build(slots: int = 3, **settings: Any) -> RayRunner:
        config = RayConfig(**{"address": ray_connected, **settings})
        runners.append(RayRunner(token, slots, config, tmp_path / "scenario"))
        return runners[-1]

    yield build
    for runner in runners:
        runner.kill()  # what a failed test left
    threads.shutdown()
    for runner in runners:
        runner.close()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., CommandJob]:
    def build(text: str, name: str = "1", **options: Any) -> CommandJob:
        return CommandJob(name, str(tmp_path / "trials" / name), text, **options)

    return build


@pytest.fixture
def begin(
    threads: ThreadPoolExecutor, wait_until: Callable
) -> Callable[..., tuple[Future[JobResult], list[JobHandle]]]:
    """Run a job in a thread, and wait until it has begun: the future result, and the handles written down."""

    def start(
        runner: RayRunner, job: CommandJob, begun: Path, watch: Any = None
    ) -> tuple[Future[JobResult], list[JobHandle]]:
        handles: list[JobHandle] = []
        run = threads.submit(runner.run, job, handles.append, watch)
        wait_until(lambda: begun.exists() or run.done())
        return run, handles

    return start


def test_many_at_once(make: Make, command: Callable[..., CommandJob], threads: ThreadPoolExecutor) -> None:
    """More jobs than slots, on all nodes; each result belongs to its job."""
    runner = make()
    jobs = [command(f"echo {n}; sleep 0.2; exit {n % 3}", str(n)) for n in range(12)]
    results = list(threads.map(lambda job: runner.run(job, lambda _: None), jobs, timeout=120))
    assert [result.exit_code for result in results] == [n % 3 for n in range(12)]
    assert [Path(job.folder, "stdout.txt").read_text() for job in jobs] == [f"{n}\n" for n in range(12)]
    assert len({node for result in results for node in result.nodes}) == 3
    assert all(len(result.nodes) == 1 for result in results)
    assert runner.waiting == ""


def test_big_output(make: Make, command: Callable[..., CommandJob]) -> None:
    """Larger than the object store, and odd things beside it; the node keeps nothing."""
    text = """
        head -c 150000000 /dev/zero > big; pwd > "it's here"; ln -s /nowhere link
        mkdir deep; echo x > deep/$'new\\nline'; chmod 500 deep; chmod 755 big; head -c 3000000 /dev/zero
    """
    job = command(text)
    result = make().run(job, lambda _: None)
    assert (result.exit_code, result.error) == (0, None)
    folder = Path(job.folder)
    assert (folder / "big").stat().st_size == 150_000_000
    assert (folder / "big").stat().st_mode & 0o777 == 0o755
    assert (folder / "stdout.txt").stat().st_size == 3_000_000
    assert (folder / "link").readlink() == Path("/nowhere")
    assert (folder / "deep" / "new\nline").read_text() == "x\n"
    assert not any(Path((folder / "it's here").read_text().strip()).iterdir())


def test_scenario_files_are_there(make: Make, tmp_path: Path, command: Callable[..., CommandJob]) -> None:
    """As a copy on the node, at the paths that commands and calls are given."""
    files = tmp_path / "scenario"
    (files / "tool.sh").write_text("#!/bin/sh\necho tool $0\n")
    (files / "tool.sh").chmod(0o755)
    (files / "where.py").write_text(
        "import os\ndef where(scenario_dir, trial_dir):\n"
        "    open(os.path.join(trial_dir, 'made'), 'w').close()\n"
        "    return {'files': os.listdir(scenario_dir), 'dirs': [scenario_dir, trial_dir, os.getcwd(), __file__]}\n"
    )
    runner = make(slots=1)
    job = command(f"{files}/tool.sh; cp {files}/where.py .", teardown=f"ls {files}")
    assert runner.run(job, lambda _: None).error is None
    said = Path(job.folder, "stdout.txt").read_text()
    assert said.startswith("tool ")
    assert str(files) not in said
    assert {path.name for path in Path(job.folder).iterdir()} == {
        "stdout.txt",
        "stderr.txt",
        "where.py",
        "teardown.txt",
    }
    folder = str(tmp_path / "trials" / "2")
    arguments = {"scenario_dir": str(files), "trial_dir": folder}
    call = CallJob("2", folder, "where:where", arguments, (str(files),), isolate=False)
    result = runner.run(call, lambda _: None)
    assert result.error is None
    assert set(result.value["files"]) == {"tool.sh", "where.py"}
    assert not any(path.startswith(str(tmp_path)) for path in result.value["dirs"])
    assert Path(folder, "made").exists()


def test_a_killed_worker_is_retried(
    make: Make, tmp_path: Path, command: Callable[..., CommandJob], begin: Callable, wait_until: Callable, token: str
) -> None:
    """The trial runs again; nothing of the lost attempt goes on, and its values are not reported twice."""
    seen: list[tuple[int, float]] = []
    begun, once = tmp_path / "begun", tmp_path / "once"
    hang = f"(setsid sleep 1000 &); touch {begun}; sleep 1000"
    text = f"echo a=1; sleep 0.5; echo a=2; if mkdir {once}; then {hang}; fi; echo a=3"
    runner = make(retries=1)
    job = command(text, stream=Stream("a=([0-9])"))
    run, handles = begin(runner, job, begun, lambda *value: bool(seen.append(value)))
    lost = marked(token)
    os.kill(handles[0]["pid"], signal.SIGKILL)
    result = run.result(120)
    assert (result.ending, result.exit_code, len(result.nodes)) == ("exited", 0, 2)
    assert seen == [(1, 1.0), (2, 2.0), (3, 3.0)]
    wait_until(lambda: not set(marked(token)) & set(lost))
    assert len(handles) == 2


def test_a_worker_lost_too_often_fails_the_trial(
    make: Make, tmp_path: Path, command: Callable[..., CommandJob], begin: Callable, wait_until: Callable
) -> None:
    runner = make(retries=0)
    run, handles = begin(runner, command(f"touch {tmp_path}/begun; sleep 1000"), tmp_path / "begun")
    os.kill(handles[0]["pid"], signal.SIGKILL)
    result = run.result(120)
    assert result.ending == "exited"
    assert "its Ray worker was lost in attempt 1: " in (result.error or "")
    assert len(result.nodes) == 1
    assert runner.run(command("true", "2"), lambda _: None).exit_code == 0


@pytest.mark.slow
def test_a_removed_node_is_retried(
    make: Make,
    tmp_path: Path,
    command: Callable[..., CommandJob],
    begin: Callable,
    wait_until: Callable,
    ray_cluster: ThreeNodes,
) -> None:
    """On the next node that has the resources; the result names both."""
    first = ray_cluster.add_node(resources={"extra": 1})
    runner = make(resources={"extra": 1})
    text = f"if mkdir {tmp_path}/once; then touch {tmp_path}/begun; sleep 1000; fi; echo again"
    run, _handles = begin(runner, command(text), tmp_path / "begun")
    ray_cluster.remove_node(first)
    wait_until(lambda: runner.waiting)
    assert runner.waiting == "1 trial waits for 1 CPU, 1 extra on the Ray cluster"
    second = ray_cluster.add_node(resources={"extra": 1})
    result = run.result(120)
    runner.close()
    ray_cluster.remove_node(second)
    assert (result.exit_code, result.error) == (0, None)
    assert len(set(result.nodes)) == 2


@pytest.mark.parametrize(
    ("settings", "missing"),
    [({"num_cpus": 2}, "2 CPU"), ({"num_gpus": 1}, "1 CPU, 1 GPU"), ({"resources": {"fpga": 1}}, "1 CPU, 1 fpga")],
)
def test_resources_that_no_node_has(
    make: Make, command: Callable[..., CommandJob], settings: dict[str, Any], missing: str
) -> None:
    """Also where the nodes have it together. Said before anything starts, and by a run."""
    runner = make(**settings)
    for action in (lambda: runner.check([]), lambda: runner.run(command("true"), lambda _: None)):
        with pytest.raises(RunnerError, match=f"a trial takes {missing}, and no node has that: 127") as caught:
            action()
        assert "num_cpus, num_gpus, resources" in str(caught.value.hint)


def test_stop_while_waiting(
    make: Make, tmp_path: Path, command: Callable[..., CommandJob], wait_until: Callable, threads: ThreadPoolExecutor
) -> None:
    """A trial that has no node yet is interrupted, and one that runs has its teardown."""
    runner = make(slots=5)
    jobs = [command(f"touch {tmp_path}/b{n}; sleep 1000", str(n), teardown=f"touch {tmp_path}/t{n}") for n in range(4)]
    runs = [threads.submit(runner.run, job, lambda _: None) for job in jobs]
    wait_until(lambda: len(list(tmp_path.glob("b*"))) == 3)
    wait_until(lambda: runner.waiting == "1 trial waits for 1 CPU on the Ray cluster")
    runner.stop()
    assert [run.result(120).ending for run in runs] == ["interrupted"] * 4
    assert len(list(tmp_path.glob("t*"))) == 3


def test_kill(
    make: Make, tmp_path: Path, command: Callable[..., CommandJob], begin: Callable, wait_until: Callable, token: str
) -> None:
    """Without grace: no teardown."""
    job = command(f"trap '' TERM; touch {tmp_path}/begun; sleep 1000", teardown=f"touch {tmp_path}/torn")
    runner = make()
    run, _handles = begin(runner, job, tmp_path / "begun")
    runner.kill()
    assert run.result(120).ending == "interrupted"
    wait_until(lambda: not marked(token))
    assert not (tmp_path / "torn").exists()


def test_another_version_on_the_nodes(
    make: Make, command: Callable[..., CommandJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_host, "VERSION", "9.9")
    with pytest.raises(RunnerError, match=r"has tunegym \S+, this machine has 9.9") as caught:
        make().run(command("true"), lambda _: None)
    assert caught.value.hint == "install the same version on every node"


@pytest.mark.parametrize("name", ["num_nodes_fixed", "num_nodes_knob"])
def test_an_experiment_with_several_nodes_is_refused(name: str, tmp_path: Path) -> None:
    """Before a cluster is asked."""
    experiments = scenario(GOOD / f"{name}.toml").experiments
    with pytest.raises(RunnerError, match=r"num_nodes = \d, but a trial runs on one node"):
        RayRunner("t", 1, RayConfig(), tmp_path).check(experiments)


def test_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out at once, and another one isn't joined instead."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    runner = RayRunner("t", 1, RayConfig(address="127.0.0.3:1"), tmp_path)
    with pytest.raises(RunnerError, match=r"the Ray cluster at 127\.0\.0\.3:1 can't be reached"):
        runner.check([])
    runner.close()


def test_a_process_is_in_one_cluster(ray_connected: str, tmp_path: Path) -> None:
    runner = RayRunner("t", 1, RayConfig(address="127.0.0.3:1"), tmp_path)
    with pytest.raises(RunnerError, match=f"this process is connected to the Ray cluster at {ray_connected}"):
        runner.check([])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunnerError, match="needs the package ray") as caught:
        RayRunner("t", 1, RayConfig(), tmp_path).check([])
    assert caught.value.hint == "pip install 'tunegym[ray]'"
