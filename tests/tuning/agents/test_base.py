"""The default loop: what an agent sees, is told, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, EnvParam
from tunegym.tuning.model.trial import Feedback, Observation

Benches = Callable[..., Any]

LOAD = {"load": EnvParam(Choice((1, 2, 3)))}


def measure(x: int, **_: Any) -> dict[str, float]:
    if x == 9:
        raise ValueError("no")
    return {"m": float(x)}


class Recorder(BaseAgent):
    """Plays a list of actions and keeps what it sees."""

    plan: tuple[int, ...] = (1, 2, 9, 4, 2)

    def __init__(self, env: Any, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        self.seen: list[Observation] = []
        self.told: list[Feedback] = []

    def select_action(self, observation: Observation) -> dict[str, int] | None:
        self.seen.append(observation)
        if observation.number > len(self.plan):
            return None
        return {"x": self.plan[observation.number - 1]}

    def update_policy(self, feedback: Feedback) -> None:
        self.told.append(feedback)


def test_feedback_at_width_one(bench: Benches) -> None:
    """What it acted on, what it sees now, what became of it."""
    one = bench(measure, env_params=LOAD, budget=Budget(agent_steps=5), constraints=[lambda p: p["x"] != 4])
    agent = Recorder(one.engine)
    assert agent.run() == 0
    trials = one.trials()
    assert [feedback.trial_index for feedback in agent.told] == [1, 2, 3, 4, 5]
    for feedback, trial, seen in zip(agent.told, trials, agent.seen, strict=True):
        assert feedback.prev_observation == seen
        assert feedback.prev_observation.number == trial.number
        assert feedback.prev_observation.context == feedback.context == trial.context
        assert feedback.observation == Observation(
            trial.number + 1, one.engine.context(trial.number + 1), trial.metrics, trial.measured
        )
        assert (feedback.value, feedback.action, feedback.status) == (trial.reward, trial.action, trial.status)
        assert feedback.cached == (trial.cached_from is not None)
    for before, after in zip(agent.told, agent.told[1:], strict=False):
        assert after.prev_observation == before.observation  # threaded
    assert [feedback.status for feedback in agent.told] == ["measured", "measured", "failed", "infeasible", "measured"]
    assert [feedback.done for feedback in agent.told] == [False] * 4 + [True]


def test_observation_is_threaded_per_lane(bench: Benches) -> None:
    """Trials end out of order, and still each lane sees its own."""
    gates = {x: threading.Event() for x in range(1, 9)}
    order = [2, 1, 3, 5, 4, 6, 8, 7]
    gates[order[0]].set()

    def function(x: int) -> dict[str, float]:
        assert gates[x].wait(60)
        return {"m": float(x)}

    class OneAtATime(Recorder):
        plan = tuple(range(1, 9))

        def update_policy(self, feedback: Feedback) -> None:
            super().update_policy(feedback)
            if len(self.told) < len(order):
                gates[order[len(self.told)]].set()

    one = bench(function, slots=2, budget=Budget(agent_steps=8))
    agent = OneAtATime(one.engine)
    assert agent.run() == 0
    assert [feedback.trial_index for feedback in agent.told] == order
    lanes: dict[int, int] = {}  # trial number -> the trial that its lane ran before
    for feedback in agent.told:
        assert feedback.observation.metrics == {"m": float(feedback.trial_index)}
        lanes[feedback.observation.number] = feedback.trial_index
    for feedback in agent.told:
        before = lanes.get(feedback.trial_index)
        assert feedback.prev_observation.number == feedback.trial_index
        assert feedback.prev_observation.metrics == ({"m": float(before)} if before is not None else {})
    assert [feedback.done for feedback in agent.told] == [False] * 6 + [True] * 2


def test_a_budget_used_up_while_the_agent_thinks_is_no_error(bench: Benches, clock: Any) -> None:
    """The decision comes too late and is dropped. The time before the first one costs nothing."""

    class Slow(Recorder):
        def select_action(self, observation: Observation) -> dict[str, int] | None:
            clock.now += 4.0
            return super().select_action(observation)

    one = bench(measure, clock=clock, budget=Budget(max_time_s=10.0))
    assert Slow(one.engine).run() == 0
    assert [trial.number for trial in one.trials()] == [1, 2, 3]
