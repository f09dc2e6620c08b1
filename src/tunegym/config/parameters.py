"""Parameters: ``cmd_args``, ``extra_env_vars`` and ``num_nodes`` become knobs and fixed values by address."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from tunegym.config.problems import Catalog, Findings, did_you_mean, kind, known, listed, shown
from tunegym.config.schema import LIVE_KEYS, EnvParamTable, ExperimentTable, RangeTable, checked
from tunegym.core.errors import ObservationError
from tunegym.tuning.model.space import Choice, EnvParam, Knob, Range
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import INT64, storable

EXPERIMENT_KEYS = frozenset(ExperimentTable.model_fields) - {"name", "workload", "metrics", *LIVE_KEYS}
"""Keys that are no parameters: in ``cmd_args`` they would silently do nothing. A program may well have a
parameter called name, workload or metrics, or server where there is none."""

TOLERANCE = 1e-9
"""How far a step may miss the end of its range, relative to the range's width."""

FINEST = 1e11
"""A float's steps must stay apart in the twelve digits to which a range rounds them."""

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass
class Parameters:
    """What a walk over the parameters found, by address.

    Attributes:
        own: the workload's own keys.
        kinds: what stands at an address: list, range, single, scalar, table, excluded or broken.
    """

    own: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Knob] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def put(self, address: str, value: Any, findings: Findings) -> None:
        """Take in a scalar, a list or a range."""
        if not isinstance(value, list | dict):
            self.fixed[address] = value
            self.kinds[address] = "scalar"
            return
        found = knob(value, findings)
        if found is None:
            self.kinds[address] = "broken"
        elif isinstance(found, Choice) and found.size == 1:
            self.fixed[address] = found.values[0]
            self.kinds[address] = "single"
        else:
            self.knobs[address] = found
            self.kinds[address] = "list" if isinstance(found, Choice) else "range"


def gather(
    table: ExperimentTable, reserved: Iterable[str], findings: Findings, keys: Collection[str] = EXPERIMENT_KEYS
) -> Parameters:
    """All parameters of an experiment. What has a problem is noted and left out, and so is any of ``keys``."""
    parameters = Parameters()
    arguments = dict(table.cmd_args or {})
    for key in reserved:
        if key in arguments:
            parameters.own[key] = arguments.pop(key)
    excluded = _excluded(table.dse_excluded_args, arguments, findings.at("dse_excluded_args"))
    below = findings.at("cmd_args")
    for key in [key for key in arguments if key in keys]:
        hint = f"move {key} out of cmd_args, below [[experiments]]"
        below.at(key).add(f"{key} is a key of the experiment, not a parameter", found=arguments.pop(key), hint=hint)
    _walk(arguments, "", excluded, parameters, below)
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
        elif not isinstance(value, dict) or is_range(value):
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
        elif isinstance(value, dict) and not is_range(value):
            below.add(
                "a table can't be an environment variable's value",
                found=value,
                allowed="a scalar, a list of scalars or a range with low and high",
                hint=f'write for example {name} = "value"',
            )
        else:
            parameters.put(f"extra_env_vars.{name}", value, below)


def _excluded(addresses: list[str], arguments: Mapping[str, Any], findings: Findings) -> set[str]:
    known = _addresses(arguments, "")
    for index, address in enumerate(addresses):
        if address not in known:
            findings.at(index).add(
                f"cmd_args has no {shown(address)}",
                found=address,
                allowed=listed(known),
                hint=did_you_mean(address, known, "name a parameter of cmd_args, or remove it"),
            )
    return set(addresses)


def _addresses(table: Mapping[str, Any], prefix: str) -> list[str]:
    """Every address in a table, of tables too."""
    addresses: list[str] = []
    for key, value in table.items():
        addresses.append(f"{prefix}{key}")
        if isinstance(value, dict) and not is_range(value):
            addresses += _addresses(value, f"{prefix}{key}.")
    return addresses


# lists and ranges -----------------------------------------------------------------------------------------------------


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


SUM_TOLERANCE = 1e-6
_CANDIDATES = "a parameter that is a list of two or more candidates, or a range"

_NOT_DRAWABLE = {
    "scalar": ("is a single value, and there is nothing to draw", "make it a list of candidates"),
    "single": ("has fewer than two candidates", "give it two or more candidates"),
    "table": ("is a table, not a parameter", "name a parameter inside the table"),
    "excluded": ("is excluded, and stays one value", "remove it from dse_excluded_args or from env_params"),
}


