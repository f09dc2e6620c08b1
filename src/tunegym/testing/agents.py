"""What every agent must do. Subclass ``AgentSuite``, name your agent, and let pytest collect it.

::

    class TestMine(AgentSuite):
        agent = MyAgent
        config = {"random_seed": 7}

The agent drives a real engine, journal and in-process runner over a small landscape of this module.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pytest

from tunegym.config.problems import Findings
from tunegym.config.schema import checked_config
from tunegym.core.errors import ConfigError
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.envs.trials.engine import Parts, TrialEngine
from tunegym.tuning.model.context import EnvParam, EnvParams
from tunegym.tuning.model.expression import FunctionConstraint
from tunegym.tuning.model.scenario import Budget, Experiment
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.trial import Feedback, OpenTrial, Trial
from tunegym.tuning.ports import Agent, Env
from tunegym.tuning.rewards import identity
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.workloads.python import PythonWorkload


def plain(**parameters: Any) -> dict[str, float]:
    """A landscape in which everything can be measured."""
    return {"score": sum(_height(name, value) for name, value in parameters.items())}


def cliffs(**parameters: Any) -> dict[str, float]:
    """The same, but a third of it crashes."""
    if crc32(repr(sorted(parameters.items())).encode()) % 3 == 0:
        raise ValueError("fell off")
    return plain(**parameters)


def abyss(**parameters: Any) -> dict[str, float]:
    """Nothing can be measured."""
    raise ValueError(f"no ground under {len(parameters)} parameters")


def stages(report: Callable[[int, float], None], **parameters: Any) -> dict[str, float]:
    """The same in three stages, of which a pruner may spare itself the last."""
    score = plain(**parameters)["score"]
    for stage in (1, 2, 3):
        report(stage, score * stage / 3)
    return {"score": score}


def _height(name: str, value: Any) -> float:
    return crc32(f"{name}={value!r}".encode()) % 1000 / 1000


class AgentSuite:
    """The contract of an agent, as tests.

    Attributes:
        agent: the class (or a factory) that is called with an ``Env``, the config and a seed.
        config: its ``agent_config``, as in the TOML file.
        knobs: what it tunes; a grid must have at least ``trials`` points.
        trials: the budget; large enough that the agent is past its warm-up.
        resumes_exactly: one that learns: whether at one slot it goes on as if it had never been interrupted.
    """

    agent: ClassVar[Callable[[Env, Any, int], Agent]]
    config: ClassVar[Mapping[str, Any]] = {}
    knobs: ClassVar[Mapping[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr")),
        "level": Choice((1, 1.0, True)),
        "depth": Range(0, 30, "int", step=10),
        "share": Range(0.0, 0.3, step=0.1),
    }
    trials: ClassVar[int] = 24
    resumes_exactly: ClassVar[bool] = False

    # what it is driven with ---------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """Whether what it chooses depends on what it was told.

        By default: whether it has ``update_policy``, or a loop of its own, of which nothing is known.
        """
        own_loop = getattr(self.agent, "run", None) is not BaseAgent.run
        return self.is_told or own_loop

    @property
    def is_told(self) -> bool:
        """Whether ``BaseAgent.run`` tells it of trials."""
        own = getattr(self.agent, "update_policy", None)
        return own is not None and own is not BaseAgent.update_policy

    @property
    def env_params(self) -> Mapping[str, EnvParam]:
        """What varies around it; nothing if it can't handle that."""
        varies = getattr(self.agent, "supports_variable_environment", False)
        return {"load": EnvParam(Choice((1, 2, 3)))} if varies else {}

    def checked_config(self) -> Any:
        """``config`` as the agent's own ``Config``, checked as that of a scenario is."""
        kind = getattr(self.agent, "Config", None)
        if kind is None:
            return None
        findings = Findings("agent_config")
        config = checked_config(kind, self.config, findings)
        if config is None:
            raise ConfigError(type(self).__name__, findings.problems)
        return config

    def drive(
        self,
        folder: Path,
        *,
        steps: int | None = None,
        slots: int = 1,
        seed: int = 0,
        landscape: str = "plain",
        refuse: Callable[[Mapping[str, Any]], bool] | None = None,
        stop_after: int | None = None,
        agent: Callable[[Env, Any, int], Agent] | None = None,
    ) -> list[Trial]:
        """Run the agent on the journal in ``folder`` as an app would; every closed trial by number.

        ``stop_after`` stops the run when so many trials have been closed; call again to resume it.
        """
        experiment = self._experiment(steps or self.trials, landscape, seed)
        workload = PythonWorkload(experiment, Path.cwd())
        store = JournalStore(folder, self._head(experiment, seed), Session(workload.fingerprint()))
        runner = LocalRunner(f"suite-{uuid.uuid4().hex}", slots=slots)
        counted = _Counted()
        allowed = [FunctionConstraint("allowed", lambda p: not refuse(p))] if refuse is not None else []
        try:
            engine = TrialEngine(
                Parts(
                    experiment,
                    workload,
                    runner,
                    store,
                    identity(experiment.agent_metrics),
                    allowed,
                    folder,
                    _EverySecond if landscape == "stages" else None,
                ),
                slots=slots,
                listeners=[counted],
                stopping=lambda: stop_after is not None and counted.closed >= stop_after,
            )
            engine.take_over()
            code = self._run(agent or type(self).agent, engine, experiment.agent_config, seed)
            assert code == 0, f"run() returned {code}"
            engine.close(interrupted=stop_after is not None)
            return sorted((trial for _, trial in store.recorded()), key=lambda trial: trial.number)
        finally:
            runner.close()
            store.close()

    def _run(self, agent: Callable[[Env, Any, int], Agent], engine: TrialEngine, config: Any, seed: int) -> int:
        driver = agent(engine, config, seed)
        try:
            return driver.run()
        finally:
            driver.close()

    def _experiment(self, steps: int, landscape: str, seed: int) -> Experiment:
        return Experiment(
            name="suite",
            workload="python",
            workload_args={"callable": f"{__name__}:{landscape}"},
            space=Space(self.knobs),
            env_params=EnvParams(self.env_params, seed),
            agent="suite",
            agent_config=self.checked_config(),
            agent_metrics=("score",),
            budget=Budget(agent_steps=steps),
            isolate=False,
        )

    def _head(self, experiment: Experiment, seed: int) -> Head:
        params = {name: param.domain.spec() for name, param in experiment.env_params.params.items()}
        return Head("suite", "suite", seed, "suite", experiment.space.spec(), params, ["score"])

    # the contract -------------------------------------------------------------------------------------

    def test_same_seed_same_actions(self, tmp_path: Path) -> None:
        """Two runs alike choose alike, one trial at a time."""
        first = self.drive(tmp_path / "first", seed=3)
        assert _chosen(first) == _chosen(self.drive(tmp_path / "second", seed=3))

    @pytest.mark.parametrize("slots", [1, 3])
    def test_budget_is_exact(self, tmp_path: Path, slots: int) -> None:
        """Every number of the budget once, and none more."""
        trials = self.drive(tmp_path, slots=slots)
        assert [trial.number for trial in trials] == list(range(1, self.trials + 1))
        assert {trial.status for trial in trials} == {"measured"}

    def test_budget_of_one(self, tmp_path: Path) -> None:
        """Also when there is less to do than a warm-up would take."""
        assert [trial.number for trial in self.drive(tmp_path, steps=1, slots=2)] == [1]

    @pytest.mark.parametrize("slots", [1, 3])
    def test_survives_failures(self, tmp_path: Path, slots: int) -> None:
        """A crashing trial is data: the run goes on to its end."""
        trials = self.drive(tmp_path, slots=slots, landscape="cliffs")
        assert [trial.number for trial in trials] == list(range(1, self.trials + 1))
        assert {trial.status for trial in trials} == {"measured", "failed"}

    @pytest.mark.parametrize("slots", [1, 3])
    def test_survives_pruning(self, tmp_path: Path, slots: int) -> None:
        """A trial that was ended early is data too."""
        trials = self.drive(tmp_path, slots=slots, landscape="stages")
        assert [trial.number for trial in trials] == list(range(1, self.trials + 1))
        assert {trial.status for trial in trials} == {"measured", "pruned"}

    def test_survives_when_everything_fails(self, tmp_path: Path) -> None:
        """There is nothing to learn, and still nothing to give up for."""
        trials = self.drive(tmp_path, landscape="abyss")
        assert [trial.status for trial in trials] == ["failed"] * self.trials

    def test_survives_constraints(self, tmp_path: Path) -> None:
        """A refused action is data too."""
        name, knob = next(iter(self.knobs.items()))
        first = knob.from_unit(0.0)
        trials = self.drive(tmp_path, refuse=lambda parameters: parameters[name] == first)
        assert [trial.number for trial in trials] == list(range(1, self.trials + 1))
        assert all((trial.status == "infeasible") == (trial.action[name] == first) for trial in trials)

    @pytest.mark.parametrize("slots", [1, 3])
    def test_resumes(self, tmp_path: Path, slots: int) -> None:
        """Stopped twice and resumed: every number once, with the context that it would have had."""
        whole = self.drive(tmp_path / "whole", landscape="cliffs")
        for stop_after in (5, 6):
            part = self.drive(tmp_path / "parts", slots=slots, landscape="cliffs", stop_after=stop_after)
            assert len(part) < self.trials
        parts = self.drive(tmp_path / "parts", slots=slots, landscape="cliffs")
        assert [trial.number for trial in parts] == [trial.number for trial in whole]
        assert [trial.context for trial in parts] == [trial.context for trial in whole]
        if not self.learns or (self.resumes_exactly and slots == 1):
            assert _chosen(parts) == _chosen(whole)

    def test_finished_run_is_not_repeated(self, tmp_path: Path) -> None:
        """Resuming what is complete adds nothing; with a larger budget it goes on."""
        before = self.drive(tmp_path, steps=self.trials - 4)
        assert self.drive(tmp_path, steps=self.trials - 4) == before
        extended = self.drive(tmp_path, steps=self.trials)
        assert extended[: len(before)] == before
        assert [trial.number for trial in extended] == list(range(1, self.trials + 1))

    def test_same_actions_at_any_width(self, tmp_path: Path) -> None:
        """An agent that learns nothing chooses by the number of the trial alone."""
        if self.learns:
            pytest.skip("it learns: what it chooses depends on the order in which trials end")
        narrow = _chosen(self.drive(tmp_path / "1"))
        for slots in (2, 3, 4):
            assert _chosen(self.drive(tmp_path / str(slots), slots=slots)) == narrow

    def test_is_told_of_the_past(self, tmp_path: Path) -> None:
        """On a resume an agent that learns hears of every recorded trial, once, before it chooses anything."""
        if not self.is_told:
            pytest.skip("it isn't told of anything")
        past = self.drive(tmp_path, landscape="cliffs", stop_after=8)
        told: list[Feedback] = []
        chosen: list[int] = []
        base: Any = type(self).agent

        class Listening(base):
            def update_policy(self, feedback: Feedback) -> None:
                if not chosen:
                    told.append(feedback)
                super().update_policy(feedback)

            def select_action(self, observation: Any) -> Any:
                chosen.append(observation.number)
                return super().select_action(observation)

        listening: Any = Listening
        self.drive(tmp_path, landscape="cliffs", agent=listening)
        assert [(feedback.trial_index, feedback.value, feedback.status) for feedback in told] == [
            (trial.number, trial.reward, trial.status) for trial in past
        ]
        assert [feedback.action for feedback in told] == [trial.action for trial in past]

    def test_stops_when_asked(self, tmp_path: Path) -> None:
        """No new trial once the run is stopping; that is no failure of the agent's."""
        assert len(self.drive(tmp_path, stop_after=4)) == 4

    def test_no_global_randomness(self, tmp_path: Path) -> None:
        """Its generators are its own: it neither seeds nor draws from those that everybody shares."""
        before = random.getstate(), repr(np.random.get_state())
        self.drive(tmp_path)
        assert (random.getstate(), repr(np.random.get_state())) == before

    def test_close_twice_is_fine(self, tmp_path: Path) -> None:
        """Also without a run."""
        closed: list[int] = []

        def factory(env: Env, config: Any, seed: int) -> Agent:
            idle = type(self).agent(env, config, seed)
            idle.close()
            idle.close()
            driver = type(self).agent(env, config, seed)
            assert isinstance(driver, Agent)
            closed.append(driver.run())
            driver.close()
            return _Done(driver)

        self.drive(tmp_path, agent=factory)
        assert closed == [0]


class _EverySecond:
    """A pruner that ends every trial with an even number at its second report."""

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        return "an even number" if number % 2 == 0 and len(curve) == 2 else None

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """There is nothing to learn."""


class _Done:
    """An agent that ran already; ``close`` reaches it once more."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def run(self) -> int:
        return 0

    def close(self) -> None:
        self._agent.close()


class _Counted:
    """Counts closed trials."""

    def __init__(self) -> None:
        self.closed = 0

    def trial_opened(self, trial: OpenTrial) -> None:
        """Nothing to count."""

    def trial_closed(self, trial: Trial) -> None:
        del trial
        self.closed += 1


def _chosen(trials: list[Trial]) -> list[tuple[int, list[tuple[str, str]]]]:
    """The actions by number, in which types count."""
    return [(trial.number, [(name, repr(value)) for name, value in trial.action.items()]) for trial in trials]
