"""The tables of a scenario file: their keys, what each may hold, and pydantic's errors in our own words.

A field's type says it all: pydantic checks it, and ``Says`` in it (or the bare type) words the message. Every key is
optional here. The code that uses a table says which keys it needs, so that a missing key doesn't hide other problems.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tunegym.config.problems import Findings, kind, listed, shown
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.scenario import IN_PROCESS, PROCESS, TCP, Confirm, Goal, Keep, Recording

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)\Z")
_COUNTED = re.compile(r"([a-z]+)(?::([1-9][0-9]{0,8}))?\Z")
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})\Z", re.ASCII)
_HIGHEST_PORT = 65535
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_IMPOSSIBLE = "not one of the possible values"


@dataclass(frozen=True)
class Says:
    """What a message says about a key: what it may hold, and an example of a value or a whole hint."""

    allowed: str
    example: str = ""

    def hint(self, key: str) -> str:
        """How to write ``key``; an item of a list has none."""
        if not self.example:
            return f"write {self.allowed}"
        return (
            self.example if self.example.startswith(("write", "leave")) else f"write for example {key} = {self.example}"
        )


# values that are written as text --------------------------------------------------------------------------------------


def _seconds(value: int | float | str) -> float:
    if not isinstance(value, str):
        number = float(value)
    elif match := _DURATION.match(value):
        number = float(match[1]) * _SECONDS[match[2]]
    else:
        raise ValueError("this is no length of time")
    if not 0 < number < float("inf"):
        raise ValueError("a length of time must be above 0")
    return number


def _keep(value: str) -> Keep:
    match = _COUNTED.match(value)
    kinds = ("auto", "all", "failed", "best", "none")
    if match is None or (match[1] == "best") != bool(match[2]) or match[1] not in kinds:
        raise ValueError(_IMPOSSIBLE)
    return Keep(match[1], int(match[2] or 0))  # type: ignore[arg-type]


def _repeats(value: int | str) -> int | str:
    if isinstance(value, int) and value < 1:
        raise ValueError("the value is out of bounds")
    if isinstance(value, str) and value != "auto":
        raise ValueError(_IMPOSSIBLE)
    return value


def recording(value: str) -> Recording:
    """What ``record`` asks for; raises ValueError for anything else."""
    match = _COUNTED.match(value)
    if match is None or (match[1] == "every") != bool(match[2]) or match[1] not in ("all", "every", "episodes"):
        raise ValueError(_IMPOSSIBLE)
    return Recording(match[1], int(match[2] or 1))  # type: ignore[arg-type]


def server_place(value: str) -> str:
    """Where a server runs, as it is written; raises ValueError for anything else."""
    if value in (IN_PROCESS, PROCESS):
        return value
    if not value.startswith(TCP):
        raise ValueError(_IMPOSSIBLE)
    match = _HOST_PORT.match(value.removeprefix(TCP))
    if match is None:
        raise ValueError("a server elsewhere needs a host and a port")
    if not 1 <= int(match[1]) <= _HIGHEST_PORT:
        raise ValueError(f"there is no port {int(match[1])}")
    return value


def _distinct(values: list[str]) -> list[str]:
    if not values:
        raise ValueError("the list is empty")
    for index, value in enumerate(values):
        if not value:
            raise ValueError("a name is empty")
        if value in values[:index]:
            raise ValueError(f'"{value}" is there twice')
    return values


# the tables -----------------------------------------------------------------------------------------------------------

_Count = Annotated[int, Field(ge=1), Says("an integer of at least 1", "10")]
_Duration = Annotated[int | float | str, AfterValidator(_seconds), Says('seconds, or "90s", "10m", "2h"', '"10m"')]
_Names = Annotated[list[str], AfterValidator(_distinct), Says("a list of metrics' names", '["time_s"]')]
_Keep = Annotated[str, AfterValidator(_keep), Says('"auto", "all", "failed", "best:n" or "none"', '"all"')]
_Record = Annotated[str, AfterValidator(recording), Says('"all", "every:n" or "episodes"', '"every:100"')]
_Server = Annotated[
    str, AfterValidator(server_place), Says('"in_process", "process" or "tcp://HOST:PORT"', '"process"')
]
_Table = Annotated[dict[str, Any], Says("a table", "write its keys below a [header], or in { braces }")]
_Metric = Annotated[dict[str, Any], Says("a table", "{ regex = 'time=([0-9.]+)' }")]
_EnvParam = Annotated[dict[str, Any], Says("a table", "{ weights = [0.5, 0.5] }")]
_Number = Annotated[int | float, Says("a number", "1")]
_Value = Annotated[str | int | float | bool, Says("a single value", "1")]
_Share = Annotated[float, Field(gt=0, lt=1), Says("a number above 0 and below 1", "0.2")]
_ConfirmShare = Annotated[float, Field(gt=0, le=0.5), Says("a number above 0, at most 0.5", "0.2")]
_Repeats = Annotated[int | str, AfterValidator(_repeats), Says('an integer of at least 1, or "auto"', "3")]
_Confirm = Annotated[Literal["auto", "off"] | dict[str, Any], Says('"auto", "off" or { share = 0.2 }', '"off"')]
_OverContexts = Annotated[
    Literal["mean", "worst"] | dict[str, Any], Says('"mean", "worst" or { cvar = 0.9 }', '"worst"')
]
_Settings = Annotated[list[_Table] | None, Says("a list of tables", "[{ threads = 4 }]")]
LIVE_KEYS = ("server", "step_timeout_s", "server_restarts", "record", "server_token_file")
"""The keys that only a live experiment has."""


class TomlTable(BaseModel):
    """A table whose keys are all known. No value is converted to another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def require(cls, key: str, what: str, findings: Findings) -> None:
        """Add the problem ``what`` about a key that is missing in the table at ``findings``."""
        says = _says(cls, (key,))
        findings.at(key).add(what, allowed=says.allowed, hint=says.hint(key))


