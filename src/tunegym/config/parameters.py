"""Parameters: ``cmd_args``, ``extra_env_vars`` and ``num_nodes`` become knobs and fixed values by address.

``env_params`` says which of the knobs the environment draws instead of the agent choosing them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunegym.config.problems import Components, Findings, kind, known, listed, shown
from tunegym.config.schema import LIVE_KEYS, ChoiceTable, EnvParamTable, ExperimentTable, RangeTable, checked
from tunegym.core.errors import ObservationError
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.space import Choice, EnvParam, EnvParams, Knob, Range
from tunegym.tuning.model.values import INT64, Scalar, counted, storable

EXPERIMENT_KEYS = frozenset(ExperimentTable.model_fields) - {"name", "workload", "metrics", *LIVE_KEYS}
"""Keys that are no parameters: in ``cmd_args`` they would silently do nothing. A program may well have a
parameter called name, workload or metrics, or server where there is none."""

TOLERANCE = 1e-9
"""How far a step may miss the end of its range, relative to the range's width."""

FINEST = 1e11
"""A float's steps must stay apart in the twelve digits to which a range rounds them."""

SUM_TOLERANCE = 1e-6
_BOUNDS = {"min": "low", "max": "high"}
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NOT_DRAWABLE = {
    "scalar": ("is a single value, and there is nothing to draw", "make it a list of candidates"),
    "single": ("has fewer than two candidates", "give it two or more candidates"),
    "table": ("is a table, not a parameter", "name a parameter inside the table"),
    "excluded": ("is excluded, and stays one value", "remove it from dse_excluded_args or from env_params"),
    "own": ("is the workload's own key, not a parameter", "name a parameter that isn't the workload's own"),
}


@dataclass
class Parameters:
    """The findings of a walk over the parameters, by address."""

    own: dict[str, Any] = field(default_factory=dict)  # the workload's own keys
    knobs: dict[str, Knob] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    # what stands at an address: list, range, single, scalar, table, excluded, own or broken
    kinds: dict[str, str] = field(default_factory=dict)

    def put(self, address: str, value: Any, findings: Findings) -> None:
        """Take in a scalar, a list or a range."""
        if not isinstance(value, list | dict):
            self.fixed[address] = value
            self.kinds[address] = "scalar"
            return
        knob = _choice(value, findings) if isinstance(value, list) else _knob(value, findings)
        if knob is None:
            self.kinds[address] = "broken"
        elif isinstance(knob, Choice) and knob.size == 1:
            self.fixed[address] = knob.values[0]
            self.kinds[address] = "single"
        else:
            self.knobs[address] = knob
            self.kinds[address] = "list" if isinstance(knob, Choice) else "range"


def gather(
    table: ExperimentTable, reserved: Iterable[str], findings: Findings, keys: Collection[str] = EXPERIMENT_KEYS
) -> Parameters:
    """All parameters of an experiment. Those with a problem are left out, and so is any of ``keys``."""
    arguments = dict(table.cmd_args or {})
    own = {key: arguments.pop(key) for key in reserved if key in arguments}
    parameters = Parameters(own, kinds=dict.fromkeys(own, "own"))
    addresses = _addresses(arguments, "")
    for index, address in enumerate(table.dse_excluded_args):
        if address not in addresses:
            hint = did_you_mean(address, addresses, "name a parameter of cmd_args, or remove it")
            below = findings.at("dse_excluded_args").at(index)
            below.add(f"cmd_args has no {shown(address)}", found=address, allowed=listed(addresses), hint=hint)
    below = findings.at("cmd_args")
    for key in [key for key in arguments if key in keys]:
        hint = f"move {key} out of cmd_args, below [[experiments]]"
        below.at(key).add(f"{key} is a key of the experiment, not a parameter", found=arguments.pop(key), hint=hint)
    _walk(arguments, "", {*table.dse_excluded_args}, parameters, below)
    _variables(table.extra_env_vars, parameters, findings.at("extra_env_vars"))
    if table.num_nodes is not None:
        parameters.put("num_nodes", table.num_nodes, findings.at("num_nodes"))
    return parameters


