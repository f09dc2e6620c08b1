"""The seam between a run and a runner with settings: configuration, refusals, previews, and where jobs ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Cli

from tunegym.app.kinds import kind_of
from tunegym.app.run import as_scenario, run
from tunegym.core.errors import ConfigError, TunegymError
from tunegym.core.stop import Stop
from tunegym.tuning.reports.results import find_run, load

Write = Callable[..., Path]

RUNNER = """
from dataclasses import dataclass, replace

from tunegym.core.errors import TunegymError
from tunegym.tuning.runners.local import LocalRunner


@dataclass(frozen=True)
class Config:
    queue: str
    largest: int = 4


class Cluster(LocalRunner):
    Config = Config
    waiting = "1 job pending: Resources"

    def __init__(self, token, slots, config, scenario_dir):
        super().__init__(token, slots)
        self.config, self.scenario_dir = config, scenario_dir

    def check(self, experiments):
        for one in experiments:
            if one.parameters({}, {}).get("num_nodes", 1) > self.config.largest:
                raise TunegymError(f"{self.config.queue} has {self.config.largest} nodes", hint="ask for fewer")

    def script(self, job):
        return f"submit --queue {self.config.queue} --nodes {job.num_nodes}"

    def run(self, job, started, watch=None):
        result = super().run(job, started, watch)
        return replace(result, nodes=("bad", "good") if job.name == "2" else ("good",))
"""

SYSTEM = """
[system]
runner = "their_cluster:Cluster"
queue = "short"
"""


@pytest.fixture
def scenario(write_scenario: Write, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two trials, a runner beside them, and ``system.toml``."""
    monkeypatch.syspath_prepend(str(write("their_cluster.py", RUNNER).parent))
    write("system.toml", SYSTEM)
    return write_scenario(args={"command": "echo value={x}", "x": [1, 2]}, num_nodes=2)


def test_a_system_file_replaces_the_system(scenario: Path, cli: Cli) -> None:
    shown = cli("dry-run", scenario, "--system", "system.toml", code=0).stdout
    assert "submit --queue short --nodes 2" in shown
    assert "submit" not in cli("dry-run", scenario, code=0).stdout
    assert "ok: system.toml (a system file)" in cli("verify", "system.toml", code=0).stdout


def test_a_record_has_the_nodes_of_every_attempt(scenario: Path) -> None:
    assert run(scenario, system="system.toml") == 0
    folder = find_run(Path("results"))
    found = load(folder).experiments["e"]
    assert [trial.nodes for trial in found] == [("good",), ("bad", "good")]
    assert list(found.to_pandas()["nodes"]) == ["good", "bad good"]
    rows = (folder / "e" / "trajectory.csv").read_text().splitlines()
    assert [row.split(",")[-2] for row in rows] == ["nodes", "good", "bad good"]
    assert 'queue = "short"' in (folder / "scenario.toml").read_text()


def test_a_run_without_a_cluster_names_no_nodes(scenario: Path) -> None:
    assert run(scenario) == 0
    folder = find_run(Path("results"))
    assert (
        (folder / "e" / "trajectory.csv")
        .read_text()
        .startswith("step,status,cached,reward,action.x,observation.value,duration_s,phase\n")
    )
    assert "nodes" not in load(folder).experiments["e"].to_pandas()


def test_what_a_cluster_can_never_run_is_refused_before_anything_is_written(scenario: Path) -> None:
    with pytest.raises(TunegymError, match="short has 1 nodes"):
        run(scenario, system="system.toml", overrides=["system.largest=1"])
    assert not Path("results").exists()


def test_the_progress_shows_what_a_cluster_waits_for(scenario: Path, tmp_path: Path) -> None:
    checked = as_scenario(scenario, system="system.toml")
    session = kind_of(checked.experiments[0]).open(checked, checked.experiments[0], tmp_path / "e", stop=Stop())
    try:
        assert session.progress().shown["waiting"] == "1 job pending: Resources"
    finally:
        session.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[system]\nrunner = "their_cluster:Cluster"\n', "system.queue: "),
        (f"{SYSTEM}queu = 1\n", "system.queu: unknown key"),
        ('[system]\nqueue = "short"\n', "system.queue: unknown key"),
        (f"{SYSTEM}slots = 0\n", "system.slots: "),
        (f"seed = 1\n{SYSTEM}", "seed: unknown key"),
        ("system = 3\n", "no table [system]"),
    ],
)
def test_a_bad_system_file_is_named_with_its_line(scenario: Path, write: Write, text: str, said: str) -> None:
    path = write("bad.toml", text)
    with pytest.raises(ConfigError) as caught:
        as_scenario(scenario, system=path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "hint: " in str(caught.value)
