"""A scenario file, or the same built in Python, becomes a ``Scenario``: checked, resolved, ready to run."""

from __future__ import annotations

import datetime
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from tunegym.config.experiment import Draft, read
from tunegym.config.lines import with_lines
from tunegym.config.live import check_servers
from tunegym.config.problems import Catalog, Findings, Scope, did_you_mean, folder_name, kind, known, listed, shown
from tunegym.config.schema import ExperimentTable, ScenarioTable, SystemTable, TrackingTable, checked
from tunegym.core.errors import ConfigError, Problem
from tunegym.tuning.model.scenario import Scenario, Tracking
from tunegym.tuning.model.values import storable

_EXPERIMENT_NAME = "/\\.="
"""Not in an experiment's name: it is a folder, and a part of ``--set experiments.NAME.key=value``."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]+)(?:\+[A-Za-z0-9_]+)?:")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", *_DATABASES, "file", "databricks")


def load(path: str | Path, catalog: Catalog, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a TOML file, with ``--set`` strings applied before anything is checked.

    Raises:
        ConfigError: with every problem that could be found in one go, most basic first.
    """
    path = Path(path)
    document = read_file(path)
    try:
        return parse(document, catalog, file=str(path), scenario_dir=path.parent, overrides=overrides)
    except ConfigError as error:
        if error.file != str(path):
            raise
        raise with_lines(error, path.read_text(encoding="utf-8-sig"), skip=f"set by {OVERRIDES}") from None


