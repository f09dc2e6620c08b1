"""Policy agents when things go wrong: kills, damaged checkpoints, failing algorithms, full disks."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app.conftest import Start, Write, closed, document, run_until
from tests.soundness import assert_sound

import tunegym as library
from tunegym.core.files import dump_toml
from tunegym.tuning.agents import policies
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import EndRecord

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Document = dict[str, Any]

WORK = """
import threading, time
from pathlib import Path

called = 0
calling = threading.Lock()

def value(a, b, load, pause=0.0):
    time.sleep(pause)
    return {"value": 10.0 - 3.0 * abs(a - load) - abs(b - 2)}

def held(**parameters):
    global called
    with calling:
        called += 1
        last = called > int(Path(__file__).with_name("calls.txt").read_text())
    while last:
        time.sleep(1)
    return value(**parameters)
"""


@pytest.fixture
def scenario(write: Write) -> Callable[..., Document]:
    """Three contexts, twelve settings, and settings of the agents that make them learn early."""
    write("work.py", WORK)

    def make(agent: str, steps: int | None = 60, slots: int = 1, pause: float = 0.0, **more: Any) -> Document:
        config: Document = {"checkpoint_every": 20, **more.pop("agent_config", {})}
        config |= {"n_steps": 20} if agent.endswith(("ppo", "a2c")) else {"learning_starts": 10, "batch_size": 32}
        ranges = {"a": {"low": 1.0, "high": 3.0}, "b": {"low": 0.0, "high": 3.0}}
        knobs: Document = ranges if agent == "sac" else {"a": [1, 2, 3], "b": [0, 1, 2, 3]}
        args = {"callable": f"work:{more.pop('function', 'value')}", "load": [1, 2, 3], "pause": pause, **knobs}
        keys = {"agent": agent, "agent_steps": steps, "cache": "off", "keep": "none", "env_params": {"load": {}}}
        return document(seed=4, slots=slots, args=args, agent_config=config, **keys, **more)

    return make


def results_of(folder: str | Path, **more: Any) -> TrialResults:
    return assert_sound(folder, **more)["e"]


def policy_of(folder: str | Path) -> policies.PolicyTable:
    table = policies.load(find_run(Path(folder)) / "e")
    assert table is not None
    return table


def checkpointed(folder: Path) -> int | None:
    """How many trials the last checkpoint has seen."""
    import torch

    place = folder / "policy" / "checkpoint.pt"
    return torch.load(place, weights_only=True)["closed"] if place.exists() else None


# kill -9 --------------------------------------------------------------------------------------------------


@pytest.mark.invariant
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("agent", "slots", "moments"),
    [
        ("ppo", 1, (8, 75, 200)),
        ("dqn", 1, (75, 200)),
        ("ppo", 3, (129,)),
        ("rllib_ppo", 3, (8, 129)),
        ("rllib_dqn", 1, (75,)),
    ],
)
def test_a_killed_run_continues_from_its_checkpoint(
    agent: str,
    slots: int,
    moments: tuple[int, ...],
    scenario: Callable[..., Document],
    start_tunegym: Start,
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Trials are held back at each moment, so that chance has no part in it."""
    steps, calls, output, log = 360, tmp_path / "calls.txt", tmp_path / "killed", tmp_path / "log.txt"
    (tmp_path / "s.toml").write_text(dump_toml(scenario(agent, steps, slots=slots, function="held")))
    calls.write_text(str(moments[0]))
    process = start_tunegym("run", "s.toml", "--output", output, log=log)
    for moment, following in zip(moments, [*moments[1:], steps], strict=True):
        wait_until(lambda moment=moment: closed(output) >= moment, f"trial {moment}: {log.read_text()}")
        process.kill()
        process.wait()
        assert closed(output) == moment
        calls.write_text(str(following - moment))
        checkpoint = checkpointed(find_run(output) / "e")
        assert (checkpoint is None) == (moment < 20)
        where = "without a checkpoint" if checkpoint is None else f"from its checkpoint after {checkpoint} trials"
        log.write_text("")
        process = start_tunegym("resume", output, log=log)
        expected = f"{agent} continues {where}"
        wait_until(lambda expected=expected: expected in log.read_text(), f"{expected}: {log.read_text()}")
    assert process.wait(240) == 0, log.read_text()
    assert [trial.status for trial in results_of(output).trials] == ["measured"] * steps
    assert library.resume(output, agent_steps=steps + 30) == 0
    results = results_of(output)
    assert len(results.trials) == steps + 30
    curve = [json.loads(line)["trials"] for line in (results.folder / "policy" / "training.jsonl").open()]
    assert curve == sorted(curve)
    assert curve[-1] == steps + 30


