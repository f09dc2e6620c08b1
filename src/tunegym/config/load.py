"""A scenario file, or the same built in Python, becomes a ``Scenario``: checked, resolved, ready to run.

The document is changed by ``--set``, turned into plain data that TOML and the journal can hold, then checked table by
table. All problems are collected, so that a user sees them at once.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from tunegym.config.experiment import Draft, entry_of, read_jobs
from tunegym.config.live import check_servers, read_live
from tunegym.config.problems import (
    INSTEAD,
    Components,
    Findings,
    Scope,
    did_you_mean,
    folder_name,
    kind,
    known,
    listed,
    shown,
    with_lines,
)
from tunegym.config.schema import ExperimentTable, ScenarioTable, SystemTable, TrackingTable, checked, checked_config
from tunegym.core.errors import ConfigError, Problem
from tunegym.tuning.model.scenario import Scenario, Tracking
from tunegym.tuning.model.values import storable

OVERRIDES = "--set"
"""What messages about an override call their file."""

DEEPEST = 40
"""Deeper nesting is refused: it exhausts the stack."""

_EXPERIMENT_NAME = "/\\.="
"""Not in an experiment's name: it is a folder, and a part of ``--set experiments.NAME.key=value``."""

_PLAIN = "strings, integers, floats, booleans, lists and tables"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]+)(?:\+[A-Za-z0-9_]+)?:")
_HOST = re.compile(r"https?://[^/\s]+", re.IGNORECASE)
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", *_DATABASES, "file", "databricks")


def load(
    path: str | Path, catalog: Components, overrides: Sequence[str] = (), system: Mapping[str, Any] | None = None
) -> Scenario:
    """The scenario in a TOML file, with ``--set`` strings applied before anything is checked.

    ``system`` replaces its ``[system]``.

    Raises:
        ConfigError: with every problem that could be found in one go, most basic first.
    """
    path = Path(path)
    document = read_file(path)
    try:
        return parse(document, catalog, file=str(path), scenario_dir=path.parent, overrides=overrides, system=system)
    except ConfigError as error:
        if error.file != str(path):
            raise
        raise with_lines(error, path.read_text(encoding="utf-8-sig"), skip=f"set by {OVERRIDES}") from None


def is_system_file(path: str | Path) -> bool:
    """Whether a file has a ``[system]`` and no experiments. Raises ``ConfigError`` if it is not TOML."""
    document = read_file(Path(path))
    return "system" in document and not {"name", "experiments"} & document.keys()


def load_system(path: str | Path, catalog: Components) -> dict[str, Any]:
    """The ``[system]`` table of a file that has nothing else, checked. Raises ``ConfigError``."""
    path, findings = Path(path), Findings()
    document = read_file(path)
    for key in document.keys() - {"system"}:
        hint = "a system file has one table, [system]; experiments belong into a scenario"
        findings.unknown(key, document[key], ["system"], hint)
    plain = _plain_document(document, findings)
    if not isinstance(plain.get("system"), dict):
        hint = 'write [system], and below it for example runner = "slurm"'
        findings.add("this is no system file: there is no table [system]", hint=hint)
    elif not findings.problems:
        _system(plain["system"], catalog, findings.at("system"))
    if findings.problems:
        error = ConfigError(str(path), findings.problems)
        raise with_lines(error, path.read_text(encoding="utf-8-sig"), skip="\n")
    return plain["system"]