def environment(
    tables: Mapping[str, dict[str, Any]],
    parameters: Parameters,
    catalog: Catalog,
    findings: Findings,
    complete: bool = True,
    *,
    live: bool = False,
) -> dict[str, EnvParam]:
    """The env_params by address; they are taken out of the parameters' knobs.

    Not ``complete`` means that parameters with problems were left out, so one that is missing is no news.
    """
    params: dict[str, EnvParam] = {}
    for address, table in tables.items():
        # An address may contain dots; a user quotes it, and it is still one key.
        below = findings.under(address)
        spec = checked(EnvParamTable, table, below)
        if "draw" in table and not live and "draw" not in below.broken():
            what, hint = "draw is for live experiments: here every trial has a draw of its own", "remove draw"
            below.at("draw").add(what, found=table["draw"], hint=hint)
        kind = parameters.kinds.get(address)
        if not complete and kind in (None, "single"):
            continue
        if kind is None:
            _unknown(address, parameters, below)
        elif kind in _NOT_DRAWABLE:
            what, hint = _NOT_DRAWABLE[kind]
            value = parameters.fixed.get(address, address)
            below.add(f"{shown(address)} {what}", found=value, allowed=_CANDIDATES, hint=hint)
        elif kind != "broken":
            domain = parameters.knobs.pop(address)
            _check_weights(spec.weights, domain, below.at("weights"))
            if spec.encoding is not None:
                _check_encoding(spec.encoding, domain, catalog, below.at("encoding"))
            weights = None if spec.weights is None else tuple(spec.weights)
            params[address] = EnvParam(domain, weights, spec.encoding, spec.draw == "step")
    return params


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


def _unknown(address: str, parameters: Parameters, findings: Findings) -> None:
    if address in parameters.own:
        hint = "name a parameter that isn't the workload's own"
        findings.add("this is the workload's own key, not a parameter", found=address, hint=hint)
        return
    names = [*parameters.knobs, *parameters.fixed]
    hint = did_you_mean(address, names, f"add {address} to cmd_args as a list of candidates")
    findings.add(f"there is no parameter {shown(address)}", found=address, allowed=listed(names), hint=hint)


def _check_weights(weights: list[float] | None, domain: Knob, findings: Findings) -> None:
    if weights is None:
        return
    if not isinstance(domain, Choice):
        hint = "remove weights, or list the candidates"
        findings.add("a range can't have weights", found=weights, hint=hint)
        return
    allowed = f"{domain.size} numbers of at least 0 that sum to 1"
    if len(weights) != domain.size:
        what = f"{len(weights)} weights for {domain.size} candidates"
        findings.add(what, found=weights, allowed=allowed, hint="give one weight for each candidate")
    elif any(weight < 0 for weight in weights):
        findings.add("a weight can't be negative", found=weights, allowed=allowed, hint="use 0 for never")
    elif abs(math.fsum(weights) - 1) > SUM_TOLERANCE:
        total = math.fsum(weights)
        shares = ", ".join(f"{weight / total:.6g}" for weight in weights) if 0 < total < math.inf else "..."
        findings.add(
            f"the weights sum to {total:.6g}, not to 1",
            found=weights,
            allowed=allowed,
            hint=f"write for example weights = [{shares}]",
        )


def _check_encoding(name: str, domain: Knob, catalog: Catalog, findings: Findings) -> None:
    """Refuse an encoding that can't show the domain. A user's encoding is tried out."""
    encoding = known(catalog, "encodings", name, findings)
    if encoding is None:
        return
    if name not in ("categorical", "onehot", "ordinal", "minmax", "log"):
        _try_out(encoding, name, domain, findings)
        return
    numbers = domain.values if isinstance(domain, Choice) else (domain.low, domain.high)
    numeric = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if name not in ("minmax", "log"):
        if not isinstance(domain, Choice):
            hint = 'use encoding = "minmax", or list the candidates'
            findings.add(f"{name} needs a list of candidates", found=name, allowed="minmax, log", hint=hint)
    elif not numeric:
        what, allowed = f"{name} needs candidates that are numbers", "categorical, onehot, ordinal"
        findings.add(what, found=name, allowed=allowed, hint='use encoding = "categorical"')
    elif name == "log" and (min(map(float, numbers)) < 0 or max(map(float, numbers)) <= 0):
        what = "log needs candidates of at least 0, and one above"
        findings.add(what, found=name, hint='use encoding = "minmax"')


def _try_out(factory: Any, name: str, domain: Knob, findings: Findings) -> None:
    """Let an encoding show what will be drawn, and refuse it if that fails."""
    from tunegym.tuning.envs.structure import Structure

    try:
        encoding = factory(domain)
        leaf: Any = SimpleNamespace(
            structured_observation_descriptors=lambda: {"value": encoding.descriptor()},
            encode_observation=lambda observation: {"value": encoding.encode(observation.context["value"])},
        )
        structure = Structure(leaf)
        values = domain.values if isinstance(domain, Choice) else (domain.low, domain.at_position(0.5), domain.high)
        for value in values:
            structure.encode(Observation(0, {"value": value}))
    except ObservationError as error:
        reason = error.message.replace("leaf value: ", "")
    except Exception as error:  # a user's class
        reason = f"{type(error).__name__}: {error}"
    else:
        return
    findings.add(
        f"the encoding fails: {reason}",
        found=name,
        allowed="a class over a domain, with descriptor() and encode(value)",
        hint="correct it: descriptor() is an ObsLeafDescriptor, and encode(value) gives what it describes",
    )
