"""A contextual bandit: Thompson sampling over contexts and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents import policies, warm
from tunegym.tuning.agents.bandit.axes import Axis
from tunegym.tuning.agents.bandit.belief import Belief
from tunegym.tuning.agents.bandit.candidates import Candidates, CandidateSource
from tunegym.tuning.agents.bandit.evidence import Evidence
from tunegym.tuning.agents.bandit.threads import one_thread
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.envs.actions import BINS
from tunegym.tuning.model.context import EnvParam
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key
from tunegym.tuning.ports import Env

NAME = "contextual_bandit"
DRAWS = 32
"""So often the rewards of all candidates are drawn for one trial."""
SECOND = 0.5
"""The share of trials that go to the runner-up."""
PATIENCE = 20
"""So many trials in a row may be answered by the cache before something new is tried, however poor it looks."""
GOOD = 3
"""Around so many settings there is a closer look."""
FIRST_FIT = 6
FIT_GROWTH = 1.25
"""The shapes are fitted after so many trials, and whenever there are so many times more."""
MOST_BINS = 1000
MOST_CELLS = 500
KEPT_CELLS = 400
"""So many cells the belief may hold; then it is cut down to as many, half of them the best ones."""


@dataclass(frozen=True, kw_only=True)
class BanditConfig(AgentConfig):
    """What the ``contextual_bandit`` takes.

    Attributes:
        bins: how many values of a range are looked at everywhere; around good settings it looks in between.
        warm_start: the results folder of another run, whose trials are told first.
    """

    bins: int = BINS
    warm_start: str | None = None


class ContextualBandit(BaseAgent):
    """Believes something of every setting under every context, and tries what may well be the best.

    For each trial, the rewards of all candidates are drawn together from what is believed; the setting that wins is
    tried (Thompson sampling). In half of the trials it is the first other one to win when more is drawn (top-two
    sampling): what counts is what is known in the end, and repeating the leader alone teaches little.

    What was measured already is not tried again where the cache would answer: the next winner is, if any of the draws
    has one that is new. When none has, the matter is settled as far as the belief goes, and the winner is repeated,
    which costs nothing; only after ``PATIENCE`` such trials in a row something new is tried nevertheless. An answer of
    the cache is no evidence. When every setting was measured in every context, the run ends.

    All follows from what was told, in the order in which it was told, and from the trial's number: at one slot a
    resumed run chooses as the uninterrupted one would have.
    """

    Config: ClassVar[type[AgentConfig]] = BanditConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        params = env.experiment.env_params.params
        self._source = CandidateSource(env.space, self.config.bins)
        self._conditions = {name: Axis(param.domain) for name, param in params.items()}
        self._belief = Belief(list(self._conditions.values()), list(self._source.axes.values()))
        self._evidence = Evidence()
        self._cells: dict[int, None] = {}  # those that the belief holds, in its order
        self._weights: np.ndarray | None = None
        self._next_fit = FIRST_FIT
        self._serves = env.experiment.cache
        self._everything = _count(env.space.size, params.values())
        self._answered: set[bytes] = set()
        self._pending: dict[int, bytes] = {}
        self._idle = 0

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse fewer than two bins or more than a thousand, and a warm start from nowhere."""
        config: BanditConfig = experiment.agent_config
        problems = warm.cold(config.warm_start, scenario_dir)
        if not 2 <= config.bins <= MOST_BINS:
            what, allowed = "the value is out of bounds", f"at least 2 and at most {MOST_BINS}"
            hint = f"leave bins out, or write a number that is {allowed}"
            problems.append(Problem("agent_config.bins", what, str(config.bins), allowed, hint))
        return problems

    # choosing -----------------------------------------------------------------------------------------

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """What may well be the best under the trial's context; None when there is nothing left to learn."""
        number, context = observation.number, observation.context
        if self._idle >= PATIENCE and len(self._answered) == self._everything:
            return None
        if number == 1 and self.config.start_action == "first":
            action = {name: knob.from_unit(0.0) for name, knob in self.env.space.knobs.items()}
        else:
            with one_thread():
                action = self._thompson(number, context)
        if self._serves:
            self._pending[number] = exact_key(context, action)
        return action

    def choose(self, context: Context) -> policies.Choice | None:
        """The setting with the highest mean reward to expect, of those that worked; None if there is none.

        None that failed in this context more often than not, unless all that ever worked elsewhere did.
        """
        with one_thread():
            best = next(self._best(context), None)
        return None if best is None else policies.Choice(dict(best), None, context)

    def _thompson(self, number: int, context: Context) -> dict[str, Scalar]:
        generator = np.random.default_rng(integer(self.seed, 2**63, NAME, number))
        there = self._place(context)
        good: list[Action] = []
        if not self._source.complete:
            good = [action for action, _ in zip(self._best(context), range(GOOD), strict=False)]
        candidates = self._source.make(generator, good)
        normal = generator.standard_normal((len(candidates), DRAWS))
        drawn = self._belief.drawn(there, candidates.places, self._evidence.of(self._cells), normal)
        winner, *others = dict.fromkeys(drawn.argmax(axis=0).tolist())
        second = others and unit(self.seed, NAME, "second", number) < SECOND
        rows = [*others, winner] if second else [winner, *others]
        if not self._serves:
            return candidates.action(rows[0])
        if self._idle >= PATIENCE:
            rows += np.argsort(-drawn[:, 0], kind="stable").tolist()
        return self._new(context, candidates, rows) or candidates.action(winner)

    def _new(self, context: Context, candidates: Candidates, rows: Sequence[int]) -> dict[str, Scalar] | None:
        """The first of these that the cache can't answer and nobody is measuring; None if there is none."""
        busy = set(self._pending.values())
        for row in rows:
            action = candidates.action(row)
            key = exact_key(context, action)
            if key not in self._answered and key not in busy:
                return action
        return None

    def _best(self, context: Context) -> Iterator[Action]:
        """Different settings that worked, in this context or another, the one to expect most of first.

        Those that failed here more often than not come last, the one with the fewest failures first.
        """
        if not self._cells:
            return
        cells = [*self._cells]
        told = self._evidence.of(cells)
        if self._weights is None:
            self._weights = self._belief.weights(told)
        expected = self._belief.expected(self._place(context), told, self._weights)
        given: set[bytes] = set()
        doubtful: list[tuple[int, Action]] = []
        for row in np.argsort(-expected, kind="stable").tolist():
            action = self._evidence.actions[cells[row]]
            key = exact_key(action)
            if key in given:
                continue
            given.add(key)
            standing = self._evidence.standing(context, action)
            if standing is not None and standing >= 0:
                yield action
            elif standing is not None:
                doubtful.append((standing, action))
        yield from (action for _, action in sorted(doubtful, key=lambda one: -one[0]))

    def _place(self, context: Context) -> np.ndarray:
        return np.array([axis.place(context.get(name)) for name, axis in self._conditions.items()], dtype=np.float64)

    # learning -----------------------------------------------------------------------------------------

    def update_policy(self, feedback: Feedback) -> None:
        """Take in a closed trial. One that was cancelled, or answered by the cache, says nothing."""
        self._pending.pop(feedback.trial_index, None)
        self._idle = self._idle + 1 if feedback.cached else 0
        if feedback.cached or feedback.status == "cancelled":
            return
        context: Any = feedback.context
        if self._serves and feedback.status in ("measured", "infeasible"):
            self._answered.add(exact_key(context, feedback.action))
        self._learn(context, feedback.action, feedback.value, feedback.status)

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Take in another run's trials. The cache here doesn't know them: their settings may come up again."""
        for trial in trials:
            if trial.cached_from is None and trial.status != "cancelled":
                self._learn(trial.context, trial.action, trial.reward, trial.status)

    def _learn(self, context: Context, action: Action, reward: float, status: str) -> None:
        cell = self._evidence.add(context, action, reward, status)
        self._weights = None
        if cell not in self._cells:
            if len(self._cells) >= MOST_CELLS:
                self._forget()
            self._cells[cell] = None
            self._belief.add(np.concatenate([self._place(context), self._source.place(action)]))
        if len(self._evidence) >= self._next_fit:
            self._next_fit = math.ceil(len(self._evidence) * FIT_GROWTH)
            with one_thread():
                self._belief.fit(self._evidence.of(self._cells))

    def _forget(self) -> None:
        """Keep the best cells, and of the others an even share, old and new: what is bad there should stay known."""
        order = np.argsort(-self._evidence.of(self._cells).means, kind="stable")
        best, others = np.split(order, [KEPT_CELLS // 2])
        some = np.linspace(0, len(others) - 1, KEPT_CELLS - len(best)).astype(int)
        kept = np.sort(np.concatenate([best, np.sort(others)[some]]))
        self._belief.keep(kept)
        cells = [*self._cells]
        self._cells = dict.fromkeys(cells[row] for row in kept.tolist())


def _count(settings: int | None, params: Iterable[EnvParam]) -> int | None:
    """How many cells there are; None if nobody can count them."""
    for param in params:
        if settings is None or not isinstance(param.domain, Choice):
            return None
        settings *= sum(weight > 0 for weight in param.weights) if param.weights else param.domain.size
    return settings
