"""The agent of an experiment: its own settings, its budget, and whether it can do what is asked."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from tunegym.config.catalog import Catalog
from tunegym.config.findings import Findings
from tunegym.config.naming import known
from tunegym.config.schema import ExperimentTable
from tunegym.config.spelling import did_you_mean, kind, listed, shown
from tunegym.core.errors import UnresolvedReferenceError
from tunegym.tuning.agents.base import driver, drives
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Space

_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def agent_config(config: type[Any], table: Mapping[str, Any], findings: Findings) -> Any:
    """``table`` as the agent's own frozen ``Config``, or None and problems."""
    before = len(findings.problems)
    _refuse_unknown(config, table, findings)
    try:
        # As JSON, because in strict mode pydantic takes a dataclass from JSON's objects but not from a dict.
        value = TypeAdapter(config).validate_json(orjson.dumps(table), strict=True)
    except ValidationError as error:
        _note(config, table, error, findings)
        return None
    return value if len(findings.problems) == before else None


def _refuse_unknown(config: type[Any], table: Mapping[str, Any], findings: Findings) -> None:
    hints = typing.get_type_hints(config)
    names = [field.name for field in dataclasses.fields(config) if field.init]
    for key, value in table.items():
        if key not in names:
            inner = next((name for name in names if key in _keys_of(hints[name])), None)
            otherwise = f"move it into {inner}" if inner else "remove it"
            findings.unknown(key, value, names, did_you_mean(key, names, otherwise))
        elif isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            _refuse_unknown(typing.cast("type[Any]", hints[key]), value, findings.at(key))


def _keys_of(annotation: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(annotation)] if dataclasses.is_dataclass(annotation) else []


def _note(config: type[Any], table: Mapping[str, Any], error: ValidationError, findings: Findings) -> None:
    """Note one problem for each wrong place; a union's branches complain about the same one."""
    done: set[str] = set()
    for item in error.errors(include_url=False):
        place, value, annotation = findings, typing.cast("Any", table), typing.cast("Any", config)
        for part in item["loc"]:
            if isinstance(value, dict) and (part in value or item["type"] == "missing"):
                place, value = place.at(part), value.get(part)
                annotation = _annotation_of(annotation, str(part))
            elif isinstance(value, list) and isinstance(part, int):
                place, value = place.at(part), value[part]
                annotation = next(iter(typing.get_args(annotation)), Any)
        if place.where not in done:
            done.add(place.where)
            _note_value(place, value, annotation, item)


def _note_value(place: Findings, value: Any, annotation: Any, item: Mapping[str, Any]) -> None:
    allowed = words(annotation)
    if item["type"] == "missing":
        place.add("this setting is required", allowed=allowed, hint=f"write {place.where.rpartition('.')[2]} = ...")
        return
    same_kind = item["type"] in ("literal_error", "value_error") or item["type"].startswith(("greater", "less"))
    what = "not one of the possible values" if same_kind else f"{kind(value)} can't stand here"
    if item["type"] == "value_error":
        what = str(item["ctx"]["error"])
    hint = did_you_mean(value, _choices(annotation), f"give {allowed}")
    place.add(what, found=value, allowed=allowed, hint=hint)


def _annotation_of(annotation: Any, key: str) -> Any:
    if dataclasses.is_dataclass(annotation):
        return typing.get_type_hints(annotation, include_extras=False).get(key, Any)
    return Any


def _choices(annotation: Any) -> list[str]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return [argument for argument in arguments if isinstance(argument, str)]
    return [choice for argument in arguments for choice in _choices(argument)]


def words(annotation: Any) -> str:
    """What a type allows, in a user's words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(shown(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(argument) for argument in arguments if argument is not type(None))
    if dataclasses.is_dataclass(annotation):
        return f"a table of {listed(_keys_of(annotation))}"
    return _WORDS.get(origin or annotation, "a value of another kind")


def budget_of(table: ExperimentTable) -> Budget:
    """When the experiment ends."""
    return Budget(table.agent_steps, typing.cast("float | None", table.max_time), table.stop_after_no_improvement)


def check_abilities(agent: Any, name: str, table: ExperimentTable, catalog: Catalog, findings: Findings) -> None:
    """Refuse an agent that would never end, or that can't handle what varies around it."""
    bounds = ("agent_steps", "max_time", "stop_after_no_improvement")
    if not agent.finite and not findings.broken() & set(bounds) and budget_of(table) == Budget():
        findings.at("agent_steps").add(
            f"{shown(name)} never ends by itself, and no budget is given",
            allowed=f"at least one of {listed(bounds)}",
            hint="write for example agent_steps = 100",
        )
    if table.env_params and not agent.supports_variable_environment:
        able = [other for other in catalog.names("agents") if _varies(catalog, other)]
        findings.at("env_params").add(
            f"{shown(name)} can't handle an environment that varies",
            allowed=f"env_params with one of {listed(able)}",
            hint=f'write agent = "{able[0]}", or remove env_params' if able else "remove env_params",
        )


def driver_of_trials(agent: Any, name: str, findings: Findings) -> Any:
    """The agent itself, or None and a problem if it drives live systems only."""
    if agent is None or drives(agent, "trials"):
        return agent
    hint = 'use another agent, or workload = "live"'
    findings.add(f"{shown(name)} drives live systems, and this experiment runs jobs", found=name, hint=hint)
    return None


def live_driver(agent: Any, name: str, catalog: Catalog, folder: Path, findings: Findings) -> Any:
    """The class that drives a live experiment under an agent's name, or None and a problem."""
    if not drives(agent, "live"):
        names = catalog.names("agents")
        able = [other for other in names if drives(known(catalog, "agents", other, Findings()), "live")]
        findings.add(
            f"{shown(name)} searches knobs, and a live system has none: it can't drive one",
            found=name,
            allowed=f'{listed(able)}, or "package.module:Name"',
            hint=f'write for example agent = "{able[0]}"' if able else "name an agent that can",
        )
        return None
    try:
        found = driver(agent, "live", [str(folder)])
    except UnresolvedReferenceError as error:
        hint = error.hint or "correct the reference in its `kinds`"
        findings.add(f"{shown(name)} can't drive a live system here: {error.message}", found=name, hint=hint)
        return None
    if not (callable(found) and hasattr(found, "Config")):
        what = f"the class that {shown(name)} names for live experiments is no agent: {agent.kinds['live']}"
        findings.add(what, found=name, hint="name a class over LiveAgent in its `kinds`")
        return None
    return found


def _varies(catalog: Catalog, name: str) -> bool:
    """Whether an agent handles a varying environment; one that can't be had here is left out."""
    return bool(getattr(known(catalog, "agents", name, Findings()), "supports_variable_environment", False))


def check_space(agent: Any, space: Space, findings: Findings) -> None:
    """Let the agent refuse a space that it can't search."""
    problem = agent.refuse(space)
    if problem is not None:
        findings.adopt(problem)
