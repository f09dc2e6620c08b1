"""Contract suites for agents. Subclass one, name your agent, and let pytest collect it.

::

    class TestMine(AgentSuite):
        agent = MyAgent
        config = {"random_seed": 7}

``AgentSuite`` drives an agent of trials through a real engine, journal and in-process runner over a small landscape;
``LiveAgentSuite`` drives an agent of live experiments over a small server, ``Trail``.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.config.problems import Findings
from tunegym.config.schema import checked_config
from tunegym.core.errors import ConfigError
from tunegym.tuning.agents.base import BaseAgent, trait
from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.envs.trials.engine import Parts, TrialEngine
from tunegym.tuning.model.expression import Constraint
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.scenario import Budget, Experiment, LiveSpec
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Range, Space
from tunegym.tuning.model.trial import BASELINE, REPEAT, SEARCH, Feedback, Trial
from tunegym.tuning.ports import Agent, Env
from tunegym.tuning.rewards import identity
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.servers.host import InProcess
from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.steps import StepStore
from tunegym.tuning.stores.trials import JournalStore
from tunegym.tuning.workloads.python import PythonWorkload

# trials -------------------------------------------------------------------------------------------


def plain(**parameters: Any) -> dict[str, float]:
    """A landscape in which everything can be measured."""
    heights = [crc32(f"{name}={value!r}".encode()) % 1000 / 1000 for name, value in parameters.items()]
    return {"score": sum(heights)}


def cliffs(**parameters: Any) -> dict[str, float]:
    """``plain``, but a third of it crashes."""
    if crc32(repr(sorted(parameters.items())).encode()) % 3 == 0:
        raise ValueError("fell off")
    return plain(**parameters)


def abyss(**parameters: Any) -> dict[str, float]:
    """Nothing can be measured."""
    raise ValueError(f"no ground under {len(parameters)} parameters")


def stages(report: Callable[[int, float], None], **parameters: Any) -> dict[str, float]:
    """``plain`` in three reported stages, for pruners."""
    score = plain(**parameters)["score"]
    for stage in (1, 2, 3):
        report(stage, score * stage / 3)
    return {"score": score}


STATUSES = {
    "plain": {"measured"},
    "cliffs": {"measured", "failed"},
    "stages": {"measured", "pruned"},
    "abyss": {"failed"},
}
"""How trials end on each landscape."""


class _Suite:
    """Both suites' common part: the agent's settings, and runs that must choose alike."""

    agent: ClassVar[Callable[[Any, Any, int], Agent]]
    config: ClassVar[Mapping[str, Any]] = {}

    def checked_config(self) -> Any:
        """``config`` as the agent's own ``Config``, checked like that of a scenario."""
        findings = Findings("agent_config")
        config = checked_config(trait(self.agent, "Config"), self.config, findings)
        if config is None:
            raise ConfigError(type(self).__name__, findings.problems)
        return config

    def choices(self, folder: Path, *, slots: int = 1, seed: int = 0) -> list[str]:
        """The actions of a whole run by number, in which types count."""
        raise NotImplementedError

    def test_same_seed_same_actions(self, tmp_path: Path) -> None:
        """Two runs with the same seed choose the same actions."""
        first, second = (self.choices(tmp_path / name, seed=3) for name in ("first", "second"))
        assert first == second

    def test_same_actions_at_any_width(self, tmp_path: Path) -> None:
        """An agent that learns nothing chooses by the number alone."""
        suite: Any = self
        if suite.learns:
            pytest.skip("it learns: its choices depend on the order in which trials end")
        narrow = self.choices(tmp_path / "1")
        for slots in (2, 3, 4):
            assert self.choices(tmp_path / str(slots), slots=slots) == narrow

    def test_no_global_randomness(self, tmp_path: Path) -> None:
        """It neither seeds nor draws from the generators that the process shares."""
        self.choices(tmp_path / "first", slots=2)  # imports everything it uses
        before = _shared_generators()
        self.choices(tmp_path / "second", slots=2)
        after = _shared_generators()
        changed = [name for name in before if after[name] != before[name]]
        assert not changed, f"it used the shared generator of {', '.join(changed)}"


