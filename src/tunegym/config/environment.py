"""``env_params``: which parameters the environment draws instead of the agent choosing them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tunegym.config.catalog import Catalog, known
from tunegym.config.parameters import Parameters
from tunegym.config.problems import Findings, did_you_mean, listed, shown
from tunegym.config.schema import EnvParamTable, checked
from tunegym.core.errors import ObservationError
from tunegym.tuning.model.space import Choice, EnvParam, Knob
from tunegym.tuning.model.trial import Observation

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
