"""The winning settings: what ``best.toml`` and the closing table say.

Only measurements win, and settings that keep every limit come before those that don't. With several objectives
there is a set of winners, none of which is better than another in every respect: the Pareto set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunegym.tuning.answers.ranking import Measurements, Setting, front
from tunegym.tuning.model.objective import aims

MOST_CONTEXTS = 50
"""With more contexts than this, nothing is said of each one."""


@dataclass(frozen=True)
class Best:
    """The best settings of an experiment.

    Attributes:
        overall: the best over all contexts; of a Pareto set the one with the highest reward. None if nothing was
            measured.
        per_context: the best in each context, where there are several and not too many.
        pareto: with several objectives, the Pareto set.
    """

    overall: Setting | None
    per_context: tuple[Setting, ...] = ()
    pareto: tuple[Setting, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for TOML and JSON."""
        document: dict[str, Any] = {"best": self.overall.as_dict()} if self.overall is not None else {}
        if self.pareto:
            document["pareto"] = [setting.as_dict() for setting in self.pareto]
        if self.per_context:
            document["per_context"] = [setting.as_dict() for setting in self.per_context]
        return document


def best_among(found: Measurements) -> Best:
    """The best settings. A trial without a measurement never wins."""
    pareto = _pareto(found)
    winner = max(pareto or found.actions, key=found.order, default=None)
    return Best(
        None if winner is None else found.setting(found.values[winner]),
        tuple(sorted(_per_context(found), key=lambda one: one.first)),
        tuple(found.setting(found.values[action]) for action in pareto),
    )


def _per_context(found: Measurements) -> list[Setting]:
    """The best setting in each context. One that is drawn from a range never comes twice: nothing is said of it."""
    if not found.usual.varies or found.usual.contexts > MOST_CONTEXTS:
        return []
    groups: dict[bytes, list[bytes]] = {}
    for action in found.actions:
        for context in found.contexts(action):
            groups.setdefault(context, []).append(action)
    winners = [(max(actions, key=lambda one: found.order(one, at)), at) for at, actions in groups.items()]
    return [found.setting(found.values[action], found.values[context]) for action, context in winners]


def _pareto(found: Measurements) -> list[bytes]:
    """The Pareto set over all contexts, best first by the first objective; empty with fewer than two objectives."""
    goals = aims(found.objectives)
    if len(goals) < 2:
        return []
    violations = {action: found.violation(action) for action in found.actions}
    least = min(violations.values(), default=0.0)
    return front(
        {
            action: [goal.sign * found.metrics[goal.metric].over_all(action).score for goal in goals]
            for action, violation in violations.items()
            if violation <= least
        }
    )
