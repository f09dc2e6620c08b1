"""kill -9 of collectors, ranks, the learner and the ledger's host: the budget is met, and the account balances."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.asyncrl.conftest import Change, assert_balanced, experiment_of, log_of, sound
from tests.conftest import COMMAND

from tunegym.core.files import dump_toml

WHO = {"collector": "asyncrl.collector:main", "rank": "asyncrl.ranks:main", "host": "dataplane.hosts"}


def processes(who: str, driver: int, folder: Path) -> list[int]:
    """Those of this run: children of its driver, or the host of its plane."""
    try:
        there = psutil.process_iter() if who == "host" else psutil.Process(driver).children()
        lines = [(one.pid, " ".join(one.cmdline())) for one in there]
    except psutil.Error:  # one ended just now
        return []
    return [pid for pid, line in lines if WHO[who] in line and (who != "host" or f"{folder}/plane" in line)]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("steps", "rounds"),
    [pytest.param(60_000, 2, marks=pytest.mark.slow), pytest.param(240_000, 8, marks=pytest.mark.chaos)],
)
def test_a_training_outlives_its_processes(tmp_path: Path, reference: Change, steps: int, rounds: int) -> None:
    document = reference(agent_steps=steps, dp_world=2, checkpoint_every=3, batch=8)
    path = tmp_path / "scenario.toml"
    path.write_text(dump_toml(document), encoding="utf-8")
    results, rng = tmp_path / "results", random.Random(rounds)
    victims = [who for _ in range(rounds) for who in ("collector", "rank", "host", "learner")]
    command = [*COMMAND, "run", str(path), "--output", str(results)]
    killed: list[str] = []
    with (tmp_path / "said.txt").open("wb") as said:
        while True:
            driver = subprocess.Popen(command, stdout=said, stderr=said)
            while driver.poll() is None:
                time.sleep(rng.uniform(0.3, 1.0))
                folder = next((one.parent for one in results.rglob("async.jsonl")), None)
                if not victims or folder is None or not log_of(folder)[0]:
                    continue
                who = victims[0]
                pids = [driver.pid] if who == "learner" else processes(who, driver.pid, folder)
                if pids:
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    killed.append(victims.pop(0))
            if driver.returncode != -signal.SIGKILL:
                break
            command = [*COMMAND, "resume", str(results)]
    assert driver.returncode == 0, (tmp_path / "said.txt").read_text()
    assert "learner" in killed  # if not all of them, since it was done so soon
    assert sound(results).steps == steps
    account = assert_balanced(experiment_of(results))
    assert account["trained"] > 0
    versions, _ = log_of(experiment_of(results))
    assert all(int(age) <= 1 for line in versions for age in line["ages"])
