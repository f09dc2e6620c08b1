"""Knobs as Optuna's distributions, and values to and fro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunegym.tuning.model.space import Choice, Knob, Space
from tunegym.tuning.model.values import Action, Scalar

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


MOST_LISTED = 10_000
"""A sampler that lists the values of a stepped range gets a continuous one if there are more."""


def distributions(space: Space, *, lists: bool = False) -> dict[str, BaseDistribution]:
    """The space's native distributions, by address; ``lists`` if the sampler lists the values of stepped ranges."""
    return {name: _distribution(knob, lists) for name, knob in space.knobs.items()}


def _distribution(knob: Knob, lists: bool) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(knob, Choice):
        # By position: Optuna compares choices with ==, for which 1, 1.0 and true are the same.
        return CategoricalDistribution(range(knob.size))
    step = knob.step or (1 if knob.dtype == "int" else None)
    if lists and step is not None and (knob.high - knob.low) / step > MOST_LISTED:
        return FloatDistribution(float(knob.low), float(knob.high), log=knob.log)
    if knob.dtype == "int":
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log, step=int(knob.step or 1))
    return FloatDistribution(float(knob.low), float(knob.high), log=knob.log, step=knob.step)


def to_action(space: Space, params: dict[str, Any]) -> dict[str, Scalar]:
    """Optuna's values as an action."""
    return {
        name: knob.at(params[name]) if isinstance(knob, Choice) else knob.snap(params[name])
        for name, knob in space.knobs.items()
    }


def to_params(space: Space, action: Action) -> dict[str, Any]:
    """An action of the space as Optuna's values."""
    return {
        name: knob.index(action[name]) if isinstance(knob, Choice) else action[name]
        for name, knob in space.knobs.items()
    }
