"""``bayes``: one model of all trials proposes the next one. The default agent.

Proposals follow from the seed, the trial's number, and the trials that are closed and in flight. Hyperparameters are
fitted on a thread while trials run. Which fit a proposal uses depends only on how many trials are closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.agents.base import AgentConfig, BaseAgent, warm_start_problems
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.inference.proposal import Search
from tunegym.tuning.inference.surrogate import Theta
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.ports import Env


@dataclass(frozen=True, kw_only=True)
class BayesConfig(AgentConfig):
    """Settings of ``bayes``."""

    warm_start: str | None = None


class Bayes(BaseAgent):
    """Searches with a Gaussian process over settings and contexts."""

    Config: ClassVar[type[AgentConfig]] = BayesConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        experiment, steps = env.experiment, env.experiment.budget.agent_steps
        self._search = Search(
            question=Question.of(experiment),
            budget=steps and env.first + steps - 1,
            seed=self.seed,
            allowed=experiment.allows,
            drawn=self._drawn,
        )
        self._in_flight: dict[int, tuple[Action, Context]] = {}
        self._fits: dict[int, Future[Theta | None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tunegym-fit")
        self._fits_beside_trials = experiment.isolate  # functions in this process would be slowed down

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse a bad warm start."""
        return warm_start_problems(experiment.agent_config.warm_start, scenario_dir)

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Learn from another run's trials."""
        for trial in trials:
            self._search.add(trial)

    def select_action(self, observation: Observation) -> Action | None:
        """The setting that teaches most about the best one of every context."""
        number, context = observation.number, observation.context
        action = self.first_action() if self.starts_first(observation) else self._proposed(number, context)
        if action is not None:
            self._in_flight[number] = action, context
        return action

    def _proposed(self, number: int, context: Context) -> Action | None:
        in_flight = list(self._in_flight.values())
        proposal = self._search.propose(number, context, in_flight, self._fit)
        if proposal is None:
            self.ended = "every setting was tried"
            return None
        self.phase = proposal.phase
        return proposal.action

    def update_policy(self, feedback: Feedback) -> None:
        """Learn from a closed trial, and begin the fit that the trials after the next one need."""
        self._in_flight.pop(feedback.trial_index, None)
        self._search.add(feedback.trial)
        size = self._search.closed
        if self._fits_beside_trials and size == self._search.fit_size(size + 1):
            self._begin(size)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _drawn(self, context: Context, number: int) -> Action:
        experiment = self.env.experiment
        allowed = experiment.draw_allowed(context, self.seed, "bayes", number)
        return allowed or experiment.space.draw(self.seed, "bayes", number)

    def _begin(self, size: int) -> Future[Theta | None]:
        if size not in self._fits:
            self._fits[size] = self._thread.submit(self._search.fit, size)
        for unneeded in sorted(self._fits)[:-2]:  # a resume begins many
            self._fits.pop(unneeded).cancel()
        return self._fits[size]

    def _fit(self, size: int) -> Theta | None:
        return self._begin(size).result()
