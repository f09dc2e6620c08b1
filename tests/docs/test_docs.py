"""The documentation is executed: what it shows is what happens.

A fenced block is told what it is by a comment on the line before it:

- ``<!-- file: NAME -->``: written as NAME into the page's folder;
- ``<!-- scenario -->``: a whole scenario, which must load; ``<!-- scenario: NAME -->`` is written as NAME, too;
- ``<!-- cmd_args -->``, ``<!-- metrics -->``: that table of an experiment, which must load;
- ``<!-- run -->``: console commands (lines after ``$``) or a Python script, run in the page's folder;
  ``exact`` compares what is printed, ``like`` compares it but for numbers, ``exit N`` says how the last command ends;
- ``<!-- output -->``: exactly what the script before it prints;
- ``<!-- shown -->``: not executed, and the page says why or how it was made.

TOML, Python and console blocks without such a comment are refused, so that none is forgotten.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.config.conftest import document
from typer.core import TyperArgument, TyperOption

import tunegym
from tunegym.app.catalog import BUILT_IN, Catalog
from tunegym.cli.main import app
from tunegym.config import schema
from tunegym.core import errors
from tunegym.tuning.agents.base import AgentConfig, driver
from tunegym.tuning.model.scenario import Penalties
from tunegym.tuning.model.trial import STATUSES
from tunegym.tuning.model.values import spelled
from tunegym.tuning.reports.results import RunResults
from tunegym.tuning.reports.trials import TrialResults

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXECUTED = ("toml", "python", "console")
PATIENCE_S = 120

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_MARKS = ("file", "scenario", "cmd_args", "metrics", "run", "output", "shown")


@dataclass(frozen=True)
class Block:
    """A fenced block, and what its comment says about it."""

    kind: str
    options: str
    language: str
    text: str
    line: int

    @property
    def exits(self) -> int:
        found = re.search(r"exit (\d+)", self.options)
        return int(found[1]) if found else 0


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        kind, _, options = (match["mark"] or "").partition(":")
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(kind.strip(), options.strip(), match["language"], match["text"], line))
    return found


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.kind == "file" or (block.kind == "scenario" and block.options):
            (folder / block.options).write_text(block.text, encoding="utf-8")


def each(kind: str) -> list[Any]:
    found = [(page, block) for page in PAGES for block in blocks(page) if block.kind == kind]
    return [pytest.param(page, block, id=f"{name_of(page)}:{block.line}") for page, block in found]


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A page's modules are importable while its test runs, and not after."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not file.startswith((sys.prefix, sys.base_prefix, str(ROOT / "src"))):
            del sys.modules[name]


# what the blocks say --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_marked(page: Path) -> None:
    unmarked = [
        f"line {block.line}: {block.kind or 'no mark'}"
        for block in blocks(page)
        if block.kind not in _MARKS and (block.kind or block.language in EXECUTED)
    ]
    assert not unmarked
    fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence is not closed, or is indented"


@pytest.mark.parametrize(("page", "block"), each("scenario"))
def test_scenario_loads(page: Path, block: Block, tmp_path: Path, clean_imports: None) -> None:
    write_files(page, tmp_path)
    file = tmp_path / (block.options or "scenario.toml")
    file.write_text(block.text, encoding="utf-8")
    assert tunegym.scenario(file).experiments


@pytest.mark.parametrize(("page", "block"), [*each("cmd_args"), *each("metrics")])
def test_tables_load(page: Path, block: Block) -> None:
    table = tomllib.loads(block.text)
    if block.kind == "metrics":
        args = {"command": "echo {x}", "x": [1, 2]}
        assert tunegym.scenario(document(cmd_args=args, metrics=table, agent_metrics=list(table))).experiments
    else:
        used = " ".join(f"{{{address}}}" for address in addresses(table))
        args = {"command": f"echo {used}", **table}
        assert tunegym.scenario(document(cmd_args=args)).experiments[0].space.knobs


def addresses(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict) and not {"low", "high"} & value.keys():
            yield from addresses(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [one for one in PAGES if "<!-- run" in one.read_text()], ids=name_of)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    """Every block of the page, from top to bottom, as a reader would type it; those of the README twice."""
    write_files(page, tmp_path)
    printed = ""
    for block in blocks(page) * (2 if page == ROOT / "README.md" else 1):
        where = f"{name_of(page)}:{block.line}"
        if block.kind == "output":
            assert printed.strip() == block.text.strip(), where
        elif block.kind == "run" and block.language == "python":
            printed = execute([sys.executable, "-c", block.text], tmp_path, block.exits, where)
        elif block.kind == "run":
            run_console(block, tmp_path, where)


def run_console(block: Block, folder: Path, where: str) -> None:
    parts = [part.partition("\n") for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]]
    assert parts, f"{where}: a console block needs a line after $"
    for command, _, shown in parts:
        expected = block.exits if command == parts[-1][0] else 0
        printed = execute(["bash", "-c", command], folder, expected, where)
        if "exact" in block.options:
            assert printed.strip() == shown.strip(), where
        elif "like" in block.options:
            lines = {likeness(line) for line in printed.splitlines()}
            missing = [line for line in shown.splitlines() if line.strip() != "..." and likeness(line) not in lines]
            assert not missing, f"{where}: not in\n{printed}"


def likeness(line: str) -> str:
    """A line without what differs from run to run and machine to machine: numbers, widths and folders."""
    line = re.sub(r"\S*/results/", ".../results/", line)
    line = re.sub(r" ±\S+", "", line)
    line = re.sub(r"-?\d[\d.]*(?:e[-+]\d+)?", "#", line)
    return " ".join(re.sub(r"[━┏┓┗┛┳┻╇┡┩─└┘┴]+", "-", line).split())


def execute(command: list[str], folder: Path, expected: int, where: str) -> str:
    """Run a command with this environment's tunegym first in the path; what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == expected, f"{where}: {command[-1]}\n{done.stdout}"
    return done.stdout


