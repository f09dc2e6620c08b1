"""``tunegym report`` and ``tunegym compare``, as a user or a script calls them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import tunegym as library
from tunegym.tuning.reports.results import load

Cli = Callable[..., subprocess.CompletedProcess[str]]

SCENARIO = """
name = "shown"
seed = 1
[[experiments]]
name = "e"
workload = "command"
agent = "grid_search"
agent_metrics = ["value"]
  [experiments.cmd_args]
  command = "echo value={x}"
  x = [1, 2, 3]
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }
"""


@pytest.fixture
def run(write: Callable[..., Path]) -> Path:
    """A finished run."""
    path = write("scenario.toml", SCENARIO)
    assert library.run(path, output="one") == 0
    return load("one").folder


def test_report_prints_its_path(run: Path, tunegym: Cli) -> None:
    (run / "report.html").unlink()
    done = tunegym("report", "one")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()) == run / "report.html"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_report_as_json(run: Path, tunegym: Cli) -> None:
    done = tunegym("report", run, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["scenario"], told["failure"]) == ("shown", None)
    (one,) = told["experiments"]
    assert "page" not in one
    assert one["best"]["action"] == {"x": 3}
    assert one["trials"]["statuses"] == {"measured": 3}
    for key in ("state", "agent", "reasons", "per_context", "pareto", "importance", "time"):
        assert key in one


@pytest.mark.slow
def test_report_of_a_read_only_folder(run: Path, tunegym: Cli) -> None:
    (run / "report.html").unlink()
    (run / "report.html").mkdir()  # stands in the way, for root as well
    (run / "report.html" / "something").touch()
    done = tunegym("report", run)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "can't be written" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    done = tunegym("report", run, "--json")
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert json.loads(done.stdout)["experiments"][0]["name"] == "e"


@pytest.mark.slow
def test_report_opens_a_browser_or_says_that_there_is_none(run: Path, tunegym: Cli, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    done = tunegym("report", run, "--open", env={**os.environ, "BROWSER": str(browser)})
    assert done.returncode == 0
    assert (tmp_path / "opened").read_text().strip() == (run / "report.html").absolute().as_uri()
    bare = {key: value for key, value in os.environ.items() if key not in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")}
    done = tunegym("report", run, "--open", env={**bare, "PATH": str(tmp_path / "nothing")})
    assert done.returncode == 0
    assert "no browser was found" in done.stderr


@pytest.mark.slow
def test_compare(run: Path, tunegym: Cli, write: Callable[..., Path]) -> None:
    write("scenario.toml", SCENARIO.replace("[1, 2, 3]", "[1, 5]"))
    assert library.run("scenario.toml", output="two") == 0
    done = tunegym("compare", "one", "two")
    assert done.returncode == 0
    assert "warning: e: the knobs differ" in done.stderr
    assert "x=5" in done.stdout
    assert done.stdout.splitlines()[-1] == "page: compare.html"
    assert Path("compare.html").read_text().startswith("<!doctype html>")
    done = tunegym("compare", "one", "two", "--json", "--output", "elsewhere.html")
    told = json.loads(done.stdout)
    assert [entry["best"]["reward"] for entry in told["entries"]] == [3.0, 5.0]
    assert len({entry["run"] for entry in told["entries"]}) == 2
    assert told["warnings"]
    assert Path("elsewhere.html").exists()


@pytest.mark.slow
def test_compare_says_what_is_wrong(run: Path, tunegym: Cli) -> None:
    for arguments in (("one", "missing"), ("one", "one", "--output", "missing/page.html")):
        done = tunegym("compare", *arguments)
        assert done.returncode == 1
        assert done.stdout == ""
        assert "error: " in done.stderr
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr
    assert tunegym("compare").returncode == 2