def parse(
    document: Mapping[str, Any],
    catalog: Components,
    *,
    file: str = "<python>",
    scenario_dir: str | Path,
    overrides: Sequence[str] = (),
    system: Mapping[str, Any] | None = None,
) -> Scenario:
    """The scenario that ``document`` describes; ``scenario_dir`` counts unless the document names its own.

    The result's ``document`` is resolved plain data, from which the same scenario can be parsed again.

    Raises:
        ConfigError: as for ``load``.
    """
    if not isinstance(document, Mapping):
        what = f"a scenario is a table, and this is {kind(document)}"
        raise ConfigError(file, [Problem("", what, hint="give a dict with name and experiments")])
    findings = Findings()
    changed = copied(document if system is None else {**document, "system": system})
    paths = override(changed, overrides)
    resolved = _plain_document(changed, findings)
    left_out = [problem.where for problem in findings.problems]
    scenario = _scenario(resolved, catalog, file, _absolute(scenario_dir), findings)
    problems = findings.problems[: len(left_out)]
    # A value that was left out because of a problem is missing later on: that isn't reported again.
    problems += [
        problem
        for problem in findings.problems[len(left_out) :]
        if not any(where == problem.where or where.startswith(f"{problem.where}[") for where in left_out)
    ]
    # A problem that an override brought in says so: the file shows something else.
    for at, problem in enumerate(problems):
        if any(problem.where == path or problem.where.startswith((f"{path}.", f"{path}[")) for path in paths):
            problems[at] = replace(problem, what=f"{problem.what} (set by {OVERRIDES})")
    if problems:
        raise ConfigError(file, problems)
    return scenario


def _scenario(document: dict[str, Any], catalog: Components, file: str, folder: Path, findings: Findings) -> Scenario:
    """The scenario, which must not be used if there are findings."""
    top = checked(ScenarioTable, document, findings, _stray)
    if "name" not in findings.broken():
        folder_name(top.name, findings.at("name"))
    below = findings.at("system")
    system, config, runner = _system(top.system, catalog, below)
    if top.scenario_dir is not None:
        folder = _absolute(folder / top.scenario_dir)
        if not folder.is_dir():
            hint = "name the folder where it is now; in your own scenario you can leave it out"
            findings.at("scenario_dir").add("there is no such folder", found=top.scenario_dir, hint=hint)
    trackers = _tracking(top.tracking, folder, findings.at("tracking"))
    traits = getattr(runner, "uses_num_nodes", False), getattr(config, "single_sbatch", False)
    drafts = _experiments(top, Scope(catalog.at(folder), folder, top.seed, *traits, top.plane), findings)
    found = [draft.experiment.agent_config for draft in drafts if draft.experiment is not None]
    if top.plane and len(found) == len(drafts) and not any(hasattr(one, "plane") for one in found):
        findings.at("plane").add("no experiment uses a data plane", hint='remove it, or write agent = "async_ppo"')
    if "slots" not in below.broken() and any(draft.live for draft in drafts):
        check_servers(system.slots, below.at("slots"))
    resolved = {
        "name": top.name,
        "seed": top.seed,
        "scenario_dir": str(folder),
        "system": {**top.system, "runner": system.runner, "slots": system.slots},
        **({"tracking": top.tracking} if top.tracking else {}),
        **({"plane": top.plane} if top.plane else {}),
        "experiments": top.experiments,
    }
    return Scenario(
        name=top.name or "",
        seed=top.seed,
        runner=system.runner,
        slots=system.slots,
        runner_config=config,
        experiments=tuple(draft.experiment for draft in drafts if draft.experiment is not None),
        scenario_dir=folder,
        document=resolved,
        file=file,
        warnings=tuple(warning for draft in drafts for warning in draft.warnings),
        tracking=trackers,
    )


def _system(table: Mapping[str, Any], catalog: Components, findings: Findings) -> tuple[SystemTable, Any, Any]:
    """What every runner has, the settings of this one (its ``Config``, or None without any), and its class."""
    common = {key: value for key, value in table.items() if key in SystemTable.model_fields}
    system, config = checked(SystemTable, common, findings), None
    if "runner" in findings.broken():
        return system, config, None
    runner = known(catalog, "runners", system.runner, findings.at("runner"))
    settings = {key: value for key, value in table.items() if key not in common}
    if hasattr(runner, "Config"):
        config = checked_config(runner.Config, settings, findings)
    elif runner is not None:
        for key, value in settings.items():
            findings.unknown(key, value, SystemTable.model_fields)
    return system, config, runner


def _stray(key: str) -> str | None:
    """Where a key belongs that is not one of the top level's."""
    homes = {
        "move it below [[experiments]]": ExperimentTable,
        "move it into [tracking]": TrackingTable,
        "move it into [system]": SystemTable,
    }
    if key in ("cmd_args", "env_params", "metrics", "agent_config", "extra_env_vars"):
        return f"write [experiments.{key}], below [[experiments]]"
    return INSTEAD.get(key) or next((hint for hint, table in homes.items() if key in table.model_fields), None)