# what the pages point at ----------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        there = file.exists() and ROOT in (file, *file.parents)
        if not there or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    decisions = ROOT / "docs" / "adr" / "README.md"
    linked |= {(decisions.parent / link).resolve() for link in _LINK.findall(decisions.read_text())}
    assert not [name_of(page) for page in PAGES if page.is_relative_to(index.parent) and page not in {*linked, index}]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_names_no_machine_and_no_missing_test(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"/(?:home|root|Users|work|tmp)/\S*", text)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(?:\w+::)?(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


# whether the reference is complete ------------------------------------------------------------------------


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next of the same level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no {heading!r}"
    return found[1]


_TOP: Any = typer.main.get_command(app)
COMMANDS = {
    f"{name} {sub}".strip(): inner
    for name, command in _TOP.commands.items()
    for sub, inner in (getattr(command, "commands", None) or {"": command}).items()
}


def test_reference_has_every_command_and_no_other() -> None:
    page = "docs/reference/cli.md"
    headings = re.findall(r"^## tunegym (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)
    for name, command in COMMANDS.items():
        text = section(page, f"## tunegym {name}")
        options = {one for parameter in command.params if isinstance(parameter, TyperOption) for one in parameter.opts}
        assert all(option in text for option in options), name
        assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text)) <= options, name
        arguments = [one for one in command.params if isinstance(one, TyperArgument)]
        assert all((one.metavar or one.name or "?").rstrip(".") in text for one in arguments), name


SECTIONS = {
    "## Top level": schema.ScenarioTable,
    "## `[system]`": schema.SystemTable,
    "## `[tracking]`": schema.TrackingTable,
    "## `[[experiments]]`": schema.ExperimentTable,
    "### Ranges": schema.RangeTable,
    "### Candidates with a default": schema.ChoiceTable,
    "## `confirm`": schema.ConfirmTable,
    "## `over_contexts`": schema.CvarTable,
    "## `metrics`": schema.MetricTable,
    "## `env_params`": schema.EnvParamTable,
    "## `objectives`": schema.ObjectiveTable,
}
SCENARIO_FILE = "docs/reference/scenario-file.md"