class ScenarioTable(TomlTable):
    """The top level of a file."""

    name: Annotated[str | None, Says("a string", '"my-scenario"')] = None
    seed: Annotated[int, Says("an integer", "42")] = 0
    scenario_dir: Annotated[str | None, Says("a folder's path", "leave it out: the file's own folder")] = None
    system: _Table = {}
    tracking: _Table = {}
    plane: _Table = {}
    experiments: Annotated[list[_Table] | None, Says("a list of tables", "write [[experiments]] with two brackets")] = (
        None
    )


class SystemTable(TomlTable):
    """``[system]``: where trials run."""

    runner: Annotated[str, Says("a runner's name", '"local"')] = "local"
    slots: _Count = 1


class TrackingTable(TomlTable):
    """``[tracking]``: trackers that get a copy of the trials."""

    mlflow: Annotated[str | None, Says("a URL or a folder", '"http://127.0.0.1:5000"')] = None
    tensorboard: bool = False


class ExperimentTable(TomlTable):
    """One ``[[experiments]]``; the tables in it are checked one by one."""

    name: Annotated[str | None, Says("a string", '"iperf"')] = None
    workload: Annotated[str | None, Says("a workload's name", '"command"')] = None
    agent: Annotated[str | None, Says("an agent's name", '"random_search"')] = None
    agent_steps: _Count | None = None
    episode_steps: _Count = 1
    max_time: _Duration | None = None
    stop_after_no_improvement: _Count | None = None
    stop_after_failures: Annotated[int, Field(ge=0), Says("an integer of at least 0", "10")] = 10
    agent_metrics: _Names | None = None
    agent_reward_function: Annotated[str | None, Says("a reward's name, or module:function", '"identity"')] = None
    objectives: Annotated[list[_Table] | None, Says("a list of tables", '[{ metric = "time_s", goal = "min" }]')] = None
    timeout_s: _Duration | None = None
    repeats: _Repeats = 1
    warmup: Annotated[int, Field(ge=0), Says("an integer of at least 0", "1")] = 0
    cache: Literal["on", "off"] = "on"
    keep: _Keep | None = None
    isolate: bool | None = None
    server: _Server = IN_PROCESS
    step_timeout_s: _Duration | None = None
    server_restarts: Annotated[int, Field(ge=0), Says("an integer of at least 0", "5")] = 5
    record: _Record | None = None
    server_token_file: Annotated[str | None, Says("a file's path", '"token.txt"')] = None
    constraints: Annotated[list[str], Says("a list of strings", '["threads <= 4"]')] = []
    pruner: Annotated[str | dict[str, Any] | None, Says("a pruner's name, or a table", '"median"')] = None
    num_nodes: _Count | list[_Count] | None = None
    extra_env_vars: _Table = {}
    dse_excluded_args: Annotated[list[str], Says("a list of addresses in cmd_args", '["layers"]')] = []
    cmd_args: _Table | None = None
    env_params: dict[str, _EnvParam] = {}
    metrics: dict[str, _Metric] = {}
    agent_config: _Table = {}
    baseline: _Table | None = None
    enqueue: _Settings = None
    confirm: _Confirm = "auto"
    over_contexts: _OverContexts = "mean"


