"""Checkpoints: whole or not at all, and whatever becomes of the file is no reason to fail."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.tuning.agents.sb3.checkpoints import PolicyFiles

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow  # torch takes seconds to import

Make = Callable[..., Any]
SEEN = np.ones(3, dtype=np.float32)


def checkpoint_of(learner: Any, agent: str = "ppo", closed: int = 7) -> Any:
    from tunegym.tuning.agents.sb3.algorithms import state_of
    from tunegym.tuning.agents.sb3.checkpoints import Checkpoint

    return Checkpoint(agent, closed, "MultiDiscrete", state_of(learner.model))


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", "sac"])
def test_what_is_loaded_is_what_was_saved(agent: str, learner: Make, step: Make, tmp_path: Path) -> None:
    ours, other = learner(agent, seed=1), learner(agent, seed=2)
    for number in range(1, 20):
        ours.take(step(ours, number, float(number % 5), terminated=True))
    ours.train(19)
    files = PolicyFiles(tmp_path, agent)
    files.save(checkpoint_of(ours, agent))
    loaded = files.last()
    assert loaded is not None
    assert (loaded.closed, loaded.actions) == (7, "MultiDiscrete")
    assert not other.trained
    assert files.restore(other, loaded)
    assert other.trained
    for number in range(200, 210):
        assert ours.act(SEEN, 1).value == other.act(SEEN, 1).value
        np.testing.assert_array_equal(ours.greedy(SEEN * number)[0], other.greedy(SEEN * number)[0])
    if agent == "sac":
        assert other.model.log_ent_coef.item() == ours.model.log_ent_coef.item() != 0.0


def test_the_model_is_the_librarys_own(learner: Make, tmp_path: Path) -> None:
    from stable_baselines3 import DQN

    ours = learner("dqn")
    PolicyFiles(tmp_path, "dqn").save_model(ours.model)
    model = DQN.load(tmp_path / "policy" / "model.zip")
    assert model.predict(SEEN, deterministic=True)[0] == ours.greedy(SEEN)[0]
    assert "tunegym" not in type(model.replay_buffer).__module__


def test_another_agents_is_none(learner: Make, tmp_path: Path) -> None:
    PolicyFiles(tmp_path, "ppo").save(checkpoint_of(learner("ppo")))
    assert PolicyFiles(tmp_path, "a2c").last() is None


def test_nothing_in_it_is_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint from somewhere else is data."""
    import torch

    place = tmp_path / "policy" / "checkpoint.pt"
    place.parent.mkdir()
    torch.save({"format": 1, "agent": "ppo", "closed": 1, "actions": "", "state": Trap()}, place)
    assert PolicyFiles(tmp_path, "ppo").last() is None
    assert "the policy starts from scratch" in caplog.text
    assert not (tmp_path / "run").exists()


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch run",)


def test_a_newer_format_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import torch

    place = tmp_path / "policy" / "checkpoint.pt"
    place.parent.mkdir()
    torch.save({"format": 2}, place)
    assert PolicyFiles(tmp_path, "ppo").last() is None
    assert "format 2, and only 1 is known here" in caplog.text


def test_a_full_disk_is_warned_of_and_leaves_the_last_one(
    learner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = PolicyFiles(tmp_path, "ppo")
    ours = learner("ppo")
    files.save(checkpoint_of(ours, closed=7))
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _no_space)
        files.save(checkpoint_of(ours, closed=9))
        files.save_model(ours.model)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "a checkpoint could not be written: No space left on device" in caplog.text
    assert "the model could not be written: No space left on device" in caplog.text
    assert sorted(file.name for file in (tmp_path / "policy").iterdir()) == ["checkpoint.pt"]
    loaded = files.last()
    assert loaded is not None
    assert loaded.closed == 7


def _no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
