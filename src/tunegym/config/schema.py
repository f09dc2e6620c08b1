"""The tables of a scenario file: their keys, what each may hold, and pydantic's errors in our own words.

Every key is optional here. The code that uses a table says which keys it needs, so that a missing key doesn't hide the
problems of the others.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tunegym.config.problems import Findings, did_you_mean, kind, listed, shown
from tunegym.tuning.model.scenario import IN_PROCESS, PROCESS, TCP, Keep, Recording

DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)\Z")
_KEEP = re.compile(r"(all|failed|none)\Z|best:([1-9][0-9]{0,8})\Z")
_RECORD = re.compile(r"(all|episodes)\Z|every:([1-9][0-9]{0,8})\Z")
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})\Z", re.ASCII)
_HIGHEST_PORT = 65535
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Says:
    """What a message says about a key: what it may hold, and an example line, or a whole hint.

    ``inside`` is true of a place inside the key's value, such as an item of a list.
    """

    allowed: str
    example: str
    inside: bool = False

    @property
    def hint(self) -> str:
        """How to write it."""
        return self.example if self.example.startswith(("write", "leave")) else f"write for example {self.example}"


def seconds(value: int | float | str) -> float:
    """The seconds of ``90``, ``"90s"``, ``"10m"`` or ``"2h"``; raises ValueError for anything else."""
    if not isinstance(value, str):
        number = float(value)
    elif match := DURATION.match(value):
        number = float(match[1]) * _SECONDS[match[2]]
    else:
        raise ValueError("this is no length of time")
    if not 0 < number < float("inf"):
        raise ValueError("a length of time must be above 0")
    return number


def _keep(value: str) -> Keep:
    match = _KEEP.match(value)
    if match is None:
        raise ValueError("not one of the possible values")
    return Keep("best", int(match[2])) if match[2] else Keep(match[1])  # type: ignore[arg-type]


def recording(value: str) -> Recording:
    """What ``record`` asks for; raises ValueError for anything else."""
    match = _RECORD.match(value)
    if match is None:
        raise ValueError("not one of the possible values")
    return Recording("every", int(match[2])) if match[2] else Recording(match[1])  # type: ignore[arg-type]


def server_place(value: str) -> str:
    """Where a server lives, as it is written; raises ValueError for what is no such place."""
    if value in (IN_PROCESS, PROCESS):
        return value
    if not value.startswith(TCP):
        raise ValueError("not one of the possible values")
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


_Positive = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_TableOfTables = dict[str, dict[str, Any]]
_COUNT = "an integer of at least 1"
_SWITCH = "true or false"
LIVE_KEYS = ("server", "step_timeout_s", "server_restarts", "record", "server_token_file")
"""The keys that only a live experiment has."""


class Table(BaseModel):
    """A table whose keys are all known. No value is bent into another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def says(cls, key: str) -> Says:
        """What a message says about one of the keys."""
        return next(item for item in cls.model_fields[key].metadata if isinstance(item, Says))


class ScenarioTable(Table):
    """The top level of a file."""

    name: Annotated[str | None, Says("a string", 'name = "my-scenario"')] = None
    seed: Annotated[int, Says("an integer", "seed = 42")] = 0
    scenario_dir: Annotated[str | None, Says("a folder's path", "leave it out: the file's own folder")] = None
    system: Annotated[dict[str, Any], Says("a table", 'write [system] and below it runner = "local"')] = {}
    tracking: Annotated[dict[str, Any], Says("a table", "write [tracking] and below it tensorboard = true")] = {}
    experiments: Annotated[
        list[dict[str, Any]] | None,
        Says("a list of tables", "write [[experiments]] with two brackets, once for each"),
    ] = None


class SystemTable(Table):
    """``[system]``: where trials run."""

    runner: Annotated[str, Says("a runner's name", 'runner = "local"')] = "local"
    slots: Annotated[_Positive, Says(_COUNT, "slots = 2")] = 1


class TrackingTable(Table):
    """``[tracking]``: trackers that get a copy of the trials."""

    mlflow: Annotated[
        str | None,
        Says("a server's URL, a database such as sqlite:///mlflow.db, or a folder", 'mlflow = "http://127.0.0.1:5000"'),
    ] = None
    tensorboard: Annotated[bool, Says(_SWITCH, "tensorboard = true")] = False


