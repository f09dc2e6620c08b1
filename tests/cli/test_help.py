"""``tunegym --help`` is instant: it loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("gymnasium", "numpy", "optuna", "orjson", "pandas", "pydantic", "ray", "rich", "torch")

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


def _ask(argument: str) -> tuple[str, set[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE, argument], capture_output=True, text=True, check=True)
    *printed, last = done.stdout.splitlines()
    told = json.loads(last)
    assert told["code"] == 0
    return "\n".join(printed), set(told["modules"])


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_loads_nothing_heavy(argument: str) -> None:
    _, loaded = _ask(argument)
    assert [name for name in HEAVY if name in loaded] == []
    ours = ("tunegym.app", "tunegym.config", "tunegym.tuning")
    assert [name for name in loaded if name.startswith(ours)] == []


def test_names_every_command() -> None:
    printed, _ = _ask("--help")
    for command in ("init", "verify", "dry-run", "run", "resume", "status", "report", "compare", "list"):
        assert f"  {command} " in printed