class AgentSuite(_Suite):
    """The contract of an agent of trials.

    Attributes:
        agent: the class, or a factory, that is called with an ``Env``, the config and a seed.
        config: its ``agent_config``, as in the TOML file.
        knobs: the space; a grid must have at least ``trials`` points.
        trials: the budget; large enough that the agent is past its warm-up.
        resumes_exactly: whether an agent that learns continues at one slot as if it had never been interrupted,
            wherever the journal was cut.
    """

    knobs: ClassVar[Mapping[str, Knob]] = {
        "algorithm": Choice(("cubic", "reno", "bbr")),
        "level": Choice((1, 1.0, True)),
        "depth": Range(0, 30, "int", step=10),
        "share": Range(0.0, 0.3, step=0.1),
    }
    trials: ClassVar[int] = 24
    resumes_exactly: ClassVar[bool] = False

    @property
    def learns(self) -> bool:
        """Whether its choices depend on feedback; assumed if it overrides ``update_policy`` or ``run``."""
        own_loop = getattr(self.agent, "run", None) is not BaseAgent.run
        return self.is_told or own_loop

    @property
    def is_told(self) -> bool:
        """Whether ``BaseAgent.run`` tells it of trials."""
        own = getattr(self.agent, "update_policy", None)
        return own is not None and own is not BaseAgent.update_policy

    @property
    def env_params(self) -> Mapping[str, EnvParam]:
        """The env_params; none if the agent can't handle them."""
        varies = getattr(self.agent, "supports_variable_environment", False)
        return {"load": EnvParam(Choice((1, 2, 3)))} if varies else {}

    def choices(self, folder: Path, *, slots: int = 1, seed: int = 0) -> list[str]:
        """The actions of a whole run."""
        return _chosen(self.drive(folder, slots=slots, seed=seed))

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
        baseline: bool = False,
    ) -> list[Trial]:
        """Run the agent on the journal in ``folder`` as an app would; every closed trial by number.

        ``stop_after`` stops the run when so many trials have been closed; call again to resume it. With a ``baseline``
        the first trial is none of the agent's.
        """
        experiment = self._experiment(steps or self.trials, landscape, seed)
        workload = PythonWorkload(experiment, Path.cwd())
        store = JournalStore(folder, Head.of(experiment, "suite"), SessionRecord(workload.fingerprint()))
        runner = LocalRunner(f"suite-{uuid.uuid4().hex}", slots=slots)
        closed: list[Trial] = []
        listener: Any = SimpleNamespace(trial_opened=lambda _: None, trial_closed=closed.append)
        allowed = [Constraint("allowed", lambda p: not refuse(p))] if refuse is not None else []
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
                listeners=[listener],
                stopping=lambda: stop_after is not None and len(closed) >= stop_after,
            )
            engine.take_over()
            if baseline:
                action = {name: knob.from_unit(0.5) for name, knob in self.knobs.items()}
                engine.run_all([(action, None)], BASELINE)
                engine.first = 2
            code = _run((agent or type(self).agent)(engine, experiment.agent_config, seed))
            assert code == 0, f"run() returned {code}"
            engine.close(interrupted=stop_after is not None)
            return sorted((trial for _, trial in store.recorded()), key=lambda trial: trial.number)
        finally:
            runner.close()
            store.close()

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

    # the contract -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize(("landscape", "statuses"), STATUSES.items(), ids=list(STATUSES))
    def test_budget_is_exact(self, tmp_path: Path, slots: int, landscape: str, statuses: set[str]) -> None:
        """Every number of the budget once, and none more; a crashed or pruned trial is data."""
        trials = self.drive(tmp_path, slots=slots, landscape=landscape)
        assert [trial.number for trial in trials] == list(range(1, self.trials + 1))
        assert {trial.status for trial in trials} == statuses

    def test_budget_of_one(self, tmp_path: Path) -> None:
        """Also when there is less to do than a warm-up would take."""
        assert [trial.number for trial in self.drive(tmp_path, steps=1, slots=2)] == [1]

    def test_a_baseline_comes_first(self, tmp_path: Path) -> None:
        """A trial that was made before the search is its past, and a part of the budget."""
        trials = self.drive(tmp_path, baseline=True)
        assert trials[0].phase == BASELINE
        assert {trial.phase for trial in trials[1:]} <= {SEARCH, REPEAT}
        assert len(trials) == self.trials

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

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_resumes_a_journal_that_was_cut(self, tmp_path: Path, share: float) -> None:
        """Killed anywhere, it makes the same choices again."""
        if self.learns and not self.resumes_exactly:
            pytest.skip("its choices depend on more than the journal")
        whole = self.drive(tmp_path, landscape="cliffs")
        journal = tmp_path / JOURNAL
        content = journal.read_bytes()
        journal.write_bytes(content[: int(share * len(content))])
        assert _chosen(self.drive(tmp_path, landscape="cliffs")) == _chosen(whole)

    def test_finished_run_is_not_repeated(self, tmp_path: Path) -> None:
        """Resuming a complete run adds nothing; with a larger budget it continues."""
        before = self.drive(tmp_path, steps=self.trials - 4)
        assert self.drive(tmp_path, steps=self.trials - 4) == before
        extended = self.drive(tmp_path, steps=self.trials)
        assert extended[: len(before)] == before
        assert [trial.number for trial in extended] == list(range(1, self.trials + 1))

    def test_is_told_of_the_past(self, tmp_path: Path) -> None:
        """On a resume an agent that learns is told every recorded trial once, before it chooses."""
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
        """No new trial once the run is stopping; that is no failure."""
        assert len(self.drive(tmp_path, stop_after=4)) == 4


