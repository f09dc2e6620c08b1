"""The tables of a scenario file, flat: which keys there are, and what each may hold.

Every key is optional here. Whoever uses a table says which of its keys it can't do without, so that one
missing key doesn't hide what is wrong with the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tunegym.tuning.model.scenario import IN_PROCESS, PROCESS, TCP, Keep, Recording

DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)\Z")
_KEEP = re.compile(r"(all|failed|none)\Z|best:([1-9][0-9]{0,8})\Z")
_RECORD = re.compile(r"(all|episodes)\Z|every:([1-9][0-9]{0,8})\Z")
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})\Z", re.ASCII)
_HIGHEST_PORT = 65535
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Says:
    """What a message says about a key: what may stand there, and an example as the hint."""

    allowed: str
    hint: str


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


T = TypeVar("T")
_Positive = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LIVE_KEYS = ("server", "step_timeout_s", "server_restarts", "record", "server_token_file")
"""The keys that only a live experiment has."""
_TableOfTables = dict[str, dict[str, Any]]


class Table(BaseModel):
    """A table whose keys are all known. No value is bent into another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def says(cls, key: str) -> Says:
        """What a message says about one of the keys."""
        return next(item for item in cls.model_fields[key].metadata if isinstance(item, Says))


class ScenarioTable(Table):
    """The top level of a file."""

    name: Annotated[str | None, Says("a string", 'write for example name = "my-scenario"')] = None
    seed: Annotated[int, Says("an integer", "write for example seed = 42")] = 0
    scenario_dir: Annotated[str | None, Says("a folder's path", "leave it out: the file's own folder")] = None
    system: Annotated[dict[str, Any], Says("a table", 'write [system] and below it runner = "local"')] = {}
    tracking: Annotated[dict[str, Any], Says("a table", "write [tracking] and below it tensorboard = true")] = {}
    experiments: Annotated[
        list[dict[str, Any]] | None,
        Says("a list of tables", "write [[experiments]] with two brackets, once for each"),
    ] = None


class SystemTable(Table):
    """``[system]``: where trials run."""

    runner: Annotated[str, Says("a runner's name", 'write runner = "local"')] = "local"
    slots: Annotated[_Positive, Says("an integer of at least 1", "write for example slots = 2")] = 1


class TrackingTable(Table):
    """``[tracking]``: where trials are told of beside the journal."""

    mlflow: Annotated[
        str | None,
        Says(
            "a server's URL, a database such as sqlite:///mlflow.db, or a folder",
            'write for example mlflow = "http://127.0.0.1:5000"',
        ),
    ] = None
    tensorboard: Annotated[bool, Says("true or false", "write tensorboard = true")] = False


