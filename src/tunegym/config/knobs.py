"""Lists and ranges: the candidates of a knob or of an env_param."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from tunegym.config.findings import Findings
from tunegym.config.schema import RangeTable
from tunegym.config.spelling import kind, shown
from tunegym.config.tables import checked
from tunegym.tuning.model.space import Choice, Knob, Range
from tunegym.tuning.model.values import INT64, storable

TOLERANCE = 1e-9
"""How far a step may miss the end of its range, relative to the range's width."""

FINEST = 1e11
"""A float's steps must stay apart in the twelve digits to which a range rounds them."""


def is_range(value: object) -> bool:
    """Whether a table is meant as a range: it has ``low`` or ``high``. Any other is a nested table."""
    return isinstance(value, Mapping) and ("low" in value or "high" in value)


def knob(value: list[Any] | Mapping[str, Any], findings: Findings) -> Knob | None:
    """The knob that a list or a range describes, or None if it has a problem."""
    return choice(value, findings) if isinstance(value, list) else range_of(value, findings)


def choice(values: list[Any], findings: Findings) -> Choice | None:
    """The discrete knob with these candidates."""
    before = len(findings.problems)
    if not values:
        hint = "give at least one candidate, or remove the parameter"
        findings.add("the list is empty", found=values, allowed="one or more scalars", hint=hint)
    seen: set[tuple[type, Any]] = set()
    for index, value in enumerate(values):
        if storable(value) is not None:
            findings.at(index).add(
                f"{kind(value)} can't be a candidate",
                found=value,
                allowed="strings, integers, floats and booleans",
                hint="to keep the whole list as one value, name it in dse_excluded_args",
            )
        elif (type(value), value) in seen:
            findings.at(index).add(
                "this candidate is there twice",
                found=value,
                allowed="candidates that differ by type or value",
                hint=f"remove one {shown(value)}",
            )
        else:
            seen.add((type(value), value))
    return Choice(tuple(values)) if len(findings.problems) == before else None


def range_of(table: Mapping[str, Any], findings: Findings) -> Range | None:
    """The continuous or integer knob that ``{low, high, dtype, log, step}`` describes."""
    before = len(findings.problems)
    spec = checked(RangeTable, table, findings)
    for key in ("low", "high"):
        if key not in table:
            hint = f"write for example {key} = {1 if key == 'low' else 64}"
            findings.at(key).add("a range needs both low and high", found=table, hint=hint)
    if len(findings.problems) > before:
        return None
    assert spec.low is not None
    assert spec.high is not None
    dtype = spec.dtype or _default_dtype(spec)
    _check_bounds(spec.low, spec.high, spec, findings)
    if dtype == "int":
        _check_integers(spec, findings)
    if len(findings.problems) == before and spec.step is not None:
        _check_step(spec.low, spec.high, spec.step, dtype, findings.at("step"))
    if len(findings.problems) > before:
        return None
    number = int if dtype == "int" else float
    step = None if spec.step is None else number(spec.step)
    return Range(number(spec.low), number(spec.high), dtype, spec.log, step)


def _default_dtype(spec: RangeTable) -> Literal["int", "float"]:
    numbers = (spec.low, spec.high, 1 if spec.step is None else spec.step)
    return "int" if all(isinstance(number, int) for number in numbers) else "float"


def _check_bounds(low: float, high: float, spec: RangeTable, findings: Findings) -> None:
    if not low < high:
        hint = "swap them" if low > high else "widen the range, or write a single value instead"
        findings.at("low").add("low must be below high", found=low, allowed=f"less than {high!r}", hint=hint)
    elif not math.isfinite(float(high) - float(low)):
        findings.at("high").add("the range is too wide for a float", found=high, hint="narrow the range")
    if spec.log and low <= 0:
        hint = "raise low above 0, or remove log"
        findings.at("low").add("log needs a low above 0", found=low, allowed="a number above 0", hint=hint)
    if spec.log and spec.step is not None:
        findings.at("log").add("log and step exclude each other", found=True, hint="remove one of the two")


def _check_integers(spec: RangeTable, findings: Findings) -> None:
    if spec.high == INT64 - 1:  # Gymnasium counts one past the end to sample a Box
        what = "the largest integer of 64 bits can't end a range"
        findings.at("high").add(what, found=spec.high, allowed=f"up to {INT64 - 2}", hint="lower it by one")
    for key, number in (("low", spec.low), ("high", spec.high), ("step", spec.step)):
        if isinstance(number, float):
            findings.at(key).add(
                'dtype = "int" needs integers',
                found=number,
                allowed="an integer",
                hint=f'write {key} = {round(number)}, or dtype = "float"',
            )


def _check_step(low: float, high: float, step: float, dtype: str, findings: Findings) -> None:
    width = high - low
    if step <= 0:
        findings.add("a step must be above 0", found=step, allowed="a number above 0", hint="raise it, or remove it")
        return
    if dtype == "float" and max(abs(low), abs(high)) > step * FINEST:
        findings.add("the step is too fine for a float", found=step, hint="make it coarser, or remove it")
        return
    if dtype == "int":
        exact = width % step == 0
    else:
        count = round(width / step)
        exact = count > 0 and abs(count * step - width) <= TOLERANCE * width
    if not exact:
        reachable = low + width // step * step
        end = f"high = {reachable!r}" if reachable > low else "a smaller step"
        findings.add(
            f"the step doesn't divide the range from {low!r} to {high!r}",
            found=step,
            allowed="a number that divides high - low",
            hint=f"use {end}, or a step such as {_dividing(width, step, dtype)}",
        )


def _dividing(width: float, step: float, dtype: str) -> str:
    """A step near the wanted one that divides the width."""
    if dtype == "float":
        return f"{width / max(1, round(width / step)):.12g}"
    near = range(int(step), int(step) + 1000)
    return str(next((number for number in near if int(width) % number == 0), int(width)))
