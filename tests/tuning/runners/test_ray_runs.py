"""Whole runs of the command line on Ray: the same scenario as elsewhere, other [system]."""

from __future__ import annotations

import csv
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ray_cluster import ThreeNodes, three_nodes

from tunegym.core.files import dump_toml
from tunegym.core.processes import marked

SCENARIO = """
name = "odd"
seed = 7

[system]
slots = 3

[[experiments]]
name = "e"
workload = "command"
agent = "{agent}"
agent_steps = {steps}
confirm = "off"
agent_metrics = ["y"]
keep = "all"

  [experiments.cmd_args]
  command = "python3 {{scenario_dir}}/job.py {{text}} {{x}} {{mode}} '{{trial_dir}}' {pause}"
  text = ["it's", 'a "b" $HOME', 'c `d` \\ *']
  x = {{ low = 0.0, high = 1.0 }}
  mode = ["slow", "fast"]

  [experiments.env_params]
  mode = {{}}

  [experiments.metrics]
  y = {{ regex = 'y=(.*)', goal = "min" }}
  length = {{ regex = '([0-9]+)', file = "seen.txt" }}
"""

JOB = """
import pathlib, sys, time
text, x, mode, folder, pause = sys.argv[1:]
pathlib.Path(folder, "seen.txt").write_text(str(len(text)))
with open(pathlib.Path(__file__).with_name("log name").read_text().strip(), "a") as log:
    log.write(folder + "\\n")
time.sleep(float(pause))
print(f"y={len(text) + float(x) + (mode == 'slow')!r}")
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Write a scenario whose folder has an odd name; each trial adds a line to the file ``began``."""

    def build(agent: str = "random_search", steps: int = 12, pause: float = 0.0) -> Path:
        folder = tmp_path / 'it\'s a "$HOME" é'
        folder.mkdir(exist_ok=True)
        (folder / "job.py").write_text(JOB)
        (folder / "log name").write_text(str(tmp_path / "began"))
        text = SCENARIO.format(agent=agent, steps=steps, pause=pause)
        if agent == "optuna":  # it chooses all
            text = text.replace("  [experiments.env_params]\n  mode = {}\n", "")
        (folder / "odd.toml").write_text(text)
        return folder / "odd.toml"

    return build


@pytest.fixture
def system(tmp_path: Path) -> Callable[..., Path]:
    def build(address: str | None = None, **settings: object) -> Path:
        table = {"runner": "ray", "slots": 3, "address": address, **settings}
        (tmp_path / "ray.toml").write_text(dump_toml({"system": table}))
        return tmp_path / "ray.toml"

    return build


def rows(output: Path) -> list[dict[str, str]]:
    """The trajectory, by number."""
    (path,) = output.glob("*/*/e/trajectory.csv")
    with path.open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row["step"]))


def measured(output: Path) -> list[dict[str, str]]:
    """What must be the same wherever trials run."""
    (contexts,) = output.glob("*/*/e/env.csv")
    left_out = ("duration_s", "nodes", "metrics")
    kept = [{name: value for name, value in row.items() if name not in left_out} for row in rows(output)]
    return [*kept, {"contexts": contexts.read_text()}]


def test_same_numbers_contexts_and_actions_as_local(
    scenario: Callable, system: Callable, tmp_path: Path, tunegym: Callable, ray_cluster: ThreeNodes
) -> None:
    """With parameters and paths of any characters; the files of a trial are in its folder."""
    tunegym("run", scenario(), "--output", tmp_path / "local", code=0)
    tunegym("run", scenario(), "--system", system(ray_cluster.address), "--output", tmp_path / "ray", code=0)
    assert measured(tmp_path / "local") == measured(tmp_path / "ray")
    assert len(rows(tmp_path / "ray")) == 12
    assert {row["status"] for row in rows(tmp_path / "ray")} == {"measured"}
    assert all(row["nodes"].count("127.0.0.2") == 1 for row in rows(tmp_path / "ray"))
    for output in ("local", "ray"):
        files = [path.relative_to(tmp_path / output).parts[3:] for path in (tmp_path / output).glob("*/*/e/trials/*/*")]
        assert len(files) == 3 * 12, output


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_env_runners_share_the_cluster(
    named: bool,
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    tunegym: Callable,
    ray_cluster: ThreeNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent's actors and the trials are on one cluster: the one that was named, or one that starts and ends here."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)  # not to be joined unless it was named
    path = scenario("rllib_ppo", 8)
    path.write_text(path.read_text() + "\n  [experiments.agent_config]\n  num_env_runners = 2\n  n_steps = 4\n")
    chosen = system(ray_cluster.address if named else None)
    tunegym("run", path, "--system", chosen, "--output", tmp_path / "out", code=0)
    assert [row["status"] for row in rows(tmp_path / "out")] == ["measured"] * 8
    assert not list(tmp_path.glob("out/*/*/dse_failure.txt"))


@pytest.mark.slow
@pytest.mark.invariant
def test_a_killed_driver_resumes(
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    tunegym: Callable,
    start_tunegym: Callable,
    ray_cluster: ThreeNodes,
    wait_until: Callable,
) -> None:
    """Every trial once, on the same cluster; those that ran when it was killed don't go on beside their second run."""
    output, began = tmp_path / "out", tmp_path / "began"
    driver = start_tunegym(
        "run", scenario(pause=1.0), "--system", system(ray_cluster.address), "--output", output, log=tmp_path / "log"
    )
    wait_until(lambda: began.exists() and len(began.read_text().splitlines()) >= 5, deadline_s=120)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    (journal,) = output.glob("*/*/e/journal.jsonl")
    token = json.loads(journal.read_text().splitlines()[0])["run"]
    tunegym("resume", output, code=0)
    assert [int(row["step"]) for row in rows(output)] == list(range(1, 13))
    assert {row["status"] for row in rows(output)} == {"measured"}
    wait_until(lambda: not marked(token))


@pytest.mark.slow
def test_nothing_goes_on_without_its_driver(
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    start_tunegym: Callable,
    ray_cluster: ThreeNodes,
    wait_until: Callable,
) -> None:
    output = tmp_path / "out"
    driver = start_tunegym(
        "run", scenario(pause=1000), "--system", system(ray_cluster.address), "--output", output, log=tmp_path / "log"
    )
    wait_until((tmp_path / "began").exists, deadline_s=120)
    (journal,) = output.glob("*/*/e/journal.jsonl")
    token = json.loads(journal.read_text().splitlines()[0])["run"]
    assert marked(token)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not marked(token), deadline_s=120)


