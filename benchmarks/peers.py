"""Libraries of the extra ``peers`` as searchers: SMAC3, and BoTorch's multi-task Gaussian process."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.families.family import Family
from benchmarks.searchers import Observed
from tunegym.tuning.inference.coordinates import is_ordered
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.values import Action, Context

REFIT = 1.15
"""BoTorch's process is fitted again when there are 15 % more trials, as ours is."""
FIRST, RANDOM, NEIGHBOURS = 20, 500, 40
"""Random trials before its first fit, random candidates, and neighbours of each of its leaders."""
LEADERS, ITERATIONS = 5, 100


class SmacPerContext:
    """SMAC3 with its random forest and its defaults: a search in each context."""

    def __init__(self, family: Family, seed: int, trials: int) -> None:
        self._family, self._seed = family, seed
        self._trials = math.ceil(
            2 * trials / len(family.contexts)
        )  # contexts are drawn: one may get more than its share
        self._facades: dict[int, Any] = {}
        self._asked: dict[int, Any] = {}
        self._worst = 0.0
        self.observed = Observed(family)

    def ask(self, number: int, context: Context) -> Action:
        asked = self._facade(context).ask()
        self._asked[number] = asked
        chosen = asked.config
        return {
            name: knob.values[int(chosen[name])] if isinstance(knob, Choice) else knob.snap(chosen[name])
            for name, knob in self._family.knobs.items()
        }

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        from smac.runhistory import StatusType, TrialValue  # type: ignore[import-not-found]

        cost = self._worst
        if metric is not None:
            cost = math.log(metric) * (1 if self._family.goal == "min" else -1)
        self._worst = max(self._worst, cost)
        status = StatusType.CRASHED if metric is None else StatusType.SUCCESS
        self._facade(context).tell(self._asked.pop(number), TrialValue(cost=cost, status=status))
        self.observed.add(context, action, metric)

    def recommend(self, context: Context) -> Action:
        return self.observed.best(context)[0]

    def _facade(self, context: Context) -> Any:
        index = self.observed.contexts.index(context)
        if index not in self._facades:
            self._facades[index] = self._new_facade(1000 * self._seed + index)
        return self._facades[index]

    def _new_facade(self, seed: int) -> Any:
        from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer  # type: ignore[import-not-found]
        from smac import HyperparameterOptimizationFacade, Scenario  # type: ignore[import-not-found]

        space = ConfigurationSpace(seed=seed)
        for name, knob in self._family.knobs.items():
            if not isinstance(knob, Choice):
                kind = Integer if knob.dtype == "int" else Float
                space.add(kind(name, (knob.low, knob.high), log=knob.log))
            elif is_ordered(knob):
                space.add(Integer(name, (0, knob.size - 1)))
            else:
                space.add(Categorical(name, list(range(knob.size))))
        home = Path(mkdtemp(prefix="tunegym-bench-smac-"))
        scenario = Scenario(space, n_trials=self._trials, deterministic=True, seed=seed, output_directory=home)
        return HyperparameterOptimizationFacade(scenario, _call, logging_level=False, overwrite=True)


def _call(config: Any, seed: int = 0) -> float:
    raise AssertionError(f"SMAC is asked and told: it calls nothing, {config} and {seed} included")


class MultiTask:
    """BoTorch's multi-task Gaussian process with expected improvement: a context is a task."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._draw = np.random.default_rng([seed, 3])
        self._trials: list[tuple[Action, int, float]] = []
        self._model: Any = None
        self._fitted = 0
        self.observed = Observed(family)

    def ask(self, number: int, context: Context) -> Action:
        if len(self._trials) < FIRST:
            return self._random()
        if self._model is None or len(self._trials) >= REFIT * self._fitted:
            self._fit()
        index = self.observed.contexts.index(context)
        tried, means = self._means(index)
        leaders = [tried[place] for place in np.argsort(means)[:LEADERS]]
        candidates = [self._random() for _ in range(RANDOM)]
        candidates += [self._neighbour(leader) for leader in leaders for _ in range(NEIGHBOURS)]
        expected, deviation = self._posterior(candidates, index)
        below = (means.min() - expected) / deviation
        return candidates[int(np.argmax(deviation * (below * norm.cdf(below) + norm.pdf(below))))]

    def tell(self, number: int, context: Context, action: Action, metric: float | None) -> None:
        if metric is not None:
            cost = math.log(metric) * (1 if self._family.goal == "min" else -1)
            self._trials.append((action, self.observed.contexts.index(context), cost))
        self.observed.add(context, action, metric)

    def recommend(self, context: Context) -> Action:
        self._fit()
        tried, means = self._means(self.observed.contexts.index(context))
        return tried[int(np.argmin(means))]

    def _fit(self) -> None:
        import torch
        from botorch.fit import fit_gpytorch_mll  # type: ignore[import-not-found]
        from botorch.models import MultiTaskGP  # type: ignore[import-not-found]
        from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore[import-not-found]

        torch.manual_seed(0)
        indices = np.array([index for _, index, _ in self._trials])
        costs = np.array([cost for *_, cost in self._trials])
        for index in np.unique(indices):
            own = costs[indices == index]
            costs[indices == index] = (own - own.mean()) / max(float(own.std()), 1e-6)
        points = torch.cat([self._points([action], index) for action, index, _ in self._trials])
        tasks = list(range(len(self.observed.contexts)))
        targets = torch.tensor(costs).unsqueeze(-1)
        self._model = MultiTaskGP(points, targets, task_feature=-1, output_tasks=[0], all_tasks=tasks)
        likelihood = ExactMarginalLogLikelihood(self._model.likelihood, self._model)
        fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": ITERATIONS}})
        self._fitted = len(self._trials)

    def _means(self, index: int) -> tuple[list[Action], np.ndarray]:
        """The settings that were measured in a context (in any, if there are none), and their posterior means."""
        tried = [action for action, other, _ in self._trials if other == index]
        tried = tried or [action for action, *_ in self._trials]
        return tried, self._posterior(tried, index)[0]

    def _posterior(self, actions: list[Action], index: int) -> tuple[np.ndarray, np.ndarray]:
        """Posterior means and standard deviations."""
        import torch

        with torch.no_grad():
            posterior = self._model.posterior(self._points(actions, index))
            return posterior.mean.numpy().ravel(), posterior.variance.clamp_min(1e-12).sqrt().numpy().ravel()

    def _points(self, actions: list[Action], index: int) -> Any:
        """Ordered knobs on [0, 1], the others one-hot, and the task."""
        import torch

        rows = []
        for action in actions:
            row: list[float] = []
            for name, knob in self._family.knobs.items():
                if not isinstance(knob, Choice):
                    row.append(knob.position(float(action[name])))
                elif is_ordered(knob):
                    row.append((knob.index(action[name]) or 0) / (knob.size - 1))
                else:
                    row += [float(value == action[name]) for value in knob.values]
            rows.append([*row, float(index)])
        return torch.tensor(rows, dtype=torch.double)

    def _random(self) -> Action:
        return {name: knob.from_unit(self._draw.random()) for name, knob in self._family.knobs.items()}

    def _neighbour(self, action: Action) -> Action:
        names = list(self._family.knobs)
        name = names[int(self._draw.integers(len(names)))]
        return {**action, name: self._family.knobs[name].from_unit(self._draw.random())}
