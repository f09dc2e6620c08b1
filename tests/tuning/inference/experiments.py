"""Searches and rounds over simulated systems, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tunegym.tuning.inference.confirmation import Confirmation, reserve
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.inference.proposal import Search
from tunegym.tuning.inference.surrogate import Theta
from tunegym.tuning.model.scenario import Judged, Objective, OverContexts
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Space
from tunegym.tuning.model.trial import BASELINE, CONFIRM, Failed, Measured, Outcome, Trial
from tunegym.tuning.model.values import Action, Context

KNOBS: dict[str, Knob] = {
    "threads": Choice((1, 2, 4, 8)),
    "mode": Choice(("slow", "fast", "odd")),
    "idle": Choice((1, 2, 3, 4)),
}
TODAY = {"threads": 1, "mode": "slow", "idle": 1}

Cost = Callable[[Action, Context], float | None]
"""The typical cost of a setting in a context; None where it fails."""


def steady(action: Action, context: Context) -> float:
    """Twice as fast with four threads, and again in fast mode."""
    cost = {1: 2.0, 2: 1.5, 4: 1.0, 8: 1.2}[int(action["threads"])]
    cost *= {"slow": 2.0, "fast": 1.0, "odd": 1.5}[str(action["mode"])]
    return cost * {"low": 1.0, "high": 50.0}.get(str(context.get("load")), 1.0)


def loads(*values: str) -> EnvParams:
    """Contexts of a list."""
    return EnvParams({"load": EnvParam(Choice(values))} if values else {}, seed=3)


@dataclass
class Simulation:
    """An experiment whose trials are drawn here: ``search``, then ``confirm``."""

    cost: Cost = steady
    noise: float = 0.05
    seed: int = 0
    knobs: dict[str, Knob] = field(default_factory=lambda: dict(KNOBS))
    params: EnvParams = field(default_factory=loads)
    baseline: Action | None = field(default_factory=lambda: dict(TODAY))
    objectives: tuple[Objective, ...] = ()
    over_contexts: OverContexts = "mean"
    metrics: Callable[[float], dict[str, float]] = lambda value: {"seconds": value}
    judged: Judged = field(default_factory=lambda: Judged("seconds", "min"))
    allowed: Callable[[Action, Context], bool] = lambda action, context: True
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.space = Space(self.knobs)
        self.question = Question(
            space=self.space,
            params=self.params,
            judged=self.judged,
            objectives=self.objectives,
            baseline=self.baseline,
            over_contexts=self.over_contexts,
        )
        self.draw = np.random.default_rng(self.seed)

    def measure(self, action: Action, context: Context, phase: str) -> Trial:
        """Run the next trial."""
        cost = self.cost(action, context)
        outcome: Outcome = Failed("it broke")
        if cost is not None:
            outcome = Measured((self.metrics(cost * float(np.exp(self.noise * self.draw.standard_normal()))),))
        reward = -outcome.mean().get("seconds", 0.0) if isinstance(outcome, Measured) else -1e9
        number = len(self.trials) + 1
        trial = Trial(number, dict(context), dict(action), outcome, reward, 0.1, phase=phase)
        self.trials.append(trial)
        return trial

    def searcher(self, budget: int) -> Search:
        """A search that knows the trials so far."""
        search = Search(self.question, budget, self.seed, self.allowed, self.drawn)
        for trial in self.trials:
            search.add(trial)
        return search

    def drawn(self, context: Context, number: int) -> Action:
        """The random setting of a number."""
        draws = (self.space.draw(self.seed, "test", number, attempt) for attempt in range(1000))
        return next(action for action in draws if self.allowed(action, context))

    def search(self, budget: int) -> Simulation:
        """Measure the baseline everywhere, and search until there are ``budget`` trials."""
        if self.baseline is not None and not self.trials:
            for context in self.question.contexts.contexts:
                self.measure(self.baseline, context, BASELINE)
        search, fits = self.searcher(budget), Fits()
        while len(self.trials) < budget:
            number = len(self.trials) + 1
            context = self.params.context(number)
            proposal = search.propose(number, context, (), fits.of(search))
            if proposal is None:
                break
            search.add(self.measure(proposal.action, context, proposal.phase))
        return self

    def confirm(self, trials: int, rounds: int = 100) -> Confirmation:
        """Measure rounds until ``trials`` are used, at most so many."""
        plan = self.plan(trials)
        for _ in range(rounds):
            planned = plan.next_round()
            if not planned:
                break
            plan.add([self.measure(action, context, CONFIRM) for action, context in planned])
        return plan

    def plan(self, trials: int) -> Confirmation:
        """The rounds after the trials so far."""
        return Confirmation(self.question, self.trials, trials, self.seed, self.allowed)

    def run(self, budget: int) -> Simulation:
        """Search and confirm inside one budget."""
        kept = reserve(self.question, budget, 0.2)
        self.search(budget - kept).confirm(kept)
        return self


class Fits:
    """Hyperparameters by the number of trials that they rest on."""

    def __init__(self) -> None:
        self._fits: dict[int, Theta] = {}

    def of(self, search: Search) -> Callable[[int], Theta]:
        """The fits of a search, each made once."""

        def fit(size: int) -> Theta:
            if size not in self._fits:
                self._fits[size] = search.fit(size)
            return self._fits[size]

        return fit


def proposals(search: Search, numbers: Iterable[int], params: EnvParams) -> list[Action]:
    """What a search would measure under each of these numbers, each asked alone."""
    fits = Fits()
    asked = (search.propose(number, params.context(number), (), fits.of(search)) for number in numbers)
    return [proposal.action for proposal in asked if proposal is not None]
