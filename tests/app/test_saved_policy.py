"""An agent's policy is saved with the results, however its run ended, and never fails the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, document, embedded, run_until
from tests.conftest import no_space

import tunegym as library
from tunegym.tuning.agents import policies
from tunegym.tuning.reports.results import find_run

Make = Callable[..., dict[str, Any]]

AGENTS = """
import sys
import numpy as np
import tunegym
from tunegym.tuning.agents.policies import PolicyChoice

class Chooses(tunegym.BaseAgent):
    supports_variable_environment = True
    closed = False

    def select_action(self, observation):
        return {"x": 1 + observation.number % 3}

    def choose(self, context):
        assert not self.closed
        return PolicyChoice({"x": np.int64(2 if type(context["load"]) is int else 3)}, np.float32(0.5))

    def close(self):
        self.closed = True

class Fails(Chooses):
    def run(self):
        super().run()
        return 4

class Raises(Chooses):
    def run(self):
        super().run()
        raise LookupError("own mistake")

class ChooseRaises(Chooses):
    def choose(self, context):
        raise LookupError("no idea")

class ChooseExits(Chooses):
    def choose(self, context):
        sys.exit(3)

class ChoosesNonsense(Chooses):
    def choose(self, context):
        return PolicyChoice({"x": 99})
"""


@pytest.fixture
def scenario(write: Write) -> Make:
    def make(agent: str, slots: int = 1) -> dict[str, Any]:
        write("work.py", "def value(x, load): return x")
        write("mine.py", AGENTS)
        args = {"callable": "work:value", "x": [1, 2, 3], "load": [1, 1.0, True]}
        drawn = {"load": {"weights": [0.5, 0.5, 0.0]}}
        return document(slots=slots, agent=f"mine:{agent}", agent_steps=6, args=args, env_params=drawn)

    return make


def saved() -> policies.PolicyTable | None:
    return policies.load(find_run(Path("results")) / "e")


@pytest.mark.parametrize(("agent", "slots", "code"), [("Chooses", 1, 0), ("Chooses", 4, 0), ("Fails", 1, 1)])
def test_a_finished_run_saves_the_policy(scenario: Make, agent: str, slots: int, code: int) -> None:
    assert library.run(scenario(agent, slots)) == code
    table = saved()
    assert table is not None
    assert (table.agent, table.trials) == (f"mine:{agent}", 6)
    found = [(one.action, one.chance, one.context) for one in table.choices]
    assert found == [({"x": 2}, 0.5, {"load": 1}), ({"x": 3}, 0.5, {"load": 1.0})], "weight 0 is never drawn"
    answer = library.recommend("results", {"load": 1.0})
    assert (answer.policy, dict(answer.action)) == (True, {"x": 3})


def test_an_exception_saves_nothing(scenario: Make) -> None:
    with pytest.raises(LookupError, match="own mistake"):
        library.run(scenario("Raises"))
    assert saved() is None


def test_an_interrupted_run_saves_it_and_a_resume_again(scenario: Make) -> None:
    run = run_until(3, scenario("Chooses"))
    (one,) = embedded(run)["experiments"]
    assert (one["state"], one["trials"]["done"]) == ("interrupted", 3)
    table = saved()
    assert table is not None
    assert table.trials == 3
    (run / "e" / "policy" / "policy.json").write_text("{")
    assert library.resume("results", agent_steps=9) == 0
    table = saved()
    assert table is not None
    assert table.trials == 9


@pytest.mark.parametrize("agent", ["ChooseRaises", "ChooseExits", "ChoosesNonsense", "Chooses"])
def test_a_policy_that_can_not_be_saved_is_a_warning(
    scenario: Make,
    agent: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if agent == "Chooses":
        monkeypatch.setattr(policies, "save", no_space)
    assert library.run(scenario(agent)) == 0
    assert "the policy of e could not be saved" in caplog.text
    assert (agent == "Chooses") == ("could not be saved: No space left on device" in caplog.text)
    assert saved() is None
    assert not library.recommend("results", {"load": 1}).policy