def _experiments(top: ScenarioTable, scope: Scope, findings: Findings) -> list[Draft]:
    if not top.experiments:
        if "experiments" not in findings.broken():
            ScenarioTable.require("experiments", "a scenario needs at least one experiment", findings)
        return []
    drafts: list[Draft] = []
    before = len(findings.problems)
    for index, raw in enumerate(top.experiments):
        place = _place(raw, index, findings)
        name = raw.get("name")
        if not isinstance(name, str | None):
            name = None  # the table's own check reports it
        elif "name" not in place.broken():
            folder_name(name, place.at("name"), _EXPERIMENT_NAME)
        if name is not None and any(draft.name == name for draft in drafts):
            place.at("name").add("two experiments have this name", found=name, hint="rename one of them")
            continue
        entry = entry_of(name or "", raw, scope, place)
        if entry.live is None:  # it says both, and further problems depend on which is meant
            drafts.append(Draft(entry.name, None, None))
        else:
            drafts.append(read_live(entry) if entry.live else read_jobs(entry))
    routing = Findings(findings.where)
    _check_routing(drafts, scope, routing)
    findings.problems[before:before] = routing.problems  # which way an experiment goes comes before its own problems
    return drafts


def _check_routing(drafts: Sequence[Draft], scope: Scope, findings: Findings) -> None:
    """Refuse experiments that can't share a scenario, then those that can't share an allocation."""
    driven = [draft.name for draft in drafts if draft.driven]
    plain_jobs = [draft.name for draft in drafts if draft.driven is False]
    if driven and plain_jobs:
        has = "has knobs or is live" if any(draft.live for draft in drafts) else "has knobs"
        what = f"a scenario is either tuned or plain: {listed(driven)} {has}, {listed(plain_jobs)} has none"
        hint = f"give {plain_jobs[0]} a knob, or put it into another scenario"
        findings.at("experiments").add(what, hint=hint)
    live = [draft.name for draft in drafts if draft.live]
    learning = [draft.name for draft in drafts if draft.learns]
    for names, why in ((live, "steps a live system"), (learning, "learns from the results of trials")):
        if scope.single_sbatch and names:
            what = f"single_sbatch is for trials that are known in advance, and {listed(names)} {why}"
            hint = "remove single_sbatch, or use grid_search or random_search"
            findings.at("system").at("single_sbatch").add(what, found=True, hint=hint)


def _place(entry: object, index: int, findings: Findings) -> Findings:
    """Where messages about an experiment point: its name, or its position if that is no name."""
    name = entry.get("name") if isinstance(entry, dict) else None
    usable = isinstance(name, str) and folder_name(name, Findings(), _EXPERIMENT_NAME) is not None
    return findings.at("experiments").at(name if usable and isinstance(name, str) else index)


# [tracking] -----------------------------------------------------------------------------------------------------------


def _tracking(table: Mapping[str, Any], folder: Path, findings: Findings) -> Tracking:
    """The trackers of a scenario. Relative paths start at ``folder``, the scenario's."""
    wanted = checked(TrackingTable, table, findings)
    packages = {"mlflow": ("mlflow", wanted.mlflow is not None), "tensorboard": ("tensorboardX", wanted.tensorboard)}
    for key, (package, needed) in packages.items():
        if needed and not _installed(package):
            hint = f"pip install 'tunegym[{key}]', or remove this key"
            findings.at(key).add(f"the package {package} is not installed", found=table[key], hint=hint)
    if wanted.mlflow is None or "mlflow" in findings.broken():
        return Tracking(None, wanted.tensorboard)
    return Tracking(_tracking_uri(wanted.mlflow, folder, findings.at("mlflow")), wanted.tensorboard)


