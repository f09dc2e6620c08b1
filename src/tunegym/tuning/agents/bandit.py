"""A contextual bandit: Thompson sampling over contexts and settings."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import ThreadpoolController

from tunegym.core.errors import Problem
from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import AgentConfig, BaseAgent, warm_start_problems
from tunegym.tuning.agents.belief import Axis, Belief, Told
from tunegym.tuning.agents.history import TrialHistory, count_cells
from tunegym.tuning.agents.policies import PolicyChoice
from tunegym.tuning.envs.actions import BINS, binned
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, Knob, Space
from tunegym.tuning.model.trial import Feedback, Observation, Trial
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key
from tunegym.tuning.ports import Env

NAME = "contextual_bandit"
DRAWS = 32
"""Joint draws of all candidates' rewards per trial."""
SECOND = 0.5
"""Share of trials that go to the runner-up."""
PATIENCE = 20
"""After this many cache hits in a row a new setting is tried, however poor it looks."""
GOOD = 3
"""Number of good settings whose neighbours are candidates too."""
FIRST_FIT = 6
FIT_GROWTH = 1.25
"""The belief is fitted first after this many trials, then whenever their number has grown by this factor."""
MOST_BINS = 1000
MOST_CELLS = 500
KEPT_CELLS = 400
"""At ``MOST_CELLS`` the belief is cut down to ``KEPT_CELLS``, half of them the best ones."""
MOST_ENUMERATED = 512
"""Up to this many combinations all are candidates; of more, ``DRAWN`` are drawn."""
DRAWN = 192
STRIDES = (0.02, 0.1)
"""Standard deviations of neighbours in a range, as a share of it."""
NEIGHBOURS = 6
"""Most neighbours along each knob."""


@dataclass(frozen=True, kw_only=True)
class BanditConfig(AgentConfig):
    """Settings of ``contextual_bandit``; near good settings there are values between the ``bins`` of a range."""

    bins: int = BINS
    warm_start: str | None = None