def rows(text: str) -> dict[str, str]:
    """The keys in the first column of tables, each with its row."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", line.split("|")[1]), line)
    return found


@pytest.mark.parametrize("heading", SECTIONS)
def test_reference_has_every_key_and_its_default(heading: str) -> None:
    shown = rows(section(SCENARIO_FILE, heading))
    for name, field in SECTIONS[heading].model_fields.items():
        row = shown[field.alias or name]
        if field.default not in (None, {}) and isinstance(field.default, str | int | list):
            assert f"`{spelled(field.default)}`" in row, name


def test_every_table_of_the_schema_is_in_the_reference() -> None:
    assert set(SECTIONS.values()) == set(schema.TomlTable.__subclasses__())


def test_reference_has_the_agents_settings() -> None:
    shown = rows(section(SCENARIO_FILE, "## `agent_config`"))
    for model in (AgentConfig, Penalties, *(Catalog().get("agents", name).Config for name in BUILT_IN["agents"])):
        assert shown.keys() >= {field.name for field in dataclasses.fields(model)}, model


@pytest.mark.parametrize("name", BUILT_IN["agents"])
def test_reference_has_the_settings_in_live_experiments(name: str) -> None:
    agent = Catalog().get("agents", name)
    if "live" in agent.kinds:
        text = section(SCENARIO_FILE, "### In a live experiment")
        for field in dataclasses.fields(driver(agent, "live").Config):
            lines = [line for line in text.splitlines() if line.startswith(f"| `{field.name}` |")]
            plain = isinstance(field.default, str | int | float)
            assert [line for line in lines if not plain or f"`{spelled(field.default)}`" in line], field.name


def test_reference_has_every_name() -> None:
    text = (ROOT / SCENARIO_FILE).read_text(encoding="utf-8")
    plugins = (ROOT / "docs/reference/plugins.md").read_text(encoding="utf-8")
    for kind, names in BUILT_IN.items():
        assert f"`tunegym.{kind}`" in plugins
        assert not [name for name in names if f"`{name}`" not in text and f'`"{name}"`' not in text]
    shown = rows(section(SCENARIO_FILE, "## `pruner`"))
    for name in BUILT_IN["pruners"]:
        for field in dataclasses.fields(Catalog().get("pruners", name).Config):
            assert field.default is None or f"`{field.default}`" in shown[field.name]


def test_reference_has_workloads_keys_and_statuses() -> None:
    shown = section(SCENARIO_FILE, "### The workload's own keys")
    for name in Catalog().names("workloads"):
        assert all(f"`{key}`" in shown for key in Catalog().get("workloads", name).reserved), name
    text = section("docs/reference/results-files.md", "## trajectory.csv")
    assert all(f"`{status}`" in text for status in STATUSES)


def test_python_page_has_every_name() -> None:
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert all(f"tunegym.{name}" in text for name in tunegym.__all__)
    for kind in (RunResults, TrialResults):
        fields = {field.name for field in dataclasses.fields(kind)}
        for name in re.findall(rf"`{kind.__name__}\.(\w+)", text):
            assert name in fields or hasattr(kind, name), name
    for error in re.findall(r"^\| `(\w+Error)` \|", text, re.MULTILINE):
        assert issubclass(getattr(errors, error), errors.TunegymError)


def written(experiment: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The records of a run's journal."""
    assert tunegym.run({"name": "shown", "experiments": [experiment]}, output=folder) == 0
    (journal,) = folder.rglob("journal.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_journal_page_shows_every_record(tmp_path: Path) -> None:
    page = blocks(ROOT / "docs/concepts/journal.md")
    shown = [json.loads(block.text) for block in page if block.language == "json"]
    (jobs,) = document(agent_steps=1)["experiments"]
    records = written(jobs, tmp_path / "jobs")
    assert {record["record"]: set(record) for record in shown} == {one["record"]: set(one) for one in records}
    shown = [json.loads(line) for block in page if block.language == "jsonl" for line in block.text.splitlines()]
    arguments = {"env_class": "tunegym.servers:GymnasiumServer", "env_id": "CartPole-v1"}
    live = {"name": "live", "workload": "live", "agent": "random_search", "agent_steps": 300, "cmd_args": arguments}
    records = written(live, tmp_path / "live")
    kinds = {record["record"] for record in records} - {"head", "session", "end"}
    assert {record["record"] for record in shown} == {*kinds, "lost"}
    for record in shown:
        assert record["record"] == "lost" or set(record) in [set(one) for one in records]


def test_files_page_shows_every_file(tmp_path: Path) -> None:
    text = (ROOT / "docs/reference/results-files.md").read_text(encoding="utf-8")
    assert tunegym.run(document(), output=tmp_path) == 0
    (run,) = tmp_path.glob("*/*")
    names = [path.name for path in (*run.iterdir(), *(run / "e").iterdir()) if path.name != "e"]
    assert names
    assert not [name for name in names if not re.search(rf"^ +{re.escape(name)}\b", text, re.MULTILINE)]


# the checks themselves can fail ---------------------------------------------------------------------------


def test_a_wrong_output_would_be_found(tmp_path: Path) -> None:
    for options, text in {
        "exact": "$ echo one\ntwo\n",
        "": "$ exit 3\n",
        "like": "$ echo took 12\nneeded 12\n",
    }.items():
        with pytest.raises(AssertionError):
            run_console(Block("run", options, "console", text, 1), tmp_path, "page")
    run_console(Block("run", "exit 3", "console", "$ exit 3\n", 1), tmp_path, "page")
    run_console(Block("run", "like", "console", "$ echo took 0:00:12\ntook 0:00:01\n", 1), tmp_path, "page")