class _EverySecond:
    """A pruner that ends every trial with an even number at its second report."""

    def judge(self, number: int, curve: Sequence[tuple[int, float]]) -> str | None:
        return "an even number" if number % 2 == 0 and len(curve) == 2 else None

    def closed(self, number: int, curve: Sequence[tuple[int, float]], status: str) -> None:
        """There is nothing to learn."""


def _chosen(trials: list[Trial]) -> list[str]:
    return [f"{trial.number}: {dict(trial.action)!r}" for trial in trials]


# live systems --------------------------------------------------------------------------------------


@dataclass
class CallLog:
    """Calls of all servers of one session: ``unasked`` resets in an episode, steps that ``missed`` a reset."""

    actions: list[Any] = field(default_factory=list)
    resets: int = 0
    unasked: int = 0
    missed: int = 0


class Trail:
    """A server whose episodes last 3 to 9 steps; every third one is cut off.

    The reward is about 1 minus the distance between the action and the observation. Counted over all servers of a
    ``log``, it is gone for good after ``dies_at`` steps, and the steps in ``fails_at`` fail.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(
        self, actions: spaces.Space[Any], log: CallLog, dies_at: int | None = None, fails_at: tuple[int, ...] = ()
    ) -> None:
        self.action_space = actions
        self._log = log
        self._dies_at = dies_at
        self._fails_at = fails_at
        self._episode = 0
        self._place: int | None = None
        self._alive()

    def _alive(self) -> None:
        if self._dies_at is not None and len(self._log.actions) >= self._dies_at:
            raise RuntimeError("the trail is gone")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The beginning of the next episode."""
        self._alive()
        self._log.resets += 1
        self._log.unasked += bool(self._place)
        self._episode += 1
        self._place = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        self._alive()
        self._log.missed += self._place is None
        self._log.actions.append(action)
        if len(self._log.actions) in self._fails_at:
            self._place = None
            raise RuntimeError("stumbled")
        reward = 1.0 - abs(float(np.mean(flat(action))) - self._seen()[0])
        place = (self._place or 0) + 1
        over = place >= 3 + self._episode % 7
        self._place = None if over else place
        cut_off = over and self._episode % 3 == 0
        return self._seen(place), reward, over and not cut_off, cut_off, {"reward": reward}

    def close(self) -> None:
        """Nothing to release."""

    def _seen(self, place: int | None = None) -> np.ndarray:
        at = (place if place is not None else self._place) or 0
        return np.array([np.cos(at), np.sin(at + self._episode)], dtype=np.float32)


def flat(action: Any) -> list[float]:
    """The numbers of an action."""
    if isinstance(action, Mapping):
        return [number for part in action.values() for number in flat(part)]
    if isinstance(action, tuple):
        return [number for part in action for number in flat(part)]
    return np.asarray(action, dtype=np.float64).reshape(-1).tolist()


@dataclass(frozen=True)
class Driven:
    """The end of a session: code, reason, steps used in all, and the servers' log."""

    code: int
    failure: str | None
    taken: int
    log: CallLog