class ContextualBandit(BaseAgent):
    """Thompson sampling: learns which settings win in which context.

    For each trial the rewards of all candidates are drawn jointly from the belief, and the winner is tried. In half of
    the trials it is the runner-up (top-two sampling): only the final knowledge counts, and repeating the leader teaches
    little.

    A setting that the cache would answer is not tried again if another draw has a new winner. If none has, the belief
    is settled, and the winner is repeated at no cost; after ``PATIENCE`` such trials in a row a new setting is tried
    anyway. A cache hit is no evidence. When every setting was measured in every context, the run ends.

    Choices depend only on the trials told, their order and the trial's number: at one slot a resumed run chooses as the
    uninterrupted one would have.
    """

    Config: ClassVar[type[AgentConfig]] = BanditConfig
    supports_variable_environment: ClassVar[bool] = True

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        params = env.experiment.env_params.params
        self._source = CandidateSource(env.space, self.config.bins)
        self._conditions = {name: Axis(param.domain) for name, param in params.items()}
        self._belief = Belief(list(self._conditions.values()), list(self._source.axes.values()))
        self._stats = CellStats()
        self._cells: dict[int, None] = {}  # cells of the belief, in its order
        self._weights: np.ndarray | None = None
        self._next_fit = FIRST_FIT
        self._serves = env.experiment.cache
        self._everything = count_cells(env.space, params)
        self._answered: set[bytes] = set()
        self._pending: dict[int, bytes] = {}
        self._idle = 0

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse a number of bins out of bounds, and a bad warm start."""
        config: BanditConfig = experiment.agent_config
        problems = warm_start_problems(config.warm_start, scenario_dir)
        if not 2 <= config.bins <= MOST_BINS:
            what, allowed = "the value is out of bounds", f"at least 2 and at most {MOST_BINS}"
            hint = f"leave bins out, or write a number that is {allowed}"
            problems.append(Problem("agent_config.bins", what, str(config.bins), allowed, hint))
        return problems

    # choices -----------------------------------------------------------------------------------------

    def select_action(self, observation: Observation) -> dict[str, Scalar] | None:
        """A draw from the belief about the best setting; None when there is nothing left to learn."""
        number, context = observation.number, observation.context
        if self._idle >= PATIENCE and len(self._answered) == self._everything:
            self.ended = "every setting was tried"
            return None
        if number == 1 and self.config.start_action == "first":
            action = self.first_action()
        else:
            with one_thread():
                action = self._thompson(number, context)
        if self._serves:
            self._pending[number] = exact_key(context, action)
        return action

    def choose(self, context: Context) -> PolicyChoice | None:
        """The working setting whose expected reward, less its uncertainty, is the highest; None if there is none.

        One that was only measured in other contexts has to promise more. A setting that failed in this context more
        often than not comes only after all others.
        """
        with one_thread():
            best = next(self._best(context, cautious=True), None)
        return None if best is None else PolicyChoice(dict(best), None, context)

    def _thompson(self, number: int, context: Context) -> dict[str, Scalar]:
        generator = np.random.default_rng(integer(self.seed, 2**63, NAME, number))
        there = self._place(context)
        good: list[Action] = []
        if not self._source.complete:
            good = [action for action, _ in zip(self._best(context), range(GOOD), strict=False)]
        candidates = self._source.make(generator, good)
        normal = generator.standard_normal((len(candidates), DRAWS))
        drawn = self._belief.drawn(there, candidates.places, self._stats.of(self._cells), normal)
        winner, *others = dict.fromkeys(drawn.argmax(axis=0).tolist())
        second = others and unit(self.seed, NAME, "second", number) < SECOND
        rows = [*others, winner] if second else [winner, *others]
        if not self._serves:
            return candidates.action(rows[0])
        if self._idle >= PATIENCE:
            rows += np.argsort(-drawn[:, 0], kind="stable").tolist()
        return self._new(context, candidates, rows) or candidates.action(winner)

    def _new(self, context: Context, candidates: Candidates, rows: Sequence[int]) -> dict[str, Scalar] | None:
        """The first of these that is neither in the cache nor being measured; None if there is none."""
        busy = set(self._pending.values())
        for row in rows:
            action = candidates.action(row)
            key = exact_key(context, action)
            if key not in self._answered and key not in busy:
                return action
        return None

    def _best(self, context: Context, cautious: bool = False) -> Iterator[Action]:
        """Distinct settings that worked in any context, by expected reward in this one; ``cautious``: less its spread.

        Settings that failed here more often than not come last, ordered by failures.
        """
        if not self._cells:
            return
        cells = [*self._cells]
        told = self._stats.of(cells)
        if self._weights is None:
            self._weights = self._belief.weights(told)
        there = self._place(context)
        expected = self._belief.expected(there, told, self._weights)
        if cautious:
            settings = self._belief.places[:, len(there) :]
            away = self._belief.drawn(there, settings, told, np.eye(len(cells))) - expected[:, None]
            expected -= np.sqrt((away * away).sum(axis=1))
        seen: set[bytes] = set()
        doubtful: list[tuple[int, Action]] = []
        for row in np.argsort(-expected, kind="stable").tolist():
            action = self._stats.actions[cells[row]]
            key = exact_key(action)
            if key in seen:
                continue
            seen.add(key)
            balance = self._stats.history.balance(context, key)
            if balance is not None and balance >= 0:
                yield action
            elif balance is not None:
                doubtful.append((balance, action))
        yield from (action for _, action in sorted(doubtful, key=lambda one: -one[0]))

    def _place(self, context: Context) -> np.ndarray:
        return np.array([axis.place(context.get(name)) for name, axis in self._conditions.items()], dtype=np.float64)

    # feedback -----------------------------------------------------------------------------------------

    def update_policy(self, feedback: Feedback) -> None:
        """Learn from a closed trial; cancelled and cached ones teach nothing."""
        self._pending.pop(feedback.trial_index, None)
        self._idle = self._idle + 1 if feedback.cached else 0
        if feedback.cached or feedback.status == "cancelled":
            return
        context: Any = feedback.context
        if self._serves and feedback.status in ("measured", "infeasible"):
            self._answered.add(exact_key(context, feedback.action))
        self._learn(context, feedback.action, feedback.value, feedback.status)

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Learn from another run's trials. The cache doesn't have them: their settings may come up again."""
        for trial in trials:
            if trial.cached_from is None and trial.status != "cancelled":
                self._learn(trial.context, trial.action, trial.reward, trial.status)

    def _learn(self, context: Context, action: Action, reward: float, status: str) -> None:
        cell = self._stats.add(context, action, reward, status)
        self._weights = None
        if cell not in self._cells:
            if len(self._cells) >= MOST_CELLS:
                self._forget()
            self._cells[cell] = None
            self._belief.add(np.concatenate([self._place(context), self._source.place(action)]))
        trials = len(self._stats.history)
        if trials >= self._next_fit:
            self._next_fit = math.ceil(trials * FIT_GROWTH)
            with one_thread():
                self._belief.fit(self._stats.of(self._cells))

    def _forget(self) -> None:
        """Keep the best cells and an even share of the others, so that bad regions stay known."""
        order = np.argsort(-self._stats.of(self._cells).means, kind="stable")
        best, others = np.split(order, [KEPT_CELLS // 2])
        some = np.linspace(0, len(others) - 1, KEPT_CELLS - len(best)).astype(int)
        kept = np.sort(np.concatenate([best, np.sort(others)[some]]))
        self._belief.keep(kept)
        cells = [*self._cells]
        self._cells = dict.fromkeys(cells[row] for row in kept.tolist())


def one_thread() -> AbstractContextManager[Any]:
    """Keep numpy's linear algebra to one thread: two threads on busy cores take fifty times longer for 200 rows.

    The limit holds for the whole process: a workload in this process has one thread as well meanwhile.
    """
    return _blas().limit(limits=1)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


# candidates -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """Candidate settings of one trial, a row of places each: first some of the grid, then those near good ones."""

    places: np.ndarray
    grid: dict[str, tuple[Scalar, ...]]
    indices: np.ndarray
    near: Sequence[dict[str, Scalar]]

    def __len__(self) -> int:
        return len(self.places)

    def action(self, row: int) -> dict[str, Scalar]:
        """The setting of a row."""
        if row >= len(self.indices):
            return self.near[row - len(self.indices)]
        return {name: values[at] for (name, values), at in zip(self.grid.items(), self.indices[row], strict=True)}


class CandidateSource:
    """Makes candidates: all combinations if there are few, otherwise a drawn part of them.

    Neighbours of good settings, which differ in one knob, are added; in a range also values between the bins.
    """

    def __init__(self, space: Space, bins: int) -> None:
        self._knobs = space.knobs
        self._grid = {name: binned(knob, bins) for name, knob in space.knobs.items()}
        self.axes = {name: Axis(knob) for name, knob in space.knobs.items()}
        self._places = [
            np.array([self.axes[name].place(value) for value in values]) for name, values in self._grid.items()
        ]
        self._sizes = [len(values) for values in self._grid.values()]
        self._all: np.ndarray | None = None
        if math.prod(self._sizes) <= MOST_ENUMERATED:
            self._all = np.indices(self._sizes).reshape(len(self._sizes), -1).T
        self.complete = self._all is not None and all(
            isinstance(knob, Choice) or knob.size == len(self._grid[name]) for name, knob in space.knobs.items()
        )
        """Whether the candidates are always all settings there are."""

    def make(self, generator: np.random.Generator, good: Sequence[Action]) -> Candidates:
        """The candidates of one trial, with neighbours of the ``good`` settings."""
        indices = self._all
        if indices is None:
            indices = generator.integers(self._sizes, size=(DRAWN, len(self._sizes)))
        near: list[dict[str, Scalar]] = []
        if not self.complete:
            near = [one for action in good for one in self._around(action, generator)]
        places = np.empty((len(indices) + len(near), len(self._sizes)))
        for knob, (column, table) in enumerate(zip(indices.T, self._places, strict=True)):
            places[: len(indices), knob] = table[column]
        for row, action in enumerate(near, start=len(indices)):
            places[row] = self.place(action)
        return Candidates(places, self._grid, indices, near)

    def place(self, action: Action) -> list[float]:
        """The places of a setting."""
        return [axis.place(action[name]) for name, axis in self.axes.items()]

    def _around(self, action: Action, generator: np.random.Generator) -> Iterator[dict[str, Scalar]]:
        """The setting and its neighbours."""
        yield dict(action)
        for name in self._knobs:
            for value in _neighbours(self._knobs[name], action[name], generator):
                yield {**action, name: value}


def _neighbours(knob: Knob, value: Any, generator: np.random.Generator) -> list[Scalar]:
    if isinstance(knob, Choice):
        others = [other for index, other in enumerate(knob.values) if index != knob.index(value)]
        if len(others) <= NEIGHBOURS:
            return others
        return [others[index] for index in generator.choice(len(others), NEIGHBOURS, replace=False).tolist()]
    away = generator.standard_normal((NEIGHBOURS // len(STRIDES), len(STRIDES))) * STRIDES
    here = knob.position(float(value))
    return [knob.at_position(here + step) for step in away.ravel().tolist()]


# closed trials --------------------------------------------------------------------------------------


class CellStats:
    """Rewards of closed trials by cell. Cells are numbered in the order in which they came up."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.history = TrialHistory()
        self._cells: dict[bytes, int] = {}
        self._owners = array("q")

    def add(self, context: Context, action: Action, reward: float, status: str) -> int:
        """Record a trial; returns its cell."""
        cell = self._cells.setdefault(exact_key(context, action), len(self.actions))
        if cell == len(self.actions):
            self.actions.append(action)
        self.history.add(context, action, reward, status)
        self._owners.append(cell)
        return cell

    def of(self, cells: Iterable[int]) -> Told:
        """Means and counts of these cells, on the scale of all trials."""
        owners, rewards = np.array(self._owners), self.history.scaled()
        totals = np.zeros((3, len(self.actions)))
        for column, values in zip(totals, (np.ones(len(owners)), rewards, rewards * rewards), strict=True):
            np.add.at(column, owners, values)
        counts, sums, squares = totals[:, np.fromiter(cells, np.int64)]
        means = sums / counts
        return Told(means, counts, float(np.maximum(squares - sums * means, 0.0).sum()))
