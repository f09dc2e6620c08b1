"""``[tracking]``: what it becomes, and what it needs to be installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunegym.app.catalog import Catalog
from tunegym.config import load as tracking
from tunegym.config.load import parse
from tunegym.core.errors import ConfigError
from tunegym.tuning.model.scenario import Scenario, Tracking


def scenario(table: dict[str, Any] | None, folder: Path) -> Scenario:
    experiment = {
        "name": "e",
        "workload": "command",
        "agent_metrics": ["duration_s"],
        "cmd_args": {"command": "echo {x}", "x": [1, 2]},
    }
    document = {"name": "s", "experiments": [experiment], **({} if table is None else {"tracking": table})}
    return parse(document, Catalog(), scenario_dir=folder)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:5000", "http://host:5000"),
        ("https://user:word@host/path", "https://user:word@host/path"),
        ("mlruns", "{folder}/mlruns"),
        ("../shared runs", "{parent}/shared runs"),
        ("/data/mlruns", "/data/mlruns"),
        ("file:///data/mlruns", "file:///data/mlruns"),
        ("file:mlruns", "{folder}/mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///{folder}/mlflow.db"),
        ("sqlite:///./db/mlflow.db", "sqlite:///{folder}/db/mlflow.db"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("postgresql+psycopg2://u:p@host/db", "postgresql+psycopg2://u:p@host/db"),
        ("databricks", "databricks"),
        ("databricks://profile", "databricks://profile"),
    ],
)
def test_relative_ones_are_relative_to_the_scenario(given: str, expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    found = scenario({"mlflow": given}, folder)
    assert found.tracking.mlflow == expected.format(folder=folder, parent=tmp_path)
    assert found.document["tracking"] == {"mlflow": given}


def test_nothing_is_tracked_by_default(tmp_path: Path) -> None:
    found = scenario(None, tmp_path)
    assert found.tracking == Tracking(None, False)
    assert "tracking" not in found.document
    assert scenario({"tensorboard": False}, tmp_path).tracking == Tracking(None, False)


def absent(*packages: str) -> Callable[[str], object]:
    real = tracking.find_spec
    return lambda name: None if name in packages else real(name)


@pytest.mark.parametrize(("package", "value"), [("mlflow", "http://host"), ("tensorboard", True)])
def test_a_package_that_is_not_installed(
    package: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", absent("mlflow", "tensorboardX"))
    with pytest.raises(ConfigError) as caught:
        scenario({package: value}, tmp_path)
    (problem,) = caught.value.problems
    assert problem.where == f"tracking.{package}"
    assert problem.hint is not None
    assert f"pip install 'tunegym[{package}]'" in problem.hint
    scenario({"tensorboard": False}, tmp_path)


def test_a_folder_with_the_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tunegym_no_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tracking.find_spec("tunegym_no_package") is not None
    assert not tracking._installed("tunegym_no_package")


def test_a_database_needs_the_whole_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", absent("sqlalchemy"))
    with pytest.raises(ConfigError, match="pip install mlflow"):
        scenario({"mlflow": "sqlite:///mlflow.db"}, tmp_path)
    scenario({"mlflow": "http://host"}, tmp_path)


def test_loading_imports_no_tracker(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, tunegym; experiment = {'name': 'e', 'workload': 'command', 'agent_metrics': ['duration_s'],"
        " 'cmd_args': {'command': 'echo {x}', 'x': [1, 2]}};"
        "tunegym.scenario({'name': 's', 'tracking': {'mlflow': 'http://h', 'tensorboard': True},"
        " 'experiments': [experiment]}); print('mlflow' in sys.modules, 'tensorboardX' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
