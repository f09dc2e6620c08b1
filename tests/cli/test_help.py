"""``tunegym --help`` loads nothing heavy, and the wheel holds everything that a command needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tunegym

ROOT = Path(__file__).parents[2]
HEAVY = ("gymnasium", "msgspec", "numpy", "optuna", "orjson", "pandas", "pydantic", "ray", "rich", "torch")

PROBE = """
import json, sys
from tunegym.cli.main import app
code = None
try:
    app(sys.argv[1:], prog_name="tunegym")
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_loads_nothing_heavy(argument: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, argument], capture_output=True, text=True, check=True)
    *printed, last = done.stdout.splitlines()
    told = json.loads(last)
    assert told["code"] == 0
    assert [name for name in HEAVY if name in told["modules"]] == []
    ours = ("tunegym.app", "tunegym.config", "tunegym.tuning")
    assert [name for name in told["modules"] if name.startswith(ours)] == []
    if argument == "--version":
        assert printed == [f"tunegym {tunegym.__version__}"]
    else:
        for command in ("init", "verify", "dry-run", "run", "resume", "status", "report", "compare", "list"):
            assert any(line.startswith(f"  {command} ") for line in printed), command


@pytest.mark.slow
def test_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves files behind, and not in the checkout
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--quiet", "-w", str(tmp_path / "out")]
    offline = subprocess.run([*command, "--no-build-isolation"], capture_output=True, text=True)
    if offline.returncode:
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "out").glob("tunegym-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = next(name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert "tunegym = tunegym.cli.main:main" in archive.read(scripts).decode()
    starters = {f"tunegym/cli/starters/{name}" for name in ("command.toml", "python.toml", "workload.py", "live.toml")}
    assert names >= starters | {"tunegym/py.typed"}
    assets = {
        f"tunegym/tuning/reports/html/{path.name}" for path in (ROOT / "src/tunegym/tuning/reports/html").iterdir()
    }
    assert names >= assets
    assert len(assets) > 3
    shipped = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tunegym").rglob("*.py")}
    assert {name for name in names if name.startswith("tunegym/") and name.endswith(".py")} == shipped
    assert [name for name in names if not name.startswith(("tunegym/", "tunegym-"))] == []
    assert any(name.endswith("LICENSE") for name in names)