# runs that are continued ------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "sac", "rllib_ppo", "rllib_dqn"])
def test_a_finished_run_can_be_extended(
    agent: str, scenario: Callable[..., Document], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tunegym")
    assert library.run(scenario(agent, 50), output="run") == 0
    folder = find_run(Path("run")) / "e" / "policy"
    kept = {"checkpoint.pt", "policy.json", "training.jsonl"}
    assert {file.name for file in folder.iterdir()} == {*kept, "module" if "rllib" in agent else "model.zip"}
    before = {name: (folder / name).read_bytes() for name in kept}
    assert library.resume("run") == 0
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert f"{agent} continues from its checkpoint after 50 trials" in caplog.text
    assert "on record are not in it" not in caplog.text
    assert library.resume("run", agent_steps=80, slots=2) == 0
    assert len(results_of("run").trials) == 80
    assert policy_of("run").trials == 80


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_a_stopped_run_has_learned_from_all_its_trials(agent: str, scenario: Callable[..., Document]) -> None:
    run = run_until(55, scenario(agent, 100), output="run")
    assert len(results_of(run, complete=False).trials) == 55
    checkpoint = checkpointed(run / "e")
    assert checkpoint == policy_of(run).trials == 55
    assert library.resume("run") == 0
    assert len(results_of("run").trials) == 100


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "sac"])
def test_a_budget_that_counts_no_trials(agent: str, scenario: Callable[..., Document]) -> None:
    assert library.run(scenario(agent, None, stop_after_no_improvement=40), output="run") == 0
    assert policy_of("run").trials == len(results_of("run").trials) > 10


# checkpoints that are of no use ---------------------------------------------------------------------------


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


EMPTY: Document = {"format": 1, "agent": "ppo", "closed": 1, "actions": "", "state": {}}


@pytest.mark.parametrize(
    ("agent", "damage", "said"),
    [
        *((agent, "torn", "is damaged") for agent in ("ppo", "dqn")),
        ("ppo", "nan", "not of finite numbers"),
        ("dqn", "unfit", "size mismatch for "),
        ("ppo", {**EMPTY, "state": Trap()}, "is damaged"),
        ("ppo", {"format": 1, "agent": "ppo"}, "is damaged"),
        ("ppo", {"format": 2}, "has format 2, and only 1 is known here"),
        ("ppo", EMPTY, "its checkpoint doesn't fit: "),
    ],
)
def test_a_damaged_checkpoint_starts_from_scratch(
    agent: str, damage: Any, said: str, scenario: Callable[..., Document], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing in it is executed."""
    import torch

    assert library.run(scenario(agent, 40), output="run") == 0
    place = find_run(Path("run")) / "e" / "policy" / "checkpoint.pt"
    if damage == "torn":
        place.write_bytes(place.read_bytes()[:1000])
    elif isinstance(damage, dict):
        torch.save(damage, place)
    else:
        document = torch.load(place, weights_only=True)
        weights = document["state"]["model"]["policy"]
        last = next(reversed(weights))
        weights[last] = torch.zeros(3) if damage == "unfit" else weights[last].fill_(float("nan"))
        torch.save(document, place)
    place.with_name("checkpoint.pt.new").write_bytes(b"left by a kill")
    assert library.resume("run", agent_steps=80) == 0
    assert "the policy starts from scratch: " in caplog.text
    assert said in caplog.text
    assert not Path("executed").exists()
    assert len(results_of("run").trials) == 80
    assert checkpointed(place.parents[1]) == 80
    assert {file.suffix for file in place.parent.iterdir()} == {".pt", ".json", ".jsonl", ".zip"}


# an algorithm that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("agent", "slots"), [("ppo", 1), ("ppo", 3), ("dqn", 1)])
def test_a_training_error_loses_nothing(
    agent: str,
    slots: int,
    scenario: Callable[..., Document],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rewards that become NaN from the 45th trial on are as good as any other reason."""
    from tunegym.tuning.inference.experience import Experience

    rewards = Experience.rewards
    document = scenario(agent, 100, slots=slots, pause=0.002)
    other = {**document["experiments"][0], "name": "next", "agent": "random_search", "agent_steps": 5}
    document["experiments"].append({**other, "agent_config": {}})
    with monkeypatch.context() as patched:
        patched.setattr(Experience, "rewards", lambda self: rewards(self) * (1.0 if len(self) < 45 else np.nan))
        assert library.run(document, output="run") == 1
    checked = assert_sound("run")
    trials = checked["e"].trials
    assert 45 <= len(trials) < 70
    assert {trial.status for trial in trials} == {"measured"}, "those in flight were waited for"
    assert len(checked["next"].trials) == 5
    ended = [record for record in reader.entries(checked["e"].path) if isinstance(record, EndRecord)]
    assert [record.code for record in ended] == [1]
    assert "training failed after" in str(ended)
    assert "the agent of e returned 1: training failed after" in caplog.text
    assert "smaller learning_rate" in caplog.text or "NaN" in caplog.text or "nan" in caplog.text
    table = policy_of("run")
    assert table.trials <= 45, "the policy is that of the last checkpoint"
    assert library.resume("run") == 0
    assert len(assert_sound("run")["e"].trials) == 100