def _tracking_uri(given: str, folder: Path, findings: Findings) -> str | None:
    """``given`` as an absolute URI or path, or None and a problem."""
    match = _SCHEME.match(given)
    scheme = match[1].lower() if match is not None else ""
    path = given.partition(":///" if scheme == "sqlite" else ":")[2]
    what, hint = None, 'write for example mlflow = "http://127.0.0.1:5000"'
    if not given.strip():
        what = "a tracking URI can't be empty"
    elif scheme and scheme not in _SCHEMES:
        what, hint = "MLflow knows no such scheme", did_you_mean(scheme, _SCHEMES, hint)
    elif scheme in _DATABASES and not _installed("sqlalchemy"):
        what = "the small MLflow package reaches servers, and no database by itself"
        hint = "pip install mlflow (the whole of it), or give the URL of a server"
    elif scheme in ("http", "https") and not _HOST.match(given):
        what = "this URL names no host"
    elif scheme == "sqlite" and path in ("", ":memory:"):
        what, hint = "this names no file", 'write for example mlflow = "sqlite:///mlflow.db"'
    if what is not None:
        findings.add(what, found=given, allowed="a URL or a folder", hint=hint)
        return None
    if scheme == "sqlite":  # sqlite:///relative or sqlite:////absolute, as SQLAlchemy has it
        return f"{given.partition(':///')[0]}:///{_absolute(folder / path)}"
    if scheme == "file" and not given.startswith("file:/"):
        return str(_absolute(folder / path))
    return given if scheme or given == "databricks" else str(_absolute(folder / given))


def _installed(package: str) -> bool:
    """Whether a package is installed, without importing it. A folder of the name is no package."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve would follow links


# the file -------------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
    """The file's content. Raises ``ConfigError`` if it can't be read, or is not TOML."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe: reading it would wait for ever
            raise ConfigError(str(path), [Problem("", "this is not a regular file", hint="name a .toml file")])
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        what, hint = "there is no such file", _closest_file(path)
    except IsADirectoryError:
        files = listed(sorted(file.name for file in path.glob("*.toml"))[:5])
        what, hint = "this is a folder, not a file", f"name a file in it: {files}"
    except UnicodeDecodeError as error:
        what, hint = f"the file is not UTF-8 (byte {error.start})", "save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        what, hint = f"this is not TOML: {error}", "strings stand in quotes, tables in [brackets], a key only once"
    except (ValueError, RecursionError):
        what = "this is not TOML that we can read: a number too long, a path too odd, or nesting too deep"
        hint = "simplify the file"
    except OSError as error:
        what, hint = f"the file can't be read: {error.strerror or error}", "check its permissions"
    raise ConfigError(str(path), [Problem("", what, hint=hint)])


def _closest_file(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml" or entry.is_dir())
    except OSError:
        return f"there is no folder {path.parent} either"
    return did_you_mean(
        path.name, names, f"in its folder: {listed(names[:5])}" if names else "start one with: tunegym init"
    )


# plain data -----------------------------------------------------------------------------------------------------------


def copied(value: Any, depth: int = 0) -> Any:
    """A copy of ``value`` whose tables are dicts and whose sequences are lists, so that it can be changed."""
    if depth <= DEEPEST and isinstance(value, Mapping):
        return {key: copied(item, depth + 1) for key, item in value.items()}
    if depth <= DEEPEST and isinstance(value, list | tuple):
        return [copied(item, depth + 1) for item in value]
    return value


def _plain_document(document: Mapping[Any, Any], findings: Findings) -> dict[str, Any]:
    """The document as plain data; problems inside experiments are under the experiments' names."""
    experiments = document.get("experiments")
    resolved = _plain({**document, "experiments": []} if isinstance(experiments, list) else document, findings)
    if isinstance(experiments, list):
        entries = [_plain(entry, _place(entry, index, findings)) for index, entry in enumerate(experiments)]
        resolved["experiments"] = [entry for entry in entries if entry is not None]
    return resolved


def _plain(value: Any, findings: Findings, depth: int = 0) -> Any:
    """A copy of ``value`` that is plain data. Other values are problems, and left out.

    Tuples become lists, paths strings, numpy's scalars Python's, and importable functions references.
    """
    if depth > DEEPEST:
        findings.add("nested too deeply", allowed=f"at most {DEEPEST} levels", hint="flatten this table")
        return None
    if isinstance(value, Mapping):
        table: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str) or not _writable(key):
                findings.add("a key must be a string", found=key, hint="use a string without control characters")
            elif (kept := _plain(item, findings.at(key), depth + 1)) is not None:
                table[str(key)] = kept
        return table
    if isinstance(value, list | tuple):
        items = [_plain(item, findings.at(index), depth + 1) for index, item in enumerate(value)]
        return [item for item in items if item is not None]
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    return _reference(value, findings) if callable(value) else _scalar(value, findings)