def _walk(
    table: Mapping[str, Any], prefix: str, excluded: set[str], parameters: Parameters, findings: Findings
) -> None:
    for key, value in table.items():
        below, address = findings.at(key), f"{prefix}{key}"
        if not _PARAMETER.match(key):
            allowed = "letters, digits, _ and -, beginning with a letter or _"
            below.add("this can't be a parameter's name", found=key, allowed=allowed, hint="rename it")
        elif address in excluded:
            parameters.fixed[address] = value
            parameters.kinds[address] = "excluded"
        elif not isinstance(value, dict) or _is_knob(value):
            parameters.put(address, value, below)
        elif not value:
            hint = "remove it, or name it in dse_excluded_args to keep it as a value"
            below.add("an empty table has no parameter in it", found=value, hint=hint)
        else:
            parameters.kinds[address] = "table"
            _walk(value, f"{address}.", excluded, parameters, below)


def _variables(table: Mapping[str, Any], parameters: Parameters, findings: Findings) -> None:
    for name, value in table.items():
        below = findings.at(name)
        if not _VARIABLE.match(name):
            allowed = "letters, digits and _, not beginning with a digit"
            below.add("this can't be an environment variable's name", found=name, allowed=allowed, hint="rename it")
        elif isinstance(value, dict) and not _is_knob(value):
            what, allowed = "a table can't be an environment variable's value", "a scalar, a list or a range"
            below.add(what, found=value, allowed=allowed, hint=f'write for example {name} = "value"')
        else:
            parameters.put(f"extra_env_vars.{name}", value, below)


def _addresses(table: Mapping[str, Any], prefix: str) -> list[str]:
    """Every address in a table, of tables too."""
    addresses: list[str] = []
    for key, value in table.items():
        addresses.append(f"{prefix}{key}")
        if isinstance(value, dict) and not _is_knob(value):
            addresses += _addresses(value, f"{prefix}{key}.")
    return addresses


def _is_knob(value: Mapping[str, Any]) -> bool:
    """Whether a table is meant as a range, if only by the numbers min and max, or as candidates with a default.

    Any other is a nested table.
    """
    bounded = "low" in value or "high" in value or all(type(value.get(key)) in (int, float) for key in _BOUNDS)
    return bounded or _is_choice(value)


def _is_choice(value: Mapping[str, Any]) -> bool:
    return value.keys() == {"values", "default"} and isinstance(value["values"], list)


# lists and ranges -----------------------------------------------------------------------------------------------------


def _choice(values: list[Any], findings: Findings) -> Choice | None:
    """The discrete knob with these candidates, or None and problems."""
    before = len(findings.problems)
    if not values:
        hint = "give at least one candidate, or remove the parameter"
        findings.add("the list is empty", found=values, allowed="one or more scalars", hint=hint)
    seen: set[tuple[type, Any]] = set()
    for index, value in enumerate(values):
        if storable(value) is not None:
            what, allowed = f"{kind(value)} can't be a candidate", "strings, integers, floats and booleans"
            hint = "to keep the whole list as one value, name it in dse_excluded_args"
            findings.at(index).add(what, found=value, allowed=allowed, hint=hint)
        elif (type(value), value) in seen:
            findings.at(index).add("this candidate is there twice", found=value, hint=f"remove one {shown(value)}")
        else:
            seen.add((type(value), value))
    return Choice(tuple(values)) if len(findings.problems) == before else None


def _knob(table: Mapping[str, Any], findings: Findings) -> Knob | None:
    """The knob that a table describes, with its default, or None and problems."""
    if _is_choice(table):
        spec = checked(ChoiceTable, table, findings)
        knob: Knob | None = _choice(spec.values, findings.at("values"))
    else:
        knob = _range(table, findings)
    default = table.get("default")
    if knob is None or default is None or (value := accepted(knob, default, findings.at("default"))) is None:
        return knob if default is None else None
    return replace(knob, default=value)


def accepted(knob: Knob, value: object, findings: Findings) -> Scalar | None:
    """``value`` as the knob has it, never the nearest one; None and a problem if it is none of the knob's."""
    try:
        found = knob.accept(value)
    except ValueError as error:
        what, same = str(error), []
        if isinstance(knob, Choice):
            what, same = "this is none of its candidates", [one for one in knob.values if str(one) == str(value)]
            same = same or [one for one in knob.values if not isinstance(value, bool) and one == value]
        hint = f"write {shown(same[0])}" if same else "use one of these, or add it there"
        findings.add(what, found=value, allowed=knob.describe(), hint=hint)
        return None
    if found != value:
        what = "this is between two values of the range"
        findings.add(what, found=value, allowed=knob.describe(), hint=f"write {shown(found)}, or change the step")
        return None
    return found


