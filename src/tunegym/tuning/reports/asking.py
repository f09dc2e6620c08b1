"""What a user asks for: a context, checked against what the run could have drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunegym.core.errors import ConfigError, Problem
from tunegym.core.escaping import escaped
from tunegym.core.spelling import closest
from tunegym.tuning.model.space import Choice, Knob, Range
from tunegym.tuning.model.values import Context, Scalar, native, spelled

WHERE = "--context"


def domain(spec: Mapping[str, Any]) -> Knob:
    """A knob or env_param as the journal's head describes it."""
    if "values" in spec:
        return Choice(tuple(spec["values"]))
    return Range(spec["low"], spec["high"], spec["dtype"], spec.get("log", False), spec.get("step"))


def asked(context: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, Scalar]:
    """``context`` in the run's own order and types.

    Raises:
        ConfigError: an unknown name, or a value that the run could not have drawn; it lists what is allowed.
    """
    domains = {name: domain(spec) for name, spec in head["env_params"].items()}
    problems: list[Problem] = []
    found: dict[str, Scalar] = {}
    for name, value in context.items():
        if name not in domains:
            problems.append(_unknown(name, value, domains, head["knobs"]))
            continue
        try:
            found[name] = domains[name].accept(native(value))
        except ValueError:
            problems.append(_outside(name, value, domains[name]))
    if problems:
        raise ConfigError(WHERE, problems)
    return {name: found[name] for name in domains if name in found}


def _unknown(name: str, value: object, domains: Mapping[str, Knob], knobs: Mapping[str, Any]) -> Problem:
    match = closest(name, domains)
    if not domains:
        hint = "leave it out: this experiment has no env_params"
    elif name in knobs:
        hint = "leave it out: it is a knob, and the answer says what to set it to"
    elif match is not None:
        hint = f"did you mean {match}?"
    else:
        hint = "give one of these"
    return Problem(name, "there is no such env_param", _shown(value), ", ".join(domains) or "none", hint)


def _outside(name: str, value: object, knob: Knob) -> Problem:
    if isinstance(knob, Range):
        what, hint = "the value is out of bounds", f"give a number from {knob.low} to {knob.high}"
    else:
        what = "this is none of its candidates"
        match = next((one for one in knob.values if str(one).lower() == str(value).lower()), None)
        match = _same_number(value, knob) if match is None else match
        if match is None and isinstance(value, str):
            match = closest(value, [one for one in knob.values if isinstance(one, str)])
        hint = f"write {name}={_typed(match)}" if match is not None else "give one of these"
    return Problem(name, what, _shown(value), knob.describe(), hint)


def _same_number(value: object, knob: Choice) -> Scalar | None:
    """The candidate of another type that is the same number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return next((one for one in knob.values if not isinstance(one, bool) and one == value), None)


def _typed(value: Scalar) -> str:
    """As it is to be typed in a shell so that it is read as this very type: a string that looks like none is bare."""
    if not isinstance(value, str):
        return spelled(value)
    return value if value.replace("-", "").replace("_", "").isalpha() else f"'{spelled(value)}'"


def _shown(value: object) -> str:
    try:
        return spelled(value)
    except TypeError:
        return repr(value)


def pairs(values: Mapping[str, Scalar]) -> str:
    """``load=0.1 net="wifi"``."""
    return " ".join(f"{escaped(name)}={spelled(value)}" for name, value in values.items())


def matches(context: Context, wanted: Context) -> bool:
    """Whether a context has the wanted values, by exact type."""
    return all(type(context[name]) is type(value) and context[name] == value for name, value in wanted.items())