class MetricTable(TomlTable):
    """One metric: where it is read from, and which way it is better."""

    regex: Annotated[str | None, Says("a pattern", "'time=([0-9.]+)'")] = None
    json_path: Annotated[str | None, Field(alias="json"), Says("a path", '"results[0].time"')] = None
    csv: Annotated[str | None, Says("a column's name", '"time"')] = None
    file: Annotated[str | None, Says("a file's path", '"out.json"')] = None
    match: Literal["first", "last"] | None = None
    row: Annotated[int | None, Says("an integer; -1 is the last row", "-1")] = None
    stream: bool = False
    goal: Goal | None = None


class ObjectiveTable(TomlTable):
    """One objective: which way a metric is better, how much it counts, and its limit."""

    metric: Annotated[str | None, Says("a metric's name", '"time_s"')] = None
    goal: Goal | None = None
    weight: Annotated[float, Field(ge=0), Says("a number of at least 0", "2.0")] = 1.0
    limit: Annotated[float | None, Says("a finite number", "2.0")] = None


class EnvParamTable(TomlTable):
    """One env_param: how its candidates are drawn and shown to the agent."""

    weights: Annotated[list[float] | None, Says("numbers that sum to 1", "[0.5, 0.3, 0.2]")] = None
    encoding: Annotated[str | None, Says("an encoding's name", '"minmax"')] = None
    draw: Literal["episode", "step"] = "episode"


class ConfirmTable(TomlTable):
    """``confirm`` as a table."""

    share: _ConfirmShare = Confirm().share


class CvarTable(TomlTable):
    """``over_contexts`` as a table."""

    cvar: _Share | None = None


class ChoiceTable(TomlTable):
    """A discrete knob with a default."""

    values: list[Any] = []
    default: _Value | None = None


class RangeTable(TomlTable):
    """A continuous or integer knob."""

    low: _Number | None = None
    high: _Number | None = None
    dtype: Literal["int", "float"] | None = None
    log: bool = False
    step: _Number | None = None
    default: _Number | None = None


# from plain tables to checked ones ------------------------------------------------------------------------------------

TableT = TypeVar("TableT", bound=TomlTable)


def checked(
    model: type[TableT],
    table: Mapping[str, Any],
    findings: Findings,
    stray: Callable[[str], str | None] = lambda _key: None,
) -> TableT:
    """``table`` as ``model``. Keys with a problem are left at their defaults.

    ``stray`` may give the hint for an unknown key that belongs somewhere else.
    """
    fields = [field.alias or name for name, field in model.model_fields.items()]
    for key in [key for key in table if key not in fields]:
        findings.unknown(key, table[key], fields, stray(key))
    given = {key: value for key, value in table.items() if key in fields}
    try:
        return model(**given)
    except ValidationError as error:
        _translate(error, model, given, findings)
        bad = {item["loc"][0] for item in error.errors(include_url=False)}
        return model(**{key: value for key, value in given.items() if key not in bad})


def checked_config(config: type[Any], table: Mapping[str, Any], findings: Findings, **shared: Any) -> Any:
    """``table`` as the frozen dataclass ``config`` of an agent or a pruner, or None and problems.

    ``shared`` are tables of the whole scenario, for settings of the same name.
    """
    before = len(findings.problems)
    for key, common in shared.items():
        if common and key in _keys_of(config) and isinstance(own := table.get(key, {}), dict):
            table = {**table, key: {**common, **own}}
    _refuse_unknown(config, table, findings)
    try:
        # As JSON: in strict mode pydantic takes a dataclass from JSON's objects, but not from a dict.
        value = TypeAdapter(config).validate_json(msgspec.json.encode(table), strict=True)
    except ValidationError as error:
        _translate(error, config, table, findings)
        return None
    return value if len(findings.problems) == before else None


def _refuse_unknown(config: type[Any], table: Mapping[str, Any], findings: Findings) -> None:
    hints = typing.get_type_hints(config)
    names = [field.name for field in dataclasses.fields(config) if field.init]
    for key, value in table.items():
        if key not in names:
            inner = next((name for name in names if key in _keys_of(hints[name])), None)
            findings.unknown(key, value, names, did_you_mean(key, names, f"move it into {inner}") if inner else None)
        elif isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            _refuse_unknown(typing.cast("type[Any]", hints[key]), value, findings.at(key))


def _keys_of(annotation: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(annotation)] if dataclasses.is_dataclass(annotation) else []


