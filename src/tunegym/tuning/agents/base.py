"""Agents: how one drives an experiment.

An agent is any class that is built as ``Class(env, config, seed)`` and has ``run`` and ``close``; ``trait`` gives the
default of everything else. ``BaseAgent`` drives trials through an ``Env``: it chooses an action per trial and learns
from closed trials. ``LiveAgent`` drives a live system through a ``LiveEnv``, step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from tunegym.core.errors import BudgetError, Problem, ServerLostError
from tunegym.core.references import resolve
from tunegym.tuning.agents.policies import PolicyChoice
from tunegym.tuning.model.scenario import Experiment, Penalties
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import SEARCH, Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context, counted
from tunegym.tuning.ports import Env, LiveEnv

WARM_START = "agent_config.warm_start"
MOST_SERVED = 1_000
"""So many trials in a row that the cache answers end a search that only time would end: it has tried everything."""


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """Settings common to all agents.

    Attributes:
        random_seed: seed of the agent's draws; the scenario's seed if unset.
        rewards: rewards of trials or steps without a measurement.
    """

    random_seed: int | None = None
    rewards: Penalties = field(default_factory=Penalties)


@dataclass(frozen=True, kw_only=True)
class AgentConfig(LiveConfig):
    """Settings common to all agents that drive trials; an agent with more settings derives from it.

    Attributes:
        start_action: ``first`` starts with every knob's first value, ``random`` with a drawn one.
    """

    start_action: Literal["random", "first"] = "random"


class TrainingError(Exception):
    """The algorithm failed. Everything measured is safe."""


class _Agent:
    """Common to agents of both kinds.

    Attributes:
        Config: the frozen dataclass that ``agent_config`` is checked against.
        kinds: the kinds of experiment (``trials``, ``live``) that run under this agent's name, each with the reference
            of the class that drives it; None for this class itself. See ``driver``.
        supports_variable_environment: whether the agent handles env_params.
        plans_contexts: whether it tries its settings in every represented context, instead of the drawn one.
        finite: whether it ends by itself and needs no budget.
        phase: what the trial is for that was just chosen: ``search``, or ``repeat`` to measure a setting again.
        failure: why ``run`` returned non-zero, in a sentence; if it knows.
        failure_hint: what to do about it, if known.
        ended: why ``run`` returned 0 with budget left; if it knows.
    """

    Config: ClassVar[Any] = LiveConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": None}
    supports_variable_environment: ClassVar[bool] = False
    plans_contexts: ClassVar[bool] = False
    finite: ClassVar[bool] = False
    phase: str = SEARCH
    failure: str | None = None
    failure_hint: str | None = None
    ended: str | None = None

    def __init__(self, env: Any, config: Any = None, seed: int = 0) -> None:
        self.env = env
        self.config: Any = config if config is not None else self.Config()
        own = self.config.random_seed
        self.seed: int = seed if own is None else own

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Problems of an otherwise valid experiment with this agent, its settings included.

        ``where`` is relative to the experiment; relative paths in settings start at ``scenario_dir``.
        """
        del experiment, scenario_dir
        return []

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Why this agent can't search ``space``, or None; ``where`` is relative to the experiment."""
        del space
        return None

    @classmethod
    def ends_after(cls, space: Space) -> int | None:
        """The number of trials after which the agent ends by itself; None if it never does."""
        del space
        return None

    def close(self) -> None:
        """Release resources. By default there are none."""