class ExperimentTable(Table):
    """One ``[[experiments]]``; the tables in it are checked one by one."""

    name: Annotated[str | None, Says("a string", 'name = "iperf"')] = None
    workload: Annotated[str | None, Says("a workload's name", 'workload = "command"')] = None
    agent: Annotated[str | None, Says("an agent's name", 'agent = "random_search"')] = None
    agent_steps: Annotated[_Positive | None, Says(_COUNT, "agent_steps = 100")] = None
    episode_steps: Annotated[_Positive, Says(_COUNT, "episode_steps = 10")] = 1
    max_time: Annotated[
        Annotated[int | float | str, AfterValidator(seconds)] | None,
        Says('seconds above 0, or a string such as "90s", "10m", "2h"', 'max_time = "10m"'),
    ] = None
    stop_after_no_improvement: Annotated[_Positive | None, Says(_COUNT, "stop_after_no_improvement = 20")] = None
    agent_metrics: Annotated[
        Annotated[list[str], AfterValidator(_distinct)] | None,
        Says("a list of at least one metric's name, each once", 'agent_metrics = ["time_s"]'),
    ] = None
    agent_reward_function: Annotated[
        str | None, Says("a reward's name, or module:function", 'agent_reward_function = "identity"')
    ] = None
    objectives: Annotated[
        list[dict[str, Any]] | None,
        Says(
            "a list of tables with metric, goal, weight and limit",
            'objectives = [{ metric = "time_s", goal = "min" }]',
        ),
    ] = None
    timeout_s: Annotated[_Seconds | None, Says("seconds above 0", "timeout_s = 60")] = None
    repeats: Annotated[_Positive, Says(_COUNT, "repeats = 3")] = 1
    cache: Annotated[Literal["on", "off"], Says('"on" or "off"', 'write cache = "on" or cache = "off"')] = "on"
    keep: Annotated[
        Annotated[str, AfterValidator(_keep)] | None,
        Says('"all", "failed", "best:n" (n of at least 1) or "none"', 'keep = "best:3"'),
    ] = None
    isolate: Annotated[bool | None, Says(_SWITCH, "write isolate = true or isolate = false")] = None
    server: Annotated[
        Annotated[str, AfterValidator(server_place)],
        Says('"in_process", "process" or "tcp://HOST:PORT"', 'server = "process", or server = "tcp://127.0.0.1:7000"'),
    ] = IN_PROCESS
    step_timeout_s: Annotated[_Seconds | None, Says("seconds above 0", "step_timeout_s = 5")] = None
    server_restarts: Annotated[Annotated[int, Field(ge=0)], Says("an integer of at least 0", "server_restarts = 5")] = 5
    record: Annotated[
        Annotated[str, AfterValidator(recording)] | None,
        Says('"all", "every:n" (n of at least 1) or "episodes"', 'record = "every:100"'),
    ] = None
    server_token_file: Annotated[str | None, Says("a file's path", 'server_token_file = "token.txt"')] = None
    constraints: Annotated[list[str], Says("a list of strings", 'constraints = ["threads <= 4"]')] = []
    pruner: Annotated[
        str | dict[str, Any] | None,
        Says("a pruner's name, or a table with kind and its settings", 'pruner = "median"'),
    ] = None
    num_nodes: Annotated[
        _Positive | list[_Positive] | None, Says(f"{_COUNT}, or a list of them", "num_nodes = [1, 2, 4]")
    ] = None
    extra_env_vars: Annotated[
        dict[str, Any], Says("a table", 'write [experiments.extra_env_vars] and below it NAME = "value"')
    ] = {}
    dse_excluded_args: Annotated[
        list[str], Says("a list of addresses in cmd_args", 'dse_excluded_args = ["layers"]')
    ] = []
    cmd_args: Annotated[
        dict[str, Any] | None, Says("a table", "write [experiments.cmd_args] and the parameters below it")
    ] = None
    env_params: Annotated[
        _TableOfTables, Says("a table of tables", "load = { weights = [0.5, 0.5] }, or load = {}")
    ] = {}
    metrics: Annotated[_TableOfTables, Says("a table of tables", "time_s = { regex = 'time=([0-9.]+)' }")] = {}
    agent_config: Annotated[
        dict[str, Any], Says("a table", "write [experiments.agent_config] and the settings below it")
    ] = {}


class MetricTable(Table):
    """One metric: where it is read from."""

    regex: Annotated[str | None, Says("a pattern", "regex = 'time=([0-9.]+)'")] = None
    json_path: Annotated[str | None, Field(alias="json"), Says("a path", 'json = "results[0].time"')] = None
    csv: Annotated[str | None, Says("a column's name", 'csv = "time"')] = None
    file: Annotated[str | None, Says("a file's path", 'file = "out.json"')] = None
    match: Annotated[Literal["first", "last"] | None, Says('"first" or "last"', 'match = "first"')] = None
    row: Annotated[int | None, Says("an integer; -1 is the last row", "row = -1")] = None
    stream: Annotated[bool, Says(_SWITCH, "stream = true")] = False


class ObjectiveTable(Table):
    """One objective: which way a metric is better, how much it counts, and its limit."""

    metric: Annotated[str | None, Says("a metric's name", 'metric = "time_s"')] = None
    goal: Annotated[Literal["max", "min"] | None, Says('"max" or "min"', 'write goal = "max" or goal = "min"')] = None
    weight: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Says("a number of at least 0; 0 if only the limit counts", "weight = 2.0"),
    ] = 1.0
    limit: Annotated[_Number | None, Says("a finite number: the worst value that is acceptable", "limit = 2.0")] = None


