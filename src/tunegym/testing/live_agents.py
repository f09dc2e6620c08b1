"""What every agent of live experiments must do. Subclass ``LiveAgentSuite``, name yours, and let pytest collect it.

::

    class TestMine(LiveAgentSuite):
        agent = MyLiveAgent
        config = {"random_seed": 7}

The agent drives a real engine and journal over a small server of this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.config.agents import agent_config
from tunegym.config.findings import Findings
from tunegym.core.errors import ConfigError
from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.model.live import LiveSpec, Recording
from tunegym.tuning.model.scenario import Budget, Experiment
from tunegym.tuning.model.space import Space
from tunegym.tuning.ports import Agent, LiveEnv
from tunegym.tuning.servers.hosting import InProcess
from tunegym.tuning.stores.live import LiveStore
from tunegym.tuning.stores.records import Head, Session


@dataclass
class Log:
    """What the servers of one session were asked, in order; they work one after the other.

    Attributes:
        actions: of all steps, by number.
        resets: the lane's length by then, of every reset.
        unasked: resets in the middle of an episode.
        missed: steps without a reset after an end.
    """

    actions: list[Any] = field(default_factory=list)
    resets: int = 0
    unasked: int = 0
    missed: int = 0


class Trail:
    """A server whose episodes last 3 to 9 steps; every third one is cut off.

    Each reward is 1 less the distance between the action and what the observation asks for, roughly.

    Args:
        actions: its action space.
        log: what it notes its calls in.
        dies_at: it can't be stepped, reset or built any more after so many steps of all servers.
        fails_at: these steps of all servers fail.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(
        self, actions: spaces.Space[Any], log: Log, dies_at: int | None = None, fails_at: tuple[int, ...] = ()
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
        del seed, options
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
        reward = 1.0 - abs(float(np.mean(_flat(action))) - self._seen()[0])
        place = (self._place or 0) + 1
        over = place >= 3 + self._episode % 7
        self._place = None if over else place
        cut_off = over and self._episode % 3 == 0
        return self._seen(place), reward, over and not cut_off, cut_off, {"reward": reward}

    def close(self) -> None:
        """There is nothing to let go of."""

    def _seen(self, place: int | None = None) -> np.ndarray:
        at = (place if place is not None else self._place) or 0
        return np.array([np.cos(at), np.sin(at + self._episode)], dtype=np.float32)


def _flat(action: Any) -> list[float]:
    if isinstance(action, Mapping):
        return [number for part in action.values() for number in _flat(part)]
    if isinstance(action, tuple):
        return [number for part in action for number in _flat(part)]
    return np.asarray(action, dtype=np.float64).reshape(-1).tolist()


@dataclass(frozen=True)
class Driven:
    """What came of a session: its code and reason, the steps used up in all, and what the servers saw."""

    code: int
    failure: str | None
    taken: int
    log: Log


class LiveAgentSuite:
    """The contract of an agent of live experiments, as tests.

    Attributes:
        agent: the class (or a factory) that is called with a ``LiveEnv``, the config and a seed.
        config: its ``agent_config``, as in the TOML file.
        actions: the server's action space.
        steps: the budget; large enough that the agent is past its warm-up, and no multiple of 3.
        learns: whether what it chooses depends on what it has seen.
    """

    agent: ClassVar[Callable[[LiveEnv, Any, int], Agent]]
    config: ClassVar[Mapping[str, Any]] = {}
    actions: ClassVar[spaces.Space[Any]] = spaces.Discrete(3)
    steps: ClassVar[int] = 160
    learns: ClassVar[bool] = True

    def checked_config(self) -> Any:
        """``config`` as the agent's own ``Config``, checked as that of a scenario is."""
        findings = Findings("agent_config")
        config = agent_config(self.agent.Config, self.config, findings)  # type: ignore[attr-defined]
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
        stop_after: int | None = None,
        dies_at: int | None = None,
        fails_at: tuple[int, ...] = (),
    ) -> Driven:
        """Run the agent on the journal in ``folder`` as an app would; call again to resume it.

        Args:
            folder: the experiment's results.
            steps: the budget.
            slots: how many lanes there are.
            seed: the scenario's.
            stop_after: the run is stopped after so many steps of this session.
            dies_at: the server is gone for good after so many.
            fails_at: these steps of the session fail.
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
        log = Log()
        head = Head("suite", "suite", seed, "suite", {}, {}, [], live={"record": "all"})
        store = LiveStore(folder, head, Session("suite"), Recording())
        hosts = [InProcess(lambda: Trail(self.actions, log, dies_at, fails_at)) for _ in range(slots)]
        engine = LiveEngine(
            LiveParts(experiment, hosts, store, folder, seed),
            stopping=lambda: stop_after is not None and len(log.actions) >= stop_after,
        )
        try:
            engine.take_over()
            agent = type(self).agent(engine, experiment.agent_config, seed)
            try:
                code = agent.run()
            finally:
                agent.close()
            return Driven(code, getattr(agent, "failure", None), engine.taken, log)
        finally:
            engine.close()
            store.close()

    # the contract -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("slots", [1, 3])
    def test_budget_is_exact(self, tmp_path: Path, slots: int) -> None:
        """Every number of the budget, and none more, also where lanes don't divide it."""
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
        """And nowhere else."""
        log = self.drive(tmp_path, slots=slots).log
        assert (log.unasked, log.missed) == (0, 0)
        assert log.resets > slots

    def test_same_seed_same_actions(self, tmp_path: Path) -> None:
        """Two runs alike choose alike."""
        first, second = (self.drive(tmp_path / name, slots=2, seed=3).log.actions for name in ("first", "second"))
        assert _spelled(first) == _spelled(second)

    def test_another_seed_other_actions(self, tmp_path: Path) -> None:
        """The seed is what decides."""
        first, second = (self.drive(tmp_path / str(seed), seed=seed).log.actions for seed in (1, 2))
        assert _spelled(first) != _spelled(second)

    @pytest.mark.parametrize("slots", [1, 3])
    def test_resumes(self, tmp_path: Path, slots: int) -> None:
        """Stopped twice and resumed: the budget is met exactly. One that learns nothing chooses as if never stopped."""
        chosen: list[Any] = []
        for stop_after in (40, 7, None):
            driven = self.drive(tmp_path / "parts", slots=slots, stop_after=stop_after)
            chosen += driven.log.actions
            assert driven.code == 0, driven.failure
            assert driven.taken == len(chosen)
        assert len(chosen) == self.steps
        if not self.learns:
            assert _spelled(chosen) == _spelled(self.drive(tmp_path / "whole").log.actions)

    def test_same_actions_at_any_width(self, tmp_path: Path) -> None:
        """An agent that learns nothing chooses by the number of the step alone."""
        if self.learns:
            pytest.skip("it learns: what it chooses depends on what it has seen")
        narrow = _spelled(self.drive(tmp_path / "1").log.actions)
        for slots in (2, 3, 4):
            assert _spelled(self.drive(tmp_path / str(slots), slots=slots).log.actions) == narrow

    def test_finished_run_is_not_repeated(self, tmp_path: Path) -> None:
        """Resuming what is complete adds nothing; with a larger budget it goes on."""
        self.drive(tmp_path, steps=self.steps - 20)
        again = self.drive(tmp_path, steps=self.steps - 20)
        assert (again.code, again.log.actions) == (0, [])
        assert len(self.drive(tmp_path, steps=self.steps).log.actions) == 20

    @pytest.mark.parametrize("slots", [1, 3])
    def test_stops_when_asked(self, tmp_path: Path, slots: int) -> None:
        """No new step once the run is stopping; that is no failure of the agent's."""
        driven = self.drive(tmp_path, slots=slots, stop_after=30)
        assert driven.code == 0, driven.failure
        assert len(driven.log.actions) == 30

    @pytest.mark.parametrize("slots", [1, 3])
    def test_failed_steps_are_data(self, tmp_path: Path, slots: int) -> None:
        """A step that fails uses a number, and the run goes on to its end."""
        driven = self.drive(tmp_path, slots=slots, fails_at=(1, 5, 6, 77, 159, 160))
        assert (driven.code, driven.taken) == (0, self.steps), driven.failure

    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("dies_at", [0, 50])
    def test_a_lost_server_is_code_1_with_its_reason(self, tmp_path: Path, slots: int, dies_at: int) -> None:
        """It is no exception: other experiments go on."""
        if not dies_at:
            dies_at = slots  # the engine itself has to start them first
        driven = self.drive(tmp_path, slots=slots, dies_at=dies_at)
        assert driven.code == 1
        assert "the trail is gone" in (driven.failure or "")

    def test_no_global_randomness(self, tmp_path: Path) -> None:
        """Its generators are its own: it neither seeds nor draws from those that everybody shares."""
        before = random.getstate(), repr(np.random.get_state())
        self.drive(tmp_path, slots=2)
        assert (random.getstate(), repr(np.random.get_state())) == before

    def test_close_twice_is_fine(self, tmp_path: Path) -> None:
        """Also without a run."""
        store = LiveStore(tmp_path, Head("suite", "suite", 0, "suite", {}, {}, []), Session("suite"), Recording())
        try:
            experiment = Experiment("suite", "live", {}, Space({}), EnvParams({}, 0), "suite", None, ())
            engine: Any = LiveEngine(LiveParts(experiment, [], store, tmp_path, 0))
            agent = type(self).agent(engine, self.checked_config(), 0)
            agent.close()
            agent.close()
        finally:
            store.close()


def _spelled(actions: list[Any]) -> list[str]:
    return [repr(_flat(action)) for action in actions]