def _scalar(value: object, findings: Findings) -> Any:
    reason = storable(value)
    if isinstance(value, str):
        if _writable(value):
            return str.__str__(value)
        findings.add("a string that can't be passed on", hint="remove its NUL or unpaired surrogate characters")
    elif value is None:
        findings.add("None has no meaning here", allowed=_PLAIN, hint="leave the key out instead")
    elif isinstance(value, datetime.date | datetime.time):
        hint = f'write it in quotes: "{value.isoformat()}"'
        findings.add("a date or time can't be a value", found=value, allowed=_PLAIN, hint=hint)
    elif reason is None:
        return next(exact(value) for exact in (bool, int, float) if isinstance(value, exact))
    elif isinstance(value, int | float):
        findings.add(reason, found=value, hint="use a finite number, an integer of 64 bits, or a string")
    else:
        findings.add(f"{kind(value)} can't be a value", allowed=_PLAIN, hint="use plain data")
    return None


def _writable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _reference(function: Any, findings: Findings) -> str | None:
    """``module:qualname`` of a function that another process can import, else None and a problem."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else None
    if isinstance(module, str) and isinstance(name, str) and "<" not in name:
        return f"{module}:{name}"
    what = "this function can't be found by name, so no other process could call it"
    findings.add(what, hint='move it to the top level of a module and write "module:function"')
    return None


# --set key=value ------------------------------------------------------------------------------------------------------


def override(document: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Change ``document`` in place by ``key=value`` strings, in order; returns the key paths that were set.

    Raises:
        ConfigError: an override is malformed, names no experiment, or leads through a value that is no table.
    """
    findings = Findings()
    for text in overrides:
        _apply(document, text, findings)
    if findings.problems:
        raise ConfigError(OVERRIDES, findings.problems)
    return [text.partition("=")[0].strip() for text in overrides]


def value_of(text: str) -> Any:
    """The value of a ``key=value`` argument: TOML if it is, else the text as it stands.

    Raises:
        ValueError: it begins like a list, a table or a string, and is none.
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in ("[", "{", '"', "'"):
            raise ValueError(f"{error}".replace("line 1, ", "")) from error
        return text
    # A line break in the text could smuggle in more keys; then it is no single value.
    return parsed["value"] if len(parsed) == 1 else text


def _apply(document: dict[str, Any], text: str, findings: Findings) -> None:
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        allowed = "seed=N, system.KEY=VALUE or experiments.NAME.KEY=VALUE"
        hint = "write for example --set experiments.iperf.agent_steps=20"
        findings.add("this is no key=value", found=text, allowed=allowed, hint=hint)
        return
    below, table, start = findings.under(key.strip()), document, 0
    if path[0] == "experiments":
        experiments = document.get("experiments")
        tables = [entry for entry in experiments if isinstance(entry, dict)] if isinstance(experiments, list) else []
        by_name = {entry["name"]: entry for entry in tables if isinstance(entry.get("name"), str)}
        if len(path) < 3:
            hint = f"write experiments.{next(iter(by_name), 'NAME')}.KEY=VALUE"
            below.add("an experiment's key is missing", found=text, hint=hint)
            return
        if path[1] not in by_name:
            hint = did_you_mean(path[1], by_name, "use the name of an experiment in the scenario")
            below.add(f"there is no experiment {shown(path[1])}", found=text, allowed=listed(by_name), hint=hint)
            return
        table, start = by_name[path[1]], 2
    for index in range(start, len(path) - 1):
        table = table.setdefault(path[index], {})
        if not isinstance(table, dict):
            where = ".".join(path[: index + 1])
            below.add(f"{where} is not a table", found=text, hint=f"set {where} as a whole")
            return
    try:
        table[path[-1]] = value_of(value.strip())
    except ValueError as error:
        hint = "close every bracket and quote; the shell takes quotes away"
        below.add(f"the value is no TOML: {error}", found=text, hint=hint)