# pydantic's errors ----------------------------------------------------------------------------------------------------


def _translate(error: ValidationError, model: type[Any], table: Mapping[str, Any], findings: Findings) -> None:
    """Add one problem for each wrong place. A union complains once per branch; the deepest place counts."""
    items = error.errors(include_url=False)
    places = [_place(findings, table, item) for item in items]
    done: set[str] = set()
    for item, (place, value, path) in zip(items, places, strict=True):
        below = (f"{place.where}.", f"{place.where}[")
        if place.where in done or (path and any(other.where.startswith(below) for other, _, _ in places)):
            continue
        done.add(place.where)
        same = [one for one, (other, _, _) in zip(items, places, strict=True) if other.where == place.where]
        item = next((one for one in same if one["type"] == "literal_error"), item)
        _add(place, value, item, _says(model, path), path[-1] if path and isinstance(path[-1], str) else "")


def _place(findings: Findings, value: Any, item: Mapping[str, Any]) -> tuple[Findings, Any, tuple[str | int, ...]]:
    """Where an error is: the findings, the value, and the keys that lead there, without the names of union branches."""
    path: tuple[str | int, ...] = ()
    for part in item["loc"]:
        if isinstance(value, dict) and (part in value or (item["type"] == "missing" and part == item["loc"][-1])):
            findings, value, path = findings.at(part), value.get(part), (*path, part)
        elif isinstance(value, list) and isinstance(part, int):
            findings, value, path = findings.at(part), value[part], (*path, part)
    return findings, value, path


def _add(place: Findings, value: Any, item: Mapping[str, Any], says: Says, key: str) -> None:
    error, hint = item["type"], says.hint(key)
    if error == "missing":
        place.add("this setting is required", allowed=says.allowed, hint=f"write {key} = ...")
        return
    if error == "value_error":
        what = str(item["ctx"]["error"])
        first = what.partition(" ")[0].partition(".")[0].rstrip(":")
        if isinstance(value, dict) and first in value:  # of a whole table, about one of its settings
            place.at(first).add(what, found=value[first], hint="change it, or leave it out for its default")
            return
    elif error.startswith(("greater_than", "less_than")):
        what = "the value is out of bounds"
    elif error == "literal_error":
        what = _IMPOSSIBLE
        hint = did_you_mean(str(value), item["ctx"]["expected"].split("'")[1::2], hint)
    else:
        place.add(f"expected {says.allowed}, got {kind(value)}", found=value, hint=hint)
        return
    place.add(what, found=value, allowed=says.allowed, hint=hint)


_WORDS: dict[Any, Says] = {
    int: Says("an integer"),
    float: Says("a number"),
    str: Says("a string"),
    bool: Says("true or false", "true"),
    list: Says("a list"),
    tuple: Says("a list"),
    dict: Says("a table"),
}


def _says(annotation: Any, path: tuple[str | int, ...]) -> Says:
    """What a message says about the place at ``path`` in a value of the type ``annotation``."""
    for key in path:
        annotation = next((inner for one in _branches(annotation) if (inner := _inside(one, key)) is not None), Any)
    return _words(annotation)


def _inside(annotation: Any, key: str | int) -> Any:
    """The type of an item or a field; None for a type that has none."""
    if isinstance(annotation, type) and issubclass(annotation, TomlTable):
        key = next((name for name, field in annotation.model_fields.items() if field.alias == key), key)
    if dataclasses.is_dataclass(annotation) or (isinstance(annotation, type) and issubclass(annotation, TomlTable)):
        return typing.get_type_hints(annotation, include_extras=True).get(str(key))
    arguments = typing.get_args(annotation)
    return arguments[-1 if isinstance(key, str) else 0] if arguments else None


def _branches(annotation: Any) -> list[Any]:
    """The members of a union, without ``Annotated`` around them."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [branch for one in typing.get_args(annotation) for branch in _branches(one)]
    return [annotation]


def _words(annotation: Any) -> Says:
    """The values that a type allows, in a user's words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return next((item for item in arguments[1:] if isinstance(item, Says)), None) or _words(arguments[0])
    if origin is Literal:
        return Says(" or ".join(map(shown, arguments)))
    if origin in (typing.Union, types.UnionType):
        branches = [_words(argument) for argument in arguments if argument is not type(None)]
        return branches[0] if len(branches) == 1 else Says(" or ".join(one.allowed for one in branches))
    if dataclasses.is_dataclass(annotation):
        return Says(f"a table of {listed(_keys_of(annotation))}")
    return _WORDS.get(origin or annotation, Says("a value of another type"))