def parse(
    document: Mapping[str, Any],
    catalog: Catalog,
    *,
    file: str = "<python>",
    scenario_dir: str | Path,
    overrides: Sequence[str] = (),
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
    changed = copied(document)
    paths = override(changed, overrides)
    resolved = _plain_document(changed, findings)
    left_out = [problem.where for problem in findings.problems]
    scenario = _scenario(resolved, catalog, file, _absolute(scenario_dir), findings)
    problems = findings.problems[: len(left_out)]
    problems += [problem for problem in findings.problems[len(left_out) :] if not _follows(problem, left_out)]
    if problems:
        raise ConfigError(file, [_marked(problem, paths) for problem in problems])
    return scenario


def _follows(problem: Problem, left_out: Sequence[str]) -> bool:
    """Whether a problem only follows from a value that was left out because of an earlier problem."""
    return any(where == problem.where or where.startswith(f"{problem.where}[") for where in left_out)


def _marked(problem: Problem, paths: Sequence[str]) -> Problem:
    """A problem that an override brought in says so: the file shows something else."""
    if any(problem.where == path or problem.where.startswith((f"{path}.", f"{path}[")) for path in paths):
        return replace(problem, what=f"{problem.what} (set by {OVERRIDES})")
    return problem


def _plain_document(document: Mapping[Any, Any], findings: Findings) -> dict[str, Any]:
    """The document as plain data; problems inside experiments are under the experiments' names."""
    experiments = document.get("experiments")
    resolved = plain({**document, "experiments": []} if isinstance(experiments, list) else document, findings)
    if isinstance(experiments, list):
        entries = [plain(entry, _place(entry, index, findings)) for index, entry in enumerate(experiments)]
        resolved["experiments"] = [entry for entry in entries if entry is not None]
    return resolved


def _place(entry: object, index: int, findings: Findings) -> Findings:
    """Where messages about an experiment point: its name, or its position if that is no name."""
    name = entry.get("name") if isinstance(entry, dict) else None
    below = findings.at("experiments")
    usable = isinstance(name, str) and folder_name(name, Findings(), _EXPERIMENT_NAME) is not None
    return below.at(name) if usable and isinstance(name, str) else below.at(index)


def _scenario(document: dict[str, Any], catalog: Catalog, file: str, folder: Path, findings: Findings) -> Scenario:
    """The scenario, of which nothing may be used if there are findings."""
    top = checked(ScenarioTable, document, findings, _stray)
    if "name" not in findings.broken():
        folder_name(top.name, findings.at("name"))
    system = checked(SystemTable, top.system, findings.at("system"))
    if "runner" not in findings.at("system").broken():
        known(catalog, "runners", system.runner, findings.at("system").at("runner"))
    folder = _scenario_dir(top.scenario_dir, folder, findings.at("scenario_dir"))
    trackers = _tracking(top.tracking, folder, findings.at("tracking"))
    drafts = _experiments(top, Scope(catalog.at(folder), folder, top.seed), findings)
    if "slots" not in findings.at("system").broken() and any(draft.live for draft in drafts):
        check_servers(system.slots, findings.at("system").at("slots"))
    resolved = {
        "name": top.name,
        "seed": top.seed,
        "scenario_dir": str(folder),
        "system": {**top.system, "runner": system.runner, "slots": system.slots},
        **({"tracking": top.tracking} if top.tracking else {}),
        "experiments": top.experiments,
    }
    return Scenario(
        name=top.name or "",
        seed=top.seed,
        runner=system.runner,
        slots=system.slots,
        experiments=tuple(draft.experiment for draft in drafts if draft.experiment is not None),
        scenario_dir=folder,
        document=resolved,
        file=file,
        warnings=tuple(warning for draft in drafts for warning in draft.warnings),
        tracking=trackers,
    )


def _stray(key: str) -> str | None:
    """Where a key belongs that is not one of the top level's."""
    if key in ExperimentTable.model_fields:
        return "move it below [[experiments]]"
    if key in TrackingTable.model_fields:
        return "move it into [tracking]"
    return "move it into [system]" if key in SystemTable.model_fields else None


def _scenario_dir(given: str | None, folder: Path, findings: Findings) -> Path:
    if given is None:
        return folder
    chosen = _absolute(folder / given)
    if not chosen.is_dir():
        hint = "leave it out: it is the file's own folder by default"
        findings.add("there is no such folder", found=given, allowed="an existing folder", hint=hint)
    return chosen


def _experiments(top: ScenarioTable, around: Scope, findings: Findings) -> list[Draft]:
    below = findings.at("experiments")
    if not top.experiments:
        if "experiments" not in findings.broken():
            hint = ScenarioTable.says("experiments").hint
            below.add("a scenario needs at least one experiment", allowed="one or more [[experiments]]", hint=hint)
        return []
    drafts: list[Draft] = []
    for index, raw in enumerate(top.experiments):
        place = _place(raw, index, findings)
        name = raw.get("name")
        if not isinstance(name, str | None):
            name = None  # the table's own check says what is wrong with it
        elif "name" not in place.broken():
            folder_name(name, place.at("name"), _EXPERIMENT_NAME)
        if name is not None and any(draft.name == name for draft in drafts):
            place.at("name").add("two experiments have this name", found=name, hint="rename one of them")
            continue
        drafts.append(read(name or "", raw, around, place))
    _refuse_mixture(drafts, below)
    return drafts


def _refuse_mixture(drafts: Sequence[Draft], findings: Findings) -> None:
    driven = [draft.name for draft in drafts if draft.driven]
    plain_jobs = [draft.name for draft in drafts if draft.driven is False]
    if driven and plain_jobs:
        has, knob = ("has knobs", "have a knob")
        if any(draft.live for draft in drafts):
            has, knob = ("has knobs or is live", "have a knob or are live")
        findings.add(
            f"a scenario is either tuned or plain: {listed(driven)} {has}, {listed(plain_jobs)} has none",
            allowed=f"experiments that all {knob}, or that all have none",
            hint=f"give {plain_jobs[0]} a knob, or put it into a scenario of its own",
        )


# [tracking] -----------------------------------------------------------------------------------------------------------


def _tracking(table: Mapping[str, Any], folder: Path, findings: Findings) -> Tracking:
    """The trackers of a scenario. Relative paths start at ``folder``, the scenario's."""
    wanted = checked(TrackingTable, table, findings)
    uri = None
    if wanted.mlflow is not None and _installed("mlflow", wanted.mlflow, findings.at("mlflow")):
        uri = _tracking_uri(wanted.mlflow, folder, findings.at("mlflow"))
    if wanted.tensorboard:
        _installed("tensorboardX", True, findings.at("tensorboard"))
    return Tracking(uri, wanted.tensorboard)


def _tracking_uri(given: str, folder: Path, findings: Findings) -> str | None:
    """``given`` as an absolute URI or path, or None and a problem."""
    match = _SCHEME.match(given)
    scheme = match[1].lower() if match is not None else ""
    path = given.partition(":///" if scheme == "sqlite" else ":")[2]
    what, hint = None, TrackingTable.says("mlflow").hint
    if not given.strip():
        what = "a tracking URI can't be empty"
    elif scheme and scheme not in _SCHEMES:
        what, hint = "MLflow knows no such scheme", did_you_mean(scheme, _SCHEMES, hint)
    elif scheme in _DATABASES and not _there("sqlalchemy"):
        what = "the small MLflow package reaches servers, and no database by itself"
        hint = "pip install mlflow (the whole of it), or give the URL of a server"
    elif scheme in ("http", "https") and not _host(given):
        what = "this URL names no host"
    elif scheme == "sqlite" and path in ("", ":memory:"):
        what, hint = "this names no file", 'write for example mlflow = "sqlite:///mlflow.db"'
    if what is not None:
        findings.add(what, found=given, allowed=TrackingTable.says("mlflow").allowed, hint=hint)
        return None
    if scheme == "sqlite":  # sqlite:///relative or sqlite:////absolute, as SQLAlchemy has it
        return f"{given.partition(':///')[0]}:///{_absolute(folder / path)}"
    if scheme == "file" and not given.startswith("file:/"):
        return str(_absolute(folder / path))
    return given if scheme or given == "databricks" else str(_absolute(folder / given))


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _installed(package: str, given: object, findings: Findings) -> bool:
    """Whether a tracker's package is installed, without importing it; a problem if not."""
    if _there(package):
        return True
    hint = f"pip install 'tunegym[{package.removesuffix('X')}]', or remove this key"
    findings.add(f"the package {package} is not installed", found=given, hint=hint)
    return False


def _there(package: str) -> bool:
    """A folder that has the name is no package."""
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
    problem: Problem
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(str(path), [Problem("", "this is not a regular file", hint="name a .toml file")])
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        problem = Problem("", "there is no such file", hint=_closest_file(path))
    except IsADirectoryError:
        files = listed(sorted(file.name for file in path.glob("*.toml"))[:5])
        problem = Problem("", "this is a folder, not a file", hint=f"name a file in it: {files}")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 (byte {error.start})"
        problem = Problem("", what, hint="save it as UTF-8")
    except tomllib.TOMLDecodeError as error:
        problem = Problem("", f"this is not TOML: {error}", hint=_syntax_hint(str(error)))
    except (ValueError, RecursionError):
        what = "this is not TOML that we can read: a number too long, a path too odd, or nesting too deep"
        problem = Problem("", what, hint="simplify the file")
    except OSError as error:
        what = f"the file can't be read: {error.strerror or error}"
        problem = Problem("", what, hint="check its permissions")
    raise ConfigError(str(path), [problem])


def _closest_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml" or entry.is_dir()]
    except OSError:
        return f"there is no folder {path.parent} either"
    matches = get_close_matches(path.name, names, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(str(path.parent / name) for name in matches)}?"
    return f"in its folder: {listed(sorted(names)[:5])}" if names else "start one with: tunegym init"


def _syntax_hint(message: str) -> str:
    if "overwrite" in message or "twice" in message or "mutate" in message:
        return "a key or a [table] stands there twice: remove one"
    if "Invalid value" in message:
        return "put strings in quotes; write true and false in small letters"
    return "see https://toml.io for the syntax; strings stand in quotes, tables in [brackets]"


OVERRIDES = "--set"
"""What messages about an override call their file."""

DEEPEST = 40
"""Deeper nesting is refused: it exhausts the stack."""

_PLAIN = "strings, integers, floats, booleans, lists and tables"


def copied(value: Any, depth: int = 0) -> Any:
    """A copy of ``value`` whose tables are dicts and whose sequences are lists, so that it can be changed."""
    if depth <= DEEPEST and isinstance(value, Mapping):
        return {key: copied(item, depth + 1) for key, item in value.items()}
    if depth <= DEEPEST and isinstance(value, list | tuple):
        return [copied(item, depth + 1) for item in value]
    return value


def plain(value: Any, findings: Findings, depth: int = 0) -> Any:
    """A copy of ``value`` that is plain data; what can't be one is left out and noted.

    Tuples become lists, paths strings, numpy's scalars Python's, and importable functions references.
    """
    if depth > DEEPEST:
        findings.add("nested too deeply", allowed=f"at most {DEEPEST} levels", hint="flatten this table")
        return None
    if isinstance(value, Mapping):
        return _table(value, findings, depth)
    if isinstance(value, list | tuple):
        items = [plain(item, findings.at(index), depth + 1) for index, item in enumerate(value)]
        return [item for item in items if item is not None]
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if callable(value):
        return _reference(value, findings)
    return _scalar(value, findings)


def _table(table: Mapping[Any, Any], findings: Findings, depth: int) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(key, str) or not _writable(key):
            findings.add("a key must be a string", found=key, hint="use a string without control characters")
            continue
        copied = plain(value, findings.at(key), depth + 1)
        if copied is not None:
            copy[str(key)] = copied
    return copy


def _scalar(value: object, findings: Findings) -> Any:
    if isinstance(value, str):
        if _writable(value):
            return str.__str__(value)
        findings.add("a string that can't be passed on", hint="remove its NUL or unpaired surrogate characters")
        return None
    if value is None:
        findings.add("None has no meaning here", allowed=_PLAIN, hint="leave the key out instead")
        return None
    if isinstance(value, datetime.date | datetime.time):
        hint = f'write it in quotes: "{value.isoformat()}"'
        findings.add("a date or time can't be a value", found=value, allowed=_PLAIN, hint=hint)
        return None
    reason = storable(value)
    if reason is None:
        return next(exact(value) for exact in (bool, int, float) if isinstance(value, exact))
    if isinstance(value, int | float):
        hint = "use a finite number" if isinstance(value, float) else "use a smaller integer, or a string"
        findings.add(reason, found=value, allowed="finite numbers, integers of 64 bits", hint=hint)
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
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        findings.add(
            "this function can't be found by name, so no other process could call it",
            allowed="a function at the top level of a module, or a reference",
            hint='move it to the top level of a module and write "module:function"',
        )
        return None
    return f"{module}:{name}"


# --set key=value ------------------------------------------------------------------------------------------------------


def override(document: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Change ``document`` in place by ``key=value`` strings, in order; returns the key paths that were set.

    Raises:
        ConfigError: an override is malformed, names no experiment, or leads through what is no table.
    """
    problems: list[Problem] = []
    paths: list[str] = []
    for text in overrides:
        problem = _apply_one(document, text)
        if problem is None:
            paths.append(text.partition("=")[0].strip())
        else:
            problems.append(problem)
    if problems:
        raise ConfigError(OVERRIDES, problems)
    return paths


def value_of(text: str) -> Any:
    """The value of an override: TOML if it is, else the text as it stands.

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


def _apply_one(document: dict[str, Any], text: str) -> Problem | None:
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        return Problem(
            "",
            "this is no key=value",
            shown(text),
            "seed=N, system.KEY=VALUE or experiments.NAME.KEY=VALUE",
            "write for example --set experiments.iperf.agent_steps=20",
        )
    table: Any = document
    if path[0] == "experiments":
        table = _experiment(document, path, text)
        if isinstance(table, Problem):
            return table
        path = path[2:]
    for index, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            where = ".".join(key.split(".")[: len(key.split(".")) - len(path) + index + 1])
            hint = f"set {where} as a whole"
            return Problem(key.strip(), f"{where} is not a table", shown(text), "a key of a table", hint)
    try:
        table[path[-1]] = value_of(value.strip())
    except ValueError as error:
        hint = "close what is opened, and mind the shell's own quotes"
        return Problem(key.strip(), f"the value is no TOML: {error}", shown(text), "a TOML value, or plain text", hint)
    return None


def _experiment(document: dict[str, Any], path: list[str], text: str) -> dict[str, Any] | Problem:
    """The experiment that an override's path names, or what is wrong with it."""
    experiments = document.get("experiments")
    tables = [entry for entry in experiments if isinstance(entry, dict)] if isinstance(experiments, list) else []
    names = [entry["name"] for entry in tables if isinstance(entry.get("name"), str)]
    if len(path) < 3:
        hint = f"write experiments.{names[0] if names else 'NAME'}.KEY=VALUE"
        return Problem(".".join(path), "an experiment's key is missing", shown(text), hint=hint)
    for entry in tables:
        if entry.get("name") == path[1]:
            return entry
    return Problem(
        ".".join(path),
        f"there is no experiment {shown(path[1])}",
        shown(text),
        listed(names),
        did_you_mean(path[1], names, "use the name of an experiment in the scenario"),
    )
