"""The base of all agents: how one drives an experiment."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import BudgetError, Problem
from tunegym.core.references import resolve
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.policies import Choice
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.ports import Env


class BaseAgent:
    """An agent with a default loop over ``select_action`` and ``update_policy``.

    ``run`` is the only way an agent is driven; one that owns its loop overrides it. On a resumed experiment
    the loop first tells the agent every recorded trial, so what it learned is there again. Randomness belongs
    to a trial, not to a moment: draw from ``(self.seed, name, observation.number)``, and the same trial gets
    the same draw after a crash and at any width.

    Attributes:
        Config: the frozen dataclass that ``agent_config`` is checked against.
        supports_variable_environment: whether the agent copes with env_params.
        finite: whether it ends by itself, so that it needs no budget.
        kinds: the kinds of experiment (``trials``, ``live``) that run under this agent's name, each with the reference
            of the class that drives it; None for this class itself. See ``driver``.
        failure: why ``run`` returned non-zero, in a sentence; None if it has nothing to say.
    """

    Config: ClassVar[type[AgentConfig]] = AgentConfig
    supports_variable_environment: ClassVar[bool] = False
    finite: ClassVar[bool] = False
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None}
    failure: str | None = None

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        self.env = env
        self.config: Any = config if config is not None else self.Config()
        own = self.config.random_seed
        self.seed: int = seed if own is None else own

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Why this agent can't search ``space``, or None; ``where`` is relative to the experiment."""
        del space
        return None

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """What else is wrong with a checked experiment for this agent, its own settings included.

        ``where`` is relative to the experiment; relative paths in settings are meant from ``scenario_dir``.
        """
        del experiment, scenario_dir
        return []

    @classmethod
    def ends_after(cls, space: Space) -> int | None:
        """How many trials the agent makes at most by itself; None if it would never end."""
        del space
        return None

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Learn from trials of another run, before ``run``: they fit this space and are scored as if made here.

        Called for agents whose ``Config`` has a ``warm_start`` that is set.
        """
        raise NotImplementedError(f"{type(self).__name__} has a warm_start, and no warm_up()")

    def choose(self, context: Context) -> Choice | None:
        """What the agent would choose under ``context`` by all that it has learned, without exploring.

        None if it has no policy. Where it has, `policy/policy.json` is written from it, and `tunegym recommend`
        answers from there.
        """
        del context
        return None

    def select_action(self, observation: Observation) -> Action | None:
        """The action for the trial that ``observation`` describes; None ends the run."""
        del observation
        return None

    def update_policy(self, feedback: Feedback) -> None:
        """Learn from a closed trial. By default nothing is learned."""

    def run(self) -> int:
        """Keep ``slots`` trials in flight until the budget, or the agent, is done."""
        env = self.env
        learns = type(self).update_policy is not BaseAgent.update_policy
        if learns:
            for trial in env.history():
                if trial.action or not env.space.knobs:  # a number that nobody used has nothing to learn from
                    self.update_policy(self._recalled(trial))
        free = deque(range(env.slots))
        seen: dict[int, Observation] = {}
        ended = False
        while True:
            while free and not ended and env.exhausted(free[0]) is None:
                lane = free[0]
                seen[lane] = env.observe(lane)
                action = self.select_action(seen[lane])
                if action is None:
                    ended = True
                    break
                try:
                    env.begin(action, lane)
                except BudgetError:  # it ran out, or the run was stopped, while the agent was thinking
                    break
                free.popleft()
            finished = env.next_finished()
            if finished is None:
                return 0
            lane, trial = finished
            if learns:
                self.update_policy(self._feedback(trial, seen[lane], lane, ended))
            free.append(lane)

    def close(self) -> None:
        """Let go of what the agent holds. By default there is nothing."""

    def _feedback(self, trial: Trial, acted_on: Observation, lane: int, ended: bool) -> Feedback:
        done = ended or self.env.exhausted(lane) is not None
        return _feedback(trial, acted_on, self.env.observe(lane), done)

    def _recalled(self, trial: Trial) -> Feedback:
        """Feedback on a trial of an earlier session. What its lane saw before and after is not recorded."""
        after = trial.number + 1
        shown = Observation(after, self.env.context(after), trial.metrics, trial.measured)
        return _feedback(trial, Observation(trial.number, trial.context), shown, done=False)


def drives(agent: Any, kind: str) -> bool:
    """Whether an agent can drive experiments of ``kind``; a class that doesn't say drives trials."""
    return kind in getattr(agent, "kinds", BaseAgent.kinds)


def driver(agent: Any, kind: str, path: Sequence[str] = ()) -> Any:
    """The class that drives experiments of ``kind`` under an agent's name.

    Args:
        agent: the class that is registered under the name.
        kind: ``trials`` or ``live``; one that the agent drives.
        path: folders in which modules are looked for first.

    Raises:
        UnresolvedReferenceError: the agent names a class that doesn't exist.
    """
    reference = getattr(agent, "kinds", BaseAgent.kinds)[kind]
    return agent if reference is None else resolve(reference, tuple(path))


def _feedback(trial: Trial, before: Observation, after: Observation, done: bool) -> Feedback:
    return Feedback(
        trial_index=trial.number,
        value=trial.reward,
        observation=after,
        prev_observation=before,
        action=trial.action,
        done=done,
        status=trial.status,
        cached=trial.cached_from is not None,
        context=trial.context,
        reports=trial.reports,
    )
