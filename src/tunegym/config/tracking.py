"""``[tracking]``: where trials are told of beside the journal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tunegym.config.findings import Findings
from tunegym.config.schema import TrackingTable
from tunegym.config.spelling import did_you_mean
from tunegym.config.tables import checked
from tunegym.tuning.model.scenario import Tracking

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]+)(?:\+[A-Za-z0-9_]+)?:")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", *_DATABASES, "file", "databricks")


def tracking(table: Mapping[str, Any], folder: Path, findings: Findings) -> Tracking:
    """The trackers of a scenario. What is relative is relative to ``folder``, the scenario's own."""
    wanted = checked(TrackingTable, table, findings)
    uri = None
    if wanted.mlflow is not None:
        uri = _uri(wanted.mlflow, folder, findings.at("mlflow"))
    if wanted.tensorboard:
        _installed("tensorboardX", True, findings.at("tensorboard"))
    return Tracking(uri, wanted.tensorboard)


def _uri(given: str, folder: Path, findings: Findings) -> str | None:
    """``given`` as an absolute URI or path, or None and a problem."""
    if not _installed("mlflow", given, findings):
        return None
    match = _SCHEME.match(given)
    scheme = match[1].lower() if match is not None else ""
    if match is None:
        return _absolute(given, folder) if given.strip() and given != "databricks" else _bare(given, findings)
    if scheme not in _SCHEMES:
        hint = did_you_mean(scheme, _SCHEMES, TrackingTable.says("mlflow").hint)
        _refuse("MLflow knows no such scheme", given, findings, hint)
    elif scheme in _DATABASES and not _there("sqlalchemy"):
        hint = "pip install mlflow (the whole of it), or give the URL of a server"
        _refuse("the small MLflow package reaches servers, and no database by itself", given, findings, hint)
    elif scheme in ("http", "https") and not _host(given):
        _refuse("this URL names no host", given, findings)
    elif scheme == "sqlite":
        return _sqlite(given, folder, findings)
    elif scheme == "file" and not given.startswith("file:/"):
        return _absolute(given.partition(":")[2], folder)
    else:
        return given
    return None


def _bare(given: str, findings: Findings) -> str | None:
    if given == "databricks":
        return given
    _refuse("a tracking URI can't be empty", given, findings)
    return None


def _sqlite(given: str, folder: Path, findings: Findings) -> str | None:
    """``sqlite:///relative`` or ``sqlite:////absolute``, as SQLAlchemy has it."""
    scheme, _, path = given.partition(":///")
    if not path or path == ":memory:":
        _refuse("this names no file", given, findings, 'write for example mlflow = "sqlite:///mlflow.db"')
        return None
    return f"{scheme}:///{_absolute(path, folder)}"


def _absolute(path: str, folder: Path) -> str:
    return os.path.abspath(folder / path)  # noqa: PTH100 (resolve would follow links)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _refuse(what: str, given: str, findings: Findings, hint: str | None = None) -> None:
    says = TrackingTable.says("mlflow")
    findings.add(what, found=given, allowed=says.allowed, hint=hint or says.hint)


def _installed(package: str, given: object, findings: Findings) -> bool:
    """Whether a tracker's package is there, without importing it; a problem if not."""
    if _there(package):
        return True
    hint = f"pip install 'tunegym[{package.removesuffix('X')}]', or remove this key"
    findings.add(f"the package {package} is not installed", found=given, hint=hint)
    return False


def _there(package: str) -> bool:
    """A folder that just has the name is no package."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