class LiveAgentSuite(_Suite):
    """The contract of an agent of live experiments.

    Attributes:
        agent: the class (or a factory) that is called with a ``LiveEnv``, the config and a seed.
        config: its ``agent_config``, as in the TOML file.
        actions: the server's action space.
        steps: the budget; large enough that the agent is past its warm-up, and no multiple of 3.
        learns: whether its choices depend on observations.
    """

    actions: ClassVar[spaces.Space[Any]] = spaces.Discrete(3)
    steps: ClassVar[int] = 160
    learns: ClassVar[bool] = True

    def choices(self, folder: Path, *, slots: int = 1, seed: int = 0) -> list[str]:
        """The actions of a whole run."""
        return _spelled(self.drive(folder, slots=slots, seed=seed).log.actions)

    def drive(
        self,
        folder: Path,
        *,
        steps: int | None = None,
        slots: int = 1,
        seed: int = 0,
        stop_after: int | None = None,
        dies_at: int | None = None,
        fails_at: tuple[int, ...] = (),
    ) -> Driven:
        """Run the agent on the journal in ``folder`` as an app would; call again to resume it.

        Steps are those of this session: it is stopped after ``stop_after``, its server is gone for good after
        ``dies_at``, and those in ``fails_at`` fail.
        """
        live = LiveSpec("suite:Trail", restarts=0)
        experiment = Experiment(
            name="suite",
            workload="live",
            workload_args={},
            space=Space({}),
            env_params=EnvParams({}, seed),
            agent="suite",
            agent_config=self.checked_config(),
            agent_metrics=(),
            reward=None,
            budget=Budget(agent_steps=steps or self.steps),
            live=live,
        )
        log = CallLog()
        store = StepStore(folder, Head.of(experiment, "suite"), SessionRecord("suite"))
        hosts = [InProcess(lambda: Trail(self.actions, log, dies_at, fails_at)) for _ in range(slots)]
        engine = LiveEngine(
            LiveParts(experiment, hosts, store, folder, seed),
            stopping=lambda: stop_after is not None and len(log.actions) >= stop_after,
        )
        try:
            engine.take_over()
            agent = type(self).agent(engine, experiment.agent_config, seed)
            return Driven(_run(agent), getattr(agent, "failure", None), engine.taken, log)
        finally:
            engine.close()
            store.close()

    # the contract -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("slots", [1, 3])
    def test_budget_is_exact(self, tmp_path: Path, slots: int) -> None:
        """Every number of the budget and no more, also if lanes don't divide it."""
        driven = self.drive(tmp_path, slots=slots)
        assert (driven.code, driven.taken) == (0, self.steps), driven.failure
        assert len(driven.log.actions) == self.steps

    @pytest.mark.parametrize("steps", [1, 2, 4])
    def test_tiny_budgets(self, tmp_path: Path, steps: int) -> None:
        """Also when there is less to do than a warm-up would take, or than there are lanes."""
        driven = self.drive(tmp_path, steps=steps, slots=3)
        assert (driven.code, len(driven.log.actions)) == (0, steps), driven.failure

    @pytest.mark.parametrize("slots", [1, 3])
    def test_resets_where_episodes_end(self, tmp_path: Path, slots: int) -> None:
        """A lane is reset where its episode ends and nowhere else."""
        log = self.drive(tmp_path, slots=slots).log
        assert (log.unasked, log.missed) == (0, 0)
        assert log.resets > slots

    def test_another_seed_other_actions(self, tmp_path: Path) -> None:
        """Choices depend on the seed."""
        first, second = (self.drive(tmp_path / str(seed), seed=seed).log.actions for seed in (1, 2))
        assert _spelled(first) != _spelled(second)

    @pytest.mark.parametrize("slots", [1, 3])
    def test_resumes(self, tmp_path: Path, slots: int) -> None:
        """Stopped twice and resumed: no new step once it is stopping, and the budget is met exactly.

        One that learns nothing chooses as if never stopped.
        """
        chosen: list[Any] = []
        for stop_after in (39, 6, None):
            driven = self.drive(tmp_path / "parts", slots=slots, stop_after=stop_after)
            chosen += driven.log.actions
            assert driven.code == 0, driven.failure
            assert driven.taken == len(chosen)
            assert stop_after in (None, len(driven.log.actions))
        assert len(chosen) == self.steps
        if not self.learns:
            assert _spelled(chosen) == _spelled(self.drive(tmp_path / "whole").log.actions)

    def test_finished_run_is_not_repeated(self, tmp_path: Path) -> None:
        """Resuming a complete run adds nothing; with a larger budget it continues."""
        self.drive(tmp_path, steps=self.steps - 20)
        again = self.drive(tmp_path, steps=self.steps - 20)
        assert (again.code, again.log.actions) == (0, [])
        assert len(self.drive(tmp_path, steps=self.steps).log.actions) == 20

    @pytest.mark.parametrize("slots", [1, 3])
    def test_failed_steps_are_data(self, tmp_path: Path, slots: int) -> None:
        """A failed step uses a number, and the run continues to its end."""
        driven = self.drive(tmp_path, slots=slots, fails_at=(1, 5, 6, 77, 159, 160))
        assert (driven.code, driven.taken) == (0, self.steps), driven.failure

    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("dies_at", [0, 50])
    def test_a_lost_server_is_code_1_with_its_reason(self, tmp_path: Path, slots: int, dies_at: int) -> None:
        """No exception: other experiments run."""
        if not dies_at:
            dies_at = slots  # the engine itself has to start them first
        driven = self.drive(tmp_path, slots=slots, dies_at=dies_at)
        assert driven.code == 1
        assert "the trail is gone" in (driven.failure or "")


def _run(agent: Agent) -> int:
    try:
        return agent.run()
    finally:
        agent.close()
        agent.close()  # closing twice is fine


def _shared_generators() -> dict[str, Any]:
    """The states of the generators of Python, numpy and, if imported, torch."""
    kind, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {"random": random.getstate(), "numpy": (kind, np.asarray(keys).tolist(), rest)}
    torch = sys.modules.get("torch")
    return states if torch is None else {**states, "torch": torch.get_rng_state().tolist()}


def _spelled(actions: list[Any]) -> list[str]:
    return [repr(flat(action)) for action in actions]
