"""Early stopping saves work, and loses neither the optimum nor a trial."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.soundness import assert_sound

import tunegym as face
from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.stores import reader

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

STAGES = 27
POINTS = 61
OPTIMUM = 52
PRUNERS = ["median", "hyperband"]

STAGED = """
import math, os, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))

def level(x):
    return 1 - abs(x * 17 % 61 - 30) / 31  # 52 is the best of 0..60, and its neighbours are no better than others

def value(x, stage):
    return level(x) * (1 - math.exp(-stage / 6)) + 0.03 * math.sin(3 * x + stage)  # curves cross now and then

def work(x):
    while str(x) == os.environ.get("HELD") and not os.path.exists(os.path.join(HERE, "go")):
        time.sleep(0.01)
    for stage in range(1, 28):
        with open(os.path.join(HERE, "work.log"), "a") as log:
            log.write("#")
        time.sleep(float(os.environ.get("STAGE_S", "0")))
        yield stage, value(x, stage)

def train(x, report):
    for stage, score in work(x):
        report(stage, score)
    return {"score": score}

if __name__ == "__main__":
    for stage, score in work(int(sys.argv[1])):
        print(f"stage {stage}: score={score!r}", flush=True)
"""


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "staged_function.py").write_text(STAGED)
    yield tmp_path / "staged_function.py"
    sys.modules.pop("staged_function", None)


def document(kind: str, pruner: Any, seed: int, points: int = POINTS, **system: Any) -> dict[str, Any]:
    """A grid over all points from a start that the seed draws; ``kind`` says how the function is run."""
    experiment: dict[str, Any] = {
        "name": "e",
        "agent_metrics": ["score"],
        "agent": "grid_search",
        "agent_config": {"start_action": "random"},
        "cmd_args": {"callable": "staged_function:train", "x": {"low": 0, "high": points - 1, "step": 1}},
        "workload": "python",
    }
    if pruner is not None:
        experiment["pruner"] = pruner
    if kind == "in process":
        experiment["isolate"] = False
    elif kind == "command":
        experiment["workload"] = "command"
        program = f"{sys.executable} {{scenario_dir}}/staged_function.py {{x}}"
        experiment["cmd_args"] = {"command": program, "x": experiment["cmd_args"]["x"]}
        experiment["metrics"] = {"score": {"regex": "score=([-0-9.e]+)", "stream": True}}
    return {"name": "staged", "seed": seed, "system": system, "experiments": [experiment]}


def run(scenario: dict[str, Any], folder: Path) -> tuple[int, Any]:
    """How many stages were worked on, and the results."""
    log = folder / "work.log"
    log.unlink(missing_ok=True)
    output = folder / f"out-{time.monotonic_ns()}"
    assert face.run(scenario, output=output) == 0
    (results,) = assert_sound(next((output / "staged").iterdir())).values()
    return log.stat().st_size, results


@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_pruning_saves_work_and_keeps_the_optimum(staged: Path, tmp_path: Path, pruner: str, seed: int) -> None:
    """At least 40 % of the stages, as the function itself counts them."""
    full, unpruned = run(document("in process", None, seed), tmp_path)
    assert full == POINTS * STAGES
    assert unpruned.best.action == {"x": OPTIMUM}
    work, pruned = run(document("in process", pruner, seed), tmp_path)
    assert work <= 0.6 * full
    assert pruned.best.action == {"x": OPTIMUM}
    assert pruned.best.reward == unpruned.best.reward
    assert work == sum(len(trial.reports) for trial in pruned)
    count = sum(trial.status == "pruned" for trial in pruned)
    assert pruned.counts().row["pruned"] == str(count)
    assert f"{count} x pruned: what it reported was hopeless" in pruned.summary().lines[0]


@pytest.mark.parametrize("pruner", PRUNERS)
def test_side_by_side(staged: Path, tmp_path: Path, pruner: str) -> None:
    """Whatever the order in which values come: every number once, the optimum found, work saved."""
    work, results = run(document("in process", pruner, 2, slots=4), tmp_path)
    assert work <= 0.6 * POINTS * STAGES
    assert results.best.action == {"x": OPTIMUM}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["isolated", "command"])
@pytest.mark.parametrize("pruner", PRUNERS)
def test_killed_and_resumed_it_decides_the_same(
    staged: Path,
    tmp_path: Path,
    kind: str,
    pruner: str,
    start_tunegym: Start,
    wait_until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill -9 in the middle, again and again: every number once, pruned where it would have been."""
    scenario = face.scenario({**document(kind, pruner, 3, points=24), "scenario_dir": str(tmp_path)})
    _, calm = run(document("in process", pruner, 3, points=24), tmp_path)
    monkeypatch.setenv("STAGE_S", "0.005")
    monkeypatch.setenv("HELD", str(calm.trials[-1].action["x"]))  # the last trial waits for the last session
    (tmp_path / "staged.toml").write_text(dump_toml(scenario.document))
    output, log = tmp_path / "stormy", tmp_path / "log.txt"
    process = start_tunegym("run", tmp_path / "staged.toml", "--output", output, log=log)
    rng = random.Random(len(kind) + len(pruner))

    def closed() -> int:
        return sum(reader.scan(journal).closed for journal in output.rglob(reader.JOURNAL))

    for target in (4, 9, 15, 20):
        wait_until(lambda target=target: closed() >= target, "trials")
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        process.wait()
        process = start_tunegym("resume", output, log=log)
    (tmp_path / "go").touch()
    assert process.wait(timeout=120) == 0, log.read_text()
    (results,) = assert_sound(next((output / "staged").iterdir())).values()
    assert len(results.journal.sessions) == 5
    assert [_decided(trial) for trial in results.trials] == [_decided(trial) for trial in calm.trials]


def _decided(trial: Trial) -> tuple[Any, ...]:
    """What a trial was, without what only time decides."""
    score = trial.metrics.get("score")
    return trial.number, trial.action, trial.status, trial.reason, trial.reward, trial.reports, score