@pytest.mark.slow
def test_ctrl_c_and_resume(
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    tunegym: Callable,
    start_tunegym: Callable,
    ray_cluster: ThreeNodes,
    wait_until: Callable,
) -> None:
    output, began = tmp_path / "out", tmp_path / "began"
    driver = start_tunegym(
        "run", scenario(pause=0.5), "--system", system(ray_cluster.address), "--output", output, log=tmp_path / "log"
    )
    wait_until(lambda: began.exists() and len(began.read_text().splitlines()) >= 5, deadline_s=120)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(120) == 130, (tmp_path / "log").read_text()
    tunegym("resume", output, code=0)
    assert [int(row["step"]) for row in rows(output)] == list(range(1, 13))


@pytest.mark.slow
def test_forty_optuna_trials_and_a_node_that_goes(
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    start_tunegym: Callable,
    ray_cluster: ThreeNodes,
    wait_until: Callable,
) -> None:
    """Trials of the lost node run again elsewhere, and the record says so."""
    node = ray_cluster.add_node()
    output, began, log = tmp_path / "out", tmp_path / "began", tmp_path / "log"
    arguments = scenario("optuna", 40, 0.5), "--system", system(ray_cluster.address), "--slots", "4"
    driver = start_tunegym("run", *arguments, "--output", output, log=log)
    identity = node.node_id[:8]
    wait_until(lambda: driver.poll() or (began.exists() and began.read_text().count("\n") >= 8), deadline_s=120)
    ray_cluster.remove_node(node)
    assert driver.wait(200) == 0, log.read_text()
    found = rows(output)
    assert [int(row["step"]) for row in found] == list(range(1, 41))
    assert {row["status"] for row in found} == {"measured"}
    assert [row for row in found if identity in row["nodes"] and row["nodes"].count("127.0.0.2") == 2]


@pytest.mark.slow
def test_a_cluster_for_this_run_alone(
    scenario: Callable,
    system: Callable,
    tmp_path: Path,
    tunegym: Callable,
    ray_cluster: ThreeNodes,
    wait_until: Callable,
) -> None:
    """Without an address, whatever RAY_ADDRESS says. It ends with the run, and leaves no files."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short: sockets lie below it
    env = {**os.environ, "RAY_ADDRESS": ray_cluster.address, "TMPDIR": str(folder)}
    tunegym("run", scenario(), "--system", system(slots=1), "--output", tmp_path / "out", code=0, env=env, timeout=200)
    assert {row["status"] for row in rows(tmp_path / "out")} == {"measured"}
    ours = {node.node_id[:8] for node in ray_cluster.all_nodes}
    assert not [row for row in rows(tmp_path / "out") if any(node in row["nodes"] for node in ours)]
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.mark.slow
def test_a_head_that_is_gone(
    scenario: Callable, system: Callable, tmp_path: Path, start_tunegym: Callable, wait_until: Callable
) -> None:
    """Trials go on, the progress says what is missing, and after a while the run ends in good order."""
    began, log = tmp_path / "began", tmp_path / "log"
    with three_nodes() as cluster:
        arguments = "--system", system(cluster.address), "--output", tmp_path / "out"
        driver = start_tunegym("run", scenario(steps=1000, pause=1), *arguments, log=log)
        wait_until(lambda: driver.poll() or (began.exists() and began.read_text().count("\n") >= 3), deadline_s=120)
        cluster.kill_head()
        wait_until(lambda: driver.poll() or "waiting the Ray cluster at" in log.read_text(), deadline_s=120)
        assert driver.wait(200) == 1
    assert "hint: start the cluster, then resume the run" in log.read_text()
    assert "to continue: tunegym resume" in log.read_text()


def test_dry_run_and_verify(scenario: Callable, system: Callable, tunegym: Callable) -> None:
    """Neither asks a cluster."""
    settings = system("127.0.0.3:1", num_gpus=0.5, resources={"disk": 2})
    shown = tunegym("dry-run", scenario(), "--system", settings, code=0).stdout
    assert "# Ray: 127.0.0.3:1; a trial takes 1 CPU, 0.5 GPU, 2 disk" in shown
    assert "/job.py" in shown
    tunegym("verify", settings, code=0)
    done = tunegym("verify", system(num_cpus=-1, nodes=3), code=2)
    assert "nodes" in done.stderr
