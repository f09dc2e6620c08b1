"""Parameters: ``cmd_args``, ``extra_env_vars`` and ``num_nodes`` become knobs and fixed values by address."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.config.findings import Findings
from tunegym.config.knobs import is_range, knob
from tunegym.config.schema import LIVE_KEYS, ExperimentTable
from tunegym.config.spelling import did_you_mean, listed, shown
from tunegym.tuning.model.space import Choice, Knob

EXPERIMENT_KEYS = frozenset(ExperimentTable.model_fields) - {"name", "workload", "metrics", *LIVE_KEYS}
"""Keys that are no parameters: in ``cmd_args`` they would silently do nothing. A program may well have a
parameter called name, workload or metrics, or server where there is none."""

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
