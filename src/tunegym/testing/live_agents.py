"""What every agent of live experiments must do. Subclass ``LiveAgentSuite``, name yours, and let pytest collect it.

::

    class TestMine(LiveAgentSuite):
        agent = MyLiveAgent
        config = {"random_seed": 7}

The agent drives a real engine and journal over a small server, ``Trail``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from tunegym.config.problems import Findings
from tunegym.config.schema import checked_config
from tunegym.core.errors import ConfigError
from tunegym.testing.trails import Log, Trail, flat
from tunegym.tuning.envs.live.engine import LiveEngine, LiveParts
from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.model.scenario import Budget, Experiment, LiveSpec, Recording
from tunegym.tuning.model.space import Space
from tunegym.tuning.ports import Agent, LiveEnv
from tunegym.tuning.servers.host import InProcess
from tunegym.tuning.stores.records import Head, Session
from tunegym.tuning.stores.steps import StepStore


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
        config = checked_config(self.agent.Config, self.config, findings)  # type: ignore[attr-defined]
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
        store = StepStore(folder, head, Session("suite"), Recording())
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
        self.drive(tmp_path / "first", slots=2)  # now it has imported all that it uses
        before = _shared_generators()
        self.drive(tmp_path / "second", slots=2)
        after = _shared_generators()
        changed = [name for name in before if after[name] != before[name]]
        assert not changed, f"it used the shared generator of {', '.join(changed)}"

    def test_close_twice_is_fine(self, tmp_path: Path) -> None:
        """Also without a run."""
        store = StepStore(tmp_path, Head("suite", "suite", 0, "suite", {}, {}, []), Session("suite"), Recording())
        try:
            experiment = Experiment("suite", "live", {}, Space({}), EnvParams({}, 0), "suite", None, ())
            engine: Any = LiveEngine(LiveParts(experiment, [], store, tmp_path, 0))
            agent = type(self).agent(engine, self.checked_config(), 0)
            agent.close()
            agent.close()
        finally:
            store.close()


def _shared_generators() -> dict[str, Any]:
    """The states of Python's generator, numpy's, and torch's if somebody uses it."""
    kind, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {"random": random.getstate(), "numpy": (kind, np.asarray(keys).tolist(), rest)}
    torch = sys.modules.get("torch")
    return states if torch is None else {**states, "torch": torch.get_rng_state().tolist()}


def _spelled(actions: list[Any]) -> list[str]:
    return [repr(flat(action)) for action in actions]