def setting(
    table: Mapping[str, Any],
    knobs: Mapping[str, Knob],
    others: Mapping[str, str],
    rest: Mapping[str, Any],
    findings: Findings,
) -> dict[str, Scalar]:
    """A whole setting from a table of some knobs; the others come from ``rest``, else from the knobs' defaults.

    ``others`` says of a parameter that is no knob what it is. With problems the setting must not be used.
    """
    given: dict[str, Any] = {}
    for address, value in _leaves(table, knobs):
        below = findings.under(address)
        if address in knobs:
            given[address] = accepted(knobs[address], value, below)
        else:
            what = f"{shown(address)} is {others[address]}" if address in others else "there is no such knob"
            below.add(what, found=value, allowed=listed(knobs), hint=did_you_mean(address, knobs, "remove it"))
    known = {name: knob.default for name, knob in knobs.items() if knob.default is not None} | {**rest} | given
    missing = [name for name in knobs if name not in known]
    if missing:
        what = f"it says nothing of {listed(missing)}, and there is no default"
        hint = f"add {missing[0]} = ..., or give the knob a default: {missing[0]} = {{ values = [...], default = ... }}"
        findings.add(what, found=table, hint=hint)
    return {name: known[name] for name in knobs if name in known}


def _leaves(table: Mapping[str, Any], knobs: Mapping[str, Knob], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        address = f"{prefix}{key}"
        if isinstance(value, dict) and any(name.startswith(f"{address}.") for name in knobs):
            yield from _leaves(value, knobs, f"{address}.")
        else:
            yield address, value


def _range(table: Mapping[str, Any], findings: Findings) -> Range | None:
    """The knob that ``{low, high, dtype, log, step}`` describes, or None and problems."""
    before = len(findings.problems)
    spec = checked(RangeTable, table, findings, lambda key: f"write {_BOUNDS[key]} instead" if key in _BOUNDS else None)
    for key in ("low", "high"):
        if key not in table and not _BOUNDS.keys() & table.keys():
            RangeTable.require(key, "a range needs both low and high", findings)
    low, high, step = spec.low, spec.high, spec.step
    if len(findings.problems) > before or low is None or high is None:
        return None
    numbers = {"low": low, "high": high} | ({} if step is None else {"step": step})
    whole = all(isinstance(number, int) for number in numbers.values())
    number = {"int": int, "float": float, None: int if whole else float}[spec.dtype]
    _check_bounds(low, high, spec, findings)
    if number is int and high == INT64 - 1:  # Gymnasium counts one past the end to sample a Box
        what = "the largest integer of 64 bits can't end a range"
        findings.at("high").add(what, found=high, allowed=f"up to {INT64 - 2}", hint="lower it by one")
    for key, value in numbers.items():
        if number is int and isinstance(value, float):
            hint = f'write {key} = {round(value)}, or dtype = "float"'
            findings.at(key).add('dtype = "int" needs integers', found=value, hint=hint)
    if len(findings.problems) == before and step is not None:
        _check_step(low, high, step, number, findings.at("step"))
    if len(findings.problems) > before:
        return None
    dtype = "int" if number is int else "float"
    return Range(number(low), number(high), dtype, spec.log, None if step is None else number(step))


def _check_bounds(low: float, high: float, spec: RangeTable, findings: Findings) -> None:
    if not low < high:
        hint = "swap them" if low > high else "widen the range, or write a single value instead"
        findings.at("low").add("low must be below high", found=low, allowed=f"less than {high!r}", hint=hint)
    elif not math.isfinite(float(high) - float(low)):
        findings.at("high").add("the range is too wide for a float", found=high, hint="narrow the range")
    if spec.log and low <= 0:
        findings.at("low").add("log needs a low above 0", found=low, hint="raise low above 0, or remove log")
    if spec.log and spec.step is not None:
        findings.at("log").add("log and step exclude each other", found=True, hint="remove one of the two")


def _check_step(low: float, high: float, step: float, number: type, findings: Findings) -> None:
    width = high - low
    if step <= 0:
        findings.add("a step must be above 0", found=step, hint="raise it, or remove it")
    elif number is float and max(abs(low), abs(high)) > step * FINEST:
        findings.add("the step is too fine for a float", found=step, hint="make it coarser, or remove it")
    elif width % step if number is int else abs(max(1, round(width / step)) * step - width) > TOLERANCE * width:
        reachable = low + width // step * step
        end = f"use high = {reachable!r}, or " if reachable > low else ""
        what = f"the step doesn't divide the range from {low!r} to {high!r}"
        hint = f"{end}use a step that divides high - low, such as {width / max(1, round(width / step)):.12g}"
        findings.add(what, found=step, hint=hint)


# env_params -----------------------------------------------------------------------------------------------------------


def flattened(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``env_params`` by address: ``server.load = {}`` nests in TOML, and means the address ``server.load``.

    A table whose values are all tables is taken as nesting, since weights and encoding never are.
    """
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def environment(
    tables: Mapping[str, dict[str, Any]],
    parameters: Parameters,
    catalog: Components,
    findings: Findings,
    complete: bool = True,
    *,
    live: bool = False,
) -> dict[str, EnvParam]:
    """The env_params by address; they are taken out of the parameters' knobs.

    Not ``complete`` means that parameters with problems were left out, so a missing one is not reported again.
    """
    params: dict[str, EnvParam] = {}
    for address, table in tables.items():
        # An address may contain dots; a user quotes it, and it is still one key.
        below = findings.under(address)
        spec = checked(EnvParamTable, table, below)
        if "draw" in table and not live and "draw" not in below.broken():
            what = "draw is for live experiments: here every trial has its own draw"
            below.at("draw").add(what, found=table["draw"], hint="remove draw")
        sort = parameters.kinds.get(address)
        if not complete and sort in (None, "single"):
            continue
        if sort is None:
            names = [*parameters.knobs, *parameters.fixed]
            hint = did_you_mean(address, names, f"add {address} to cmd_args as a list of candidates")
            below.add(f"there is no parameter {shown(address)}", found=address, allowed=listed(names), hint=hint)
        elif sort in _NOT_DRAWABLE:
            what, hint = _NOT_DRAWABLE[sort]
            value = parameters.fixed.get(address, address)
            allowed = "a parameter that is a list of two or more candidates, or a range"
            below.add(f"{shown(address)} {what}", found=value, allowed=allowed, hint=hint)
        elif sort != "broken":
            domain = parameters.knobs.pop(address)
            if domain.default is not None:
                what, hint = "the environment draws it, so a default means nothing", "remove the default"
                below.add(f"{shown(address)} has a default: {what}", found=domain.default, hint=hint)
            if spec.weights is not None:
                _check_weights(spec.weights, domain, below.at("weights"))
            if spec.encoding is not None:
                _try_encoding(spec.encoding, domain, catalog, below.at("encoding"))
            weights = None if spec.weights is None else tuple(spec.weights)
            params[address] = EnvParam(domain, weights, spec.encoding, spec.draw == "step")
    return params


def _check_weights(weights: list[float], domain: Knob, findings: Findings) -> None:
    if not isinstance(domain, Choice):
        hint = "remove weights, or list the candidates"
        findings.add("a range can't have weights", found=weights, hint=hint)
        return
    total = math.fsum(weights)
    if len(weights) != domain.size:
        what = f"{counted(len(weights), 'weight')} for {counted(domain.size, 'candidate')}"
        hint = "give one weight for each candidate"
    elif any(weight < 0 for weight in weights):
        what, hint = "a weight can't be negative", "use 0 for never"
    elif abs(total - 1) > SUM_TOLERANCE:
        shares = ", ".join(f"{weight / total:.6g}" for weight in weights) if 0 < total < math.inf else "..."
        what, hint = f"the weights sum to {total:.6g}, not to 1", f"write for example weights = [{shares}]"
    else:
        return
    findings.add(what, found=weights, allowed=f"{domain.size} numbers of at least 0 that sum to 1", hint=hint)


def _try_encoding(name: str, domain: Knob, catalog: Components, findings: Findings) -> None:
    """Let an encoding show what will be drawn, and refuse it if that fails."""
    from tunegym.tuning.envs.structure import ContextLeaves

    factory = known(catalog, "encodings", name, findings)
    if factory is None:
        return
    try:
        leaves = ContextLeaves(EnvParams({"value": EnvParam(domain, encoding=name)}), lambda _: factory)
        values = domain.values if isinstance(domain, Choice) else (domain.low, domain.at_position(0.5), domain.high)
        for value in values:
            leaves.encode({"value": value})
    except ObservationError as error:
        reason = error.message.replace("leaf value: ", "")
    except Exception as error:  # a user's class
        reason = f"{type(error).__name__}: {error}"
    else:
        return
    allowed = "a class over a domain, with descriptor() and encode(value)"
    hint = "use another encoding, or correct the class: encode(value) gives what descriptor() describes"
    findings.add(f"the encoding fails: {reason}", found=name, allowed=allowed, hint=hint)
