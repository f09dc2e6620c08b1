"""Whole runs on a real Slurm: killed and resumed, in parallel, in one allocation."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tuning.runners.conftest import runner_on
from tools.slurm_cluster import SlurmCluster, wait_for

from tunegym.tuning.model.trial import CommandJob

SCENARIO = """
name = "s"
seed = 7

[system]
runner = "slurm"
slots = 3
poll_interval_s = 0.5
{system}

[[experiments]]
name = "e"
workload = "command"
agent = "{agent}"
agent_steps = {steps}
confirm = "off"
agent_metrics = ["y"]
cache = "off"
keep = "all"

  [experiments.cmd_args]
  command = "{command}"
  x = {{ low = 0.0, high = 1.0 }}
  n = [1, 2, 3]

  [experiments.metrics]
  y = {{ regex = 'y=([-0-9.e]+)', goal = "max" }}
"""
COMMAND = "echo {step} >> {scenario_dir}/ran; sleep SLEEP; echo y={x} n={n}"


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    def write(agent: str = "random_search", steps: int = 8, sleep: float = 0.0, system: str = "") -> Path:
        path = tmp_path / "s.toml"
        command = COMMAND.replace("SLEEP", str(sleep))
        text = SCENARIO.format(agent=agent, steps=steps, command=command, system=system)
        path.write_text(text)
        return path

    return write


def rows(tmp_path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(next(tmp_path.glob("results/s/*/e/trajectory.csv")).open()))


def ran(tmp_path: Path) -> Counter[str]:
    """How often each trial has run, by its number."""
    return Counter((tmp_path / "ran").read_text().split() if (tmp_path / "ran").exists() else ())


def wait_for_trials(driver: subprocess.Popen[str], tmp_path: Path, count: int) -> None:
    wait_for(lambda: len(ran(tmp_path)) >= count or driver.poll() is not None, "some trials")
    assert driver.poll() is None, (tmp_path / "log").read_text()


def check(tmp_path: Path, steps: int) -> list[dict[str, str]]:
    """Every number once, each measured, on a node."""
    found = rows(tmp_path)
    assert sorted(int(row["step"]) for row in found) == list(range(1, steps + 1))
    assert {row["status"] for row in found} == {"measured"}, [row for row in found if row["status"] != "measured"]
    assert all(row["nodes"].startswith("n") for row in found)
    return found


def test_same_numbers_contexts_and_actions_as_local(
    slurm: SlurmCluster, scenario: Callable[..., Path], tunegym: Callable, tmp_path: Path
) -> None:
    """Also: dry-run shows the scripts."""
    path = scenario(steps=4)
    path.write_text(path.read_text() + "\n  [experiments.env_params]\n  n = {}\n")
    shown = tunegym("dry-run", path, code=0).stdout
    assert "#SBATCH --job-name=tunegym-" in shown
    tunegym("run", path, "--output", tmp_path / "results", code=0)
    check(tmp_path, 4)
    system = tmp_path / "local.toml"
    system.write_text('[system]\nrunner = "local"\n')
    tunegym("run", path, "--output", tmp_path / "there", "--system", system, code=0)
    columns = ("step", "n", "action.x", "observation.y", "reward")
    found = []
    for output in ("results", "there"):
        folder = next((tmp_path / output).glob("s/*/e"))
        files = [csv.DictReader((folder / name).open()) for name in ("env.csv", "trajectory.csv")]
        joined = [env | trial for env, trial in zip(*files, strict=True)]
        found.append(sorted([row[name] for name in columns] for row in joined))
    assert found[0] == found[1]
    assert (next(tmp_path.glob("results/s/*/e/trials/000001/job/job.sh"))).exists()


@pytest.mark.invariant
@pytest.mark.parametrize("system", ["", pytest.param("single_sbatch = true", marks=pytest.mark.slow)])
def test_a_killed_driver_is_resumed(
    slurm: SlurmCluster,
    scenario: Callable[..., Path],
    start_tunegym: Callable,
    tunegym: Callable,
    tmp_path: Path,
    system: str,
) -> None:
    """Its jobs are waited for, not submitted twice; every trial is there once, and no job is left."""
    path = scenario(steps=7, sleep=4.0, system=system)
    driver = start_tunegym("run", path, "--output", tmp_path / "results", log=tmp_path / "log")
    wait_for_trials(driver, tmp_path, 5)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    names = slurm.queue()
    assert names
    tunegym("resume", tmp_path / "results", code=0)
    check(tmp_path, 7)
    if not system:
        assert set(ran(tmp_path).values()) == {1}, "no trial ran twice"
    wait_for(lambda: not slurm.queue(), "an empty queue")


def test_ctrl_c(slurm: SlurmCluster, scenario: Callable[..., Path], start_tunegym: Callable, tmp_path: Path) -> None:
    path = scenario(steps=7, sleep=1000)
    driver = start_tunegym("run", path, "--output", tmp_path / "results", log=tmp_path / "log")
    wait_for_trials(driver, tmp_path, 3)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 130, (tmp_path / "log").read_text()
    wait_for(lambda: not slurm.queue(), "an empty queue")


@pytest.mark.slow
def test_forty_trials_of_optuna(
    slurm: SlurmCluster, scenario: Callable[..., Path], tunegym: Callable, tmp_path: Path
) -> None:
    tunegym("run", scenario("optuna", 40), "--output", tmp_path / "results", code=0, timeout=280)
    found = check(tmp_path, 40)
    assert len({row["nodes"] for row in found}) == 3
    assert set(ran(tmp_path).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
def test_a_node_is_taken_down_in_the_middle(
    slurm: SlurmCluster, scenario: Callable[..., Path], start_tunegym: Callable, tmp_path: Path, single: bool
) -> None:
    """An allocation goes with one of its nodes, and all its trials run again."""
    path = scenario(steps=9, sleep=5.0, system="single_sbatch = true" if single else "")
    if single:  # so that two nodes are left for another allocation
        path.write_text(path.read_text().replace("slots = 3", "slots = 2"))
    driver = start_tunegym("run", path, "--output", tmp_path / "results", log=tmp_path / "log")
    wait_for_trials(driver, tmp_path, 5)
    slurm.fail_node(failed := slurm.run("squeue", "-h", "-t", "R", "-o", "%B").split()[0])
    try:
        assert driver.wait(200) == 0, (tmp_path / "log").read_text()
    finally:
        slurm.restore_node(failed)
    found = check(tmp_path, 9)
    journal = next(tmp_path.glob("results/s/*/e/journal.jsonl")).read_text().splitlines()
    nodes = [record["nodes"] for line in journal if "nodes" in (record := json.loads(line))]
    twice = sum(len(one) == 2 for one in nodes)
    assert twice in ((1, 2) if single else (1,)), "who ran on it ran twice, and the record says where"
    assert len(found) == 9


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", "allocation_nodes = 1"])
def test_one_allocation_for_all_trials(
    slurm: SlurmCluster, scenario: Callable[..., Path], start_tunegym: Callable, tmp_path: Path, settings: str
) -> None:
    """Steps run at the same time, and only one job is submitted. With one node of one CPU they take turns."""
    path = scenario(steps=7, sleep=2.0, system=f"single_sbatch = true\n{settings}")
    if settings:
        path.write_text(path.read_text().replace("slots = 3", "slots = 1"))
    before = int(slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=true"))
    driver = start_tunegym("run", path, "--output", tmp_path / "results", log=tmp_path / "log")
    most = 0
    while driver.poll() is None:
        steps = [line for line in slurm.run("squeue", "-h", "-s", "-o", "%i").split() if line.split(".")[-1].isdigit()]
        most = max(most, len(steps))
    assert driver.returncode == 0, (tmp_path / "log").read_text()
    check(tmp_path, 7)
    assert most == (1 if settings else 3)
    after = int(slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=true"))
    assert after - before == 2, "one job beside our own"
    wait_for(lambda: not slurm.queue(), "an empty queue")


@pytest.mark.slow
def test_steps_of_several_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A trial's own srun runs on the trial's nodes, beside another trial on the third."""
    runner = runner_on(slots=3, single_sbatch=True)
    try:
        text = "srun bash -c 'echo $SLURMD_NODENAME'; srun -n1 bash -c 'echo $SLURMD_NODENAME' > one"
        result = runner.run(CommandJob("1", str(tmp_path / "t" / "1"), text, num_nodes=2), lambda _: None)
        assert (result.ending, result.error) == ("exited", None)
        names = (tmp_path / "t" / "1" / "stdout.txt").read_text().split()
        hosts = slurm.run("scontrol", "show", "hostnames", result.nodes[0]).split()
        assert len(hosts) == 2
        assert sorted(names) == sorted(hosts)
        assert (tmp_path / "t" / "1" / "one").read_text().strip() in hosts
    finally:
        runner.close()