class BaseAgent(_Agent):
    """An agent with a default loop over ``select_action`` and ``update_policy``.

    The app only calls ``run``; override it to own the loop. On a resumed experiment the default loop first tells the
    agent every recorded trial, so that it learns them again. Draw random numbers from
    ``(self.seed, name, observation.number)``: the same trial then gets the same draw after a crash and at any width.
    """

    Config: ClassVar[type[AgentConfig]] = AgentConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None}
    env: Env

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Learn from another run's trials before ``run``; they fit this space and are scored as if made here.

        Called if the agent's ``Config`` has a ``warm_start`` and it is set.
        """
        raise NotImplementedError(f"{type(self).__name__} has a warm_start but no warm_up()")

    def choose(self, context: Context) -> PolicyChoice | None:
        """The agent's best action under ``context``, without exploration; None if it has no policy.

        ``policy/policy.json`` is written from it, and ``tunegym recommend`` reads that file.
        """
        return None

    def plan_context(self, number: int) -> Context | None:
        """The context of a trial, for an agent with ``plans_contexts``; None for the drawn one."""
        return None

    def select_action(self, observation: Observation) -> Action | None:
        """The action for the trial that ``observation`` describes; None ends the run."""
        return None

    def update_policy(self, feedback: Feedback) -> None:
        """Learn from a closed trial. By default nothing is learned."""

    def run(self) -> int:
        """Keep ``slots`` trials in flight until the budget, or the agent, is done."""
        env = self.env
        learns = type(self).update_policy is not BaseAgent.update_policy
        if learns:
            for trial in env.history():
                if trial.action or not env.space.knobs:  # an unused number teaches nothing
                    # What its lane saw before and after is not recorded.
                    after = trial.number + 1
                    shown = Observation(after, env.context(after), trial.metrics, trial.measured)
                    before = Observation(trial.number, trial.context)
                    self.update_policy(Feedback(trial, shown, before, done=False))
        free = deque(range(env.slots))
        seen: dict[int, Observation] = {}
        ended, served = False, 0
        while True:
            while free and not ended and env.exhausted(free[0]) is None:
                lane = free[0]
                seen[lane] = env.observe(lane)
                context = self.plan_context(seen[lane].number) if self.plans_contexts else None
                if context is not None:
                    seen[lane] = replace(seen[lane], context=context)
                action = self.select_action(seen[lane])
                if action is None:
                    ended = True
                    break
                try:
                    env.begin(action, lane, context=context, phase=self.phase)
                except BudgetError:  # used up, or the run was stopped, since the last look
                    break
                free.popleft()
            finished = env.next_finished()
            if finished is None:
                return 0
            lane, trial = finished
            served = served + 1 if trial.cached_from is not None else 0
            if served >= MOST_SERVED and env.experiment.budget.agent_steps is None:
                ended, self.ended = True, f"the cache answered the last {served:,} trials"
            if learns:
                done = ended or env.exhausted(lane) is not None
                self.update_policy(Feedback(trial, env.observe(lane), seen[lane], done))
            free.append(lane)

    def starts_first(self, observation: Observation) -> bool:
        """Whether the trial begins the search, and ``start_action`` asks for an allowed first action."""
        if self.config.start_action != "first" or observation.number != self.env.first:
            return False
        return self.env.experiment.allows(self.first_action(), observation.context)

    def first_action(self) -> dict[str, Any]:
        """Every knob's first value."""
        return {name: knob.from_unit(0.0) for name, knob in self.env.space.knobs.items()}


class RunOnce(BaseAgent):
    """Drives an experiment without knobs: one trial with the empty action."""

    finite: ClassVar[bool] = True

    def select_action(self, observation: Observation) -> Action | None:
        """The empty action for the first trial, then the end."""
        return {} if observation.number == 1 else None


class LiveAgent(_Agent, ABC):
    """Takes steps in all lanes until the budget ends, and resets a lane when its episode ends.

    The app only calls ``run``. A used-up budget and a stopped run are ordinary ends. A lost server, spaces that don't
    fit and a failing algorithm end it with code 1 and the reason in ``failure``: recorded steps are safe, and later
    experiments run. Any other exception is a bug or broken infrastructure. Draws depend on ``name``, the agent's name.
    """

    kinds: ClassVar[Mapping[str, str | None]] = {"live": None}
    name: ClassVar[str]
    env: LiveEnv

    def run(self) -> int:
        """Drive the experiment to its end; 1 if it ends early."""
        if self.env.exhausted() is not None:
            return 0
        try:
            self._drive()
        except BudgetError:  # used up, or stopped, since the last look
            return 0
        except ServerLostError as error:
            self.failure, self.failure_hint = error.message, error.hint
        except TrainingError as error:
            self.failure = f"training failed after {counted(self.env.taken, 'step')}: {error}"
        return int(self.failure is not None)

    @abstractmethod
    def _drive(self) -> None:
        """Take steps until ``exhausted`` gives a reason, or until ``BudgetError``; or set ``failure`` and return."""

    def left(self) -> int | None:
        """Steps left in the budget; None if it doesn't count steps."""
        most = self.env.experiment.most_trials
        return None if most is None else max(0, most - self.env.taken)


def warm_start_problems(folder: str | None, scenario_dir: Path) -> list[Problem]:
    """Why there can be no warm start from ``folder``; nothing if none is configured."""
    if folder is None:
        return []
    place = scenario_dir / folder
    what = None
    if not place.is_dir():
        what = f"{place} is not a folder"
    elif not any(next(place.glob(f"{depth}scenario.toml"), None) for depth in ("", "*/", "*/*/")):
        what = f"{place} holds no results"
    allowed = "the results folder of another run, relative to the scenario's folder"
    hint = "give the results folder that the run printed"
    return [Problem(WARM_START, what, f'"{folder}"', allowed, hint)] if what else []


def trait(agent: Any, name: str) -> Any:
    """The attribute of an agent's class; the default of ``_Agent`` if it has none."""
    return getattr(agent, name, getattr(_Agent, name))


def learns(agent: Any) -> bool:
    """Whether the choices of an agent's class may depend on the results of trials: it learns, or has its own loop."""
    own = getattr(agent, "update_policy", None), getattr(agent, "run", None)
    return own != (BaseAgent.update_policy, BaseAgent.run)


def driver(agent: Any, kind: str, path: Sequence[str] = ()) -> Any:
    """The class that drives experiments of ``kind``, which the registered class ``agent`` names or is itself.

    ``path`` has folders in which modules are looked for first. Raises ``UnresolvedReferenceError`` if the named class
    doesn't exist.
    """
    reference = trait(agent, "kinds")[kind]
    return agent if reference is None else resolve(reference, tuple(path))