class ExperimentTable(Table):
    """One ``[[experiments]]``; the tables in it are checked one by one."""

    name: Annotated[str | None, Says("a string", 'write for example name = "iperf"')] = None
    workload: Annotated[str | None, Says("a workload's name", 'write for example workload = "command"')] = None
    agent: Annotated[str | None, Says("an agent's name", 'write for example agent = "random_search"')] = None
    agent_steps: Annotated[
        _Positive | None, Says("an integer of at least 1", "write for example agent_steps = 100")
    ] = None
    episode_steps: Annotated[_Positive, Says("an integer of at least 1", "write for example episode_steps = 10")] = 1
    max_time: Annotated[
        Annotated[int | float | str, AfterValidator(seconds)] | None,
        Says('seconds above 0, or a string such as "90s", "10m", "2h"', 'write for example max_time = "10m"'),
    ] = None
    stop_after_no_improvement: Annotated[
        _Positive | None,
        Says("an integer of at least 1", "write for example stop_after_no_improvement = 20"),
    ] = None
    agent_metrics: Annotated[
        Annotated[list[str], AfterValidator(_distinct)] | None,
        Says("a list of at least one metric's name, each once", 'write for example agent_metrics = ["time_s"]'),
    ] = None
    agent_reward_function: Annotated[
        str | None, Says("a reward's name, or module:function", 'write agent_reward_function = "identity"')
    ] = None
    objectives: Annotated[
        list[dict[str, Any]] | None,
        Says(
            "a list of tables with metric, goal, weight and limit",
            'write for example objectives = [{ metric = "time_s", goal = "min" }]',
        ),
    ] = None
    timeout_s: Annotated[_Seconds | None, Says("seconds above 0", "write for example timeout_s = 60")] = None
    repeats: Annotated[_Positive, Says("an integer of at least 1", "write for example repeats = 3")] = 1
    cache: Annotated[Literal["on", "off"], Says('"on" or "off"', 'write cache = "on" or cache = "off"')] = "on"
    keep: Annotated[
        Annotated[str, AfterValidator(_keep)] | None,
        Says('"all", "failed", "best:n" (n of at least 1) or "none"', 'write for example keep = "best:3"'),
    ] = None
    isolate: Annotated[bool | None, Says("true or false", "write isolate = true or isolate = false")] = None
    server: Annotated[
        Annotated[str, AfterValidator(server_place)],
        Says(
            '"in_process", "process" or "tcp://HOST:PORT"',
            'write for example server = "process", or server = "tcp://127.0.0.1:7000"',
        ),
    ] = IN_PROCESS
    step_timeout_s: Annotated[_Seconds | None, Says("seconds above 0", "write for example step_timeout_s = 5")] = None
    server_restarts: Annotated[
        Annotated[int, Field(ge=0)], Says("an integer of at least 0", "write for example server_restarts = 5")
    ] = 5
    record: Annotated[
        Annotated[str, AfterValidator(recording)] | None,
        Says('"all", "every:n" (n of at least 1) or "episodes"', 'write for example record = "every:100"'),
    ] = None
    server_token_file: Annotated[
        str | None, Says("a file's path", 'write for example server_token_file = "token.txt"')
    ] = None
    constraints: Annotated[
        list[str],
        Says("a list of strings", 'write for example constraints = ["threads <= 4"]'),
    ] = []
    pruner: Annotated[
        str | dict[str, Any] | None,
        Says("a pruner's name, or a table with kind and its settings", 'write for example pruner = "median"'),
    ] = None
    num_nodes: Annotated[
        _Positive | list[_Positive] | None,
        Says("an integer of at least 1, or a list of them", "write for example num_nodes = [1, 2, 4]"),
    ] = None
    extra_env_vars: Annotated[
        dict[str, Any], Says("a table", 'write [experiments.extra_env_vars] and below it NAME = "value"')
    ] = {}
    dse_excluded_args: Annotated[
        list[str],
        Says("a list of addresses in cmd_args", 'write for example dse_excluded_args = ["layers"]'),
    ] = []
    cmd_args: Annotated[
        dict[str, Any] | None, Says("a table", "write [experiments.cmd_args] and the parameters below it")
    ] = None
    env_params: Annotated[
        _TableOfTables,
        Says("a table of tables", "write for example load = { weights = [0.5, 0.5] }, or load = {}"),
    ] = {}
    metrics: Annotated[
        _TableOfTables,
        Says("a table of tables", "write for example time_s = { regex = 'time=([0-9.]+)' }"),
    ] = {}
    agent_config: Annotated[
        dict[str, Any], Says("a table", "write [experiments.agent_config] and the settings below it")
    ] = {}


class MetricTable(Table):
    """One metric: where it is read from."""

    regex: Annotated[str | None, Says("a pattern", "write for example regex = 'time=([0-9.]+)'")] = None
    json_path: Annotated[
        str | None, Field(alias="json"), Says("a path", 'write for example json = "results[0].time"')
    ] = None
    csv: Annotated[str | None, Says("a column's name", 'write for example csv = "time"')] = None
    file: Annotated[str | None, Says("a file's path", 'write for example file = "out.json"')] = None
    match: Annotated[Literal["first", "last"] | None, Says('"first" or "last"', 'write match = "first"')] = None
    row: Annotated[int | None, Says("an integer; -1 is the last row", "write for example row = -1")] = None
    stream: Annotated[bool, Says("true or false", "write stream = true")] = False


class ObjectiveTable(Table):
    """One objective: which way a metric is better, how much it counts, and what it must not exceed."""

    metric: Annotated[str | None, Says("a metric's name", 'write for example metric = "time_s"')] = None
    goal: Annotated[Literal["max", "min"] | None, Says('"max" or "min"', 'write goal = "max" or goal = "min"')] = None
    weight: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        Says("a number of at least 0; 0 if only the limit counts", "write for example weight = 2.0"),
    ] = 1.0
    limit: Annotated[
        Annotated[float, Field(allow_inf_nan=False)] | None,
        Says("a finite number: the worst value that is acceptable", "write for example limit = 2.0"),
    ] = None


class EnvParamTable(Table):
    """One env_param: how its candidates are drawn and shown to the agent."""

    weights: Annotated[
        list[float] | None,
        Says("numbers, one for each candidate, that sum to 1", "write for example weights = [0.5, 0.3, 0.2]"),
    ] = None
    encoding: Annotated[str | None, Says("an encoding's name", 'write for example encoding = "minmax"')] = None
    draw: Annotated[Literal["episode", "step"], Says('"episode" or "step"', 'write draw = "step"')] = "episode"


class RangeTable(Table):
    """A continuous or integer knob."""

    low: Annotated[int | float | None, Says("a number", "write for example low = 1")] = None
    high: Annotated[int | float | None, Says("a number", "write for example high = 64")] = None
    dtype: Annotated[Literal["int", "float"] | None, Says('"int" or "float"', 'write dtype = "int"')] = None
    log: Annotated[bool, Says("true or false", "write log = true")] = False
    step: Annotated[int | float | None, Says("a number above 0", "write for example step = 2")] = None