class EnvParamTable(Table):
    """One env_param: how its candidates are drawn and shown to the agent."""

    weights: Annotated[
        list[float] | None, Says("numbers, one for each candidate, that sum to 1", "weights = [0.5, 0.3, 0.2]")
    ] = None
    encoding: Annotated[str | None, Says("an encoding's name", 'encoding = "minmax"')] = None
    draw: Annotated[Literal["episode", "step"], Says('"episode" or "step"', 'draw = "step"')] = "episode"


class RangeTable(Table):
    """A continuous or integer knob."""

    low: Annotated[int | float | None, Says("a number", "low = 1")] = None
    high: Annotated[int | float | None, Says("a number", "high = 64")] = None
    dtype: Annotated[Literal["int", "float"] | None, Says('"int" or "float"', 'dtype = "int"')] = None
    log: Annotated[bool, Says(_SWITCH, "log = true")] = False
    step: Annotated[int | float | None, Says("a number above 0", "step = 2")] = None


# from plain tables to checked ones ------------------------------------------------------------------------------------

TableT = TypeVar("TableT", bound=Table)


def checked(
    model: type[TableT],
    table: Mapping[str, Any],
    findings: Findings,
    stray: Callable[[str], str | None] = lambda _key: None,
) -> TableT:
    """``table`` as ``model``. Keys with a problem are left at their defaults.

    ``stray`` may give the hint for an unknown key that belongs somewhere else.
    """
    fields = {field.alias or name: name for name, field in model.model_fields.items()}
    for key in [key for key in table if key not in fields]:
        findings.unknown(key, table[key], fields, stray(key))
    given = {key: value for key, value in table.items() if key in fields}
    try:
        return model(**given)
    except ValidationError as error:

        def says(path: tuple[str, ...]) -> Says:
            return dataclasses.replace(model.says(fields[path[0]]), inside=len(path) > 1)

        _translate(error, given, findings, says)
        bad = {item["loc"][0] for item in error.errors(include_url=False)}
        return model(**{key: value for key, value in given.items() if key not in bad})


def checked_config(config: type[Any], table: Mapping[str, Any], findings: Findings) -> Any:
    """``table`` as the frozen dataclass ``config`` of an agent or a pruner, or None and problems."""
    before = len(findings.problems)
    _refuse_unknown(config, table, findings)
    try:
        # As JSON: in strict mode pydantic takes a dataclass from JSON's objects, but not from a dict.
        value = TypeAdapter(config).validate_json(orjson.dumps(table), strict=True)
    except ValidationError as error:
        _translate(error, table, findings, lambda path: _says_of(config, path))
        return None
    return value if len(findings.problems) == before else None


def _translate(
    error: ValidationError, table: Mapping[str, Any], findings: Findings, says: Callable[[tuple[str, ...]], Says]
) -> None:
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
        _add(place, value, next((one for one in same if one["type"] == "literal_error"), item), says(path))


def _place(findings: Findings, value: Any, item: Mapping[str, Any]) -> tuple[Findings, Any, tuple[str, ...]]:
    """Where an error is: the findings, the value, and the keys that lead there, without the names of union branches."""
    path: tuple[str, ...] = ()
    for part in item["loc"]:
        if isinstance(value, dict) and (part in value or (item["type"] == "missing" and part == item["loc"][-1])):
            findings, value, path = findings.at(part), value.get(part), (*path, part)
        elif isinstance(value, list) and isinstance(part, int):
            findings, value, path = findings.at(part), value[part], (*path, "")
    return findings, value, path


def _add(place: Findings, value: Any, item: Mapping[str, Any], says: Says) -> None:
    error, hint = item["type"], says.hint
    if error == "missing":
        name = place.where.rpartition(".")[2]
        place.add("this setting is required", allowed=says.allowed, hint=f"write {name} = ...")
        return
    if error == "value_error":
        what = str(item["ctx"]["error"])
    elif error.startswith(("greater_than", "less_than")):
        what = "the value is out of bounds"
    elif error == "literal_error":
        what = "not one of the possible values"
        hint = did_you_mean(value, item["ctx"]["expected"].split("'")[1::2], hint)
    elif says.inside:
        what = f"{kind(value)} is not allowed here"
    else:
        place.add(f"expected {says.allowed}, got {kind(value)}", found=value, hint=hint)
        return
    place.add(what, found=value, allowed=says.allowed, hint=hint)


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


_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: _SWITCH,
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def _says_of(annotation: Any, path: tuple[str, ...]) -> Says:
    """What a message says about a setting, from the type of the field at ``path``."""
    for key in path:
        if dataclasses.is_dataclass(annotation):
            annotation = typing.get_type_hints(annotation).get(key, Any)
        else:
            annotation = next(iter(typing.get_args(annotation)), Any) if not key else Any
    allowed = words(annotation)
    return Says(allowed, f"write {allowed}")


def words(annotation: Any) -> str:
    """The values that a type allows, in a user's words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(shown(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(argument) for argument in arguments if argument is not type(None))
    if dataclasses.is_dataclass(annotation):
        return f"a table of {listed(_keys_of(annotation))}"
    return _WORDS.get(origin or annotation, "a value of another type")
