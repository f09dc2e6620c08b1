"""``report.html`` of real runs: what is in it, and what stands in its way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Write, embedded, experiment
from tests.conftest import no_space, raising

import tunegym as library
from tunegym.app.report import document_of, write_document
from tunegym.app.run import Watch
from tunegym.tuning.reports import page
from tunegym.tuning.reports.results import RunResults, find_run, load
from tunegym.tuning.stores import reader

COMMAND = "echo value={x} {word}; echo oops >&2; test {x} -ne 2"
REPORTED = experiment(args={"command": COMMAND, "x": [1, 2, 3], "word": "two words"})


@pytest.fixture
def scenario(write_scenario: Write) -> Path:
    return write_scenario(REPORTED, file="own/scenario.toml")


def test_a_run_ends_with_its_page(scenario: Path) -> None:
    assert library.run(scenario) == 0
    run = load("results").folder
    told = embedded(run)
    assert (told["scenario"], told["failure"]) == ("s", None)
    (one,) = told["experiments"]
    assert (one["name"], one["state"], one["trials"]["total"]) == ("e", "finished", 3)
    assert one["best"]["action"] == {"x": 3}
    page = one["page"]
    commands = ["".join(page["commands"]["lines"][line] for line in lines) for lines in page["commands"]["of"]]
    assert commands[1] == "echo value=2 'two words'; echo oops >&2; test 2 -ne 2"
    assert page["outputs"]["2"] == [["stdout.txt", "value=2 two words\n", False], ["stderr.txt", "oops\n", False]]
    assert page["fixed"] == {"word": "two words"}
    assert page["notes"] == []
    assert "command = " in told["source"]
    assert [path.name for path in run.glob("report*")] == ["report.html"]


@pytest.mark.parametrize("failing", [no_space, raising(KeyError, "a bug"), raising(SystemExit, 3)])
def test_a_page_that_can_not_be_written_masks_nothing(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: Any
) -> None:
    monkeypatch.setattr(page, "render", failing)
    assert library.run(scenario) == 0
    (told,) = [record.getMessage() for record in caplog.records if "report.html" in record.getMessage()]
    if failing is no_space:
        run = load("results").folder.absolute()
        assert told == f"{run}/report.html can't be written: No space left on device; tunegym report writes it later"
    else:
        assert "report.html could not be written" in told
    assert not list(Path("results").rglob("report.html"))


def test_the_calls_stay_when_the_scenarios_own_files_are_gone(write: Write, write_scenario: Write) -> None:
    write("own/work.py", "def value(x): return x\n")
    args = {"callable": "work:value", "x": [1, 2]}
    assert library.run(write_scenario(file="own/scenario.toml", args=args)) == 0
    results = load("results")
    shutil.rmtree("own")
    write_document(results, document_of(results))
    (one,) = embedded(results.folder)["experiments"]
    assert one["page"]["commands"]["lines"] == ["work:value(x=2)", "work:value(x=1)"]
    assert "fixed parameters are left out" in one["page"]["notes"][0]
    assert one["best"]["action"] == {"x": 2}


def test_a_run_parses_its_finished_journal_once(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``best.toml``, the page and the closing table share one reading."""
    parsed: list[Path] = []

    class Counted(reader.Reader):
        def read(self, *, last: bool = False) -> Any:
            yield from super().read(last=last)
            if self.journal.ended is not None:
                parsed.append(self.path)

    class Closing(Watch):
        def run_reported(self, results: RunResults) -> None:
            assert results.experiments["e"].summary().table is not None

    monkeypatch.setattr(reader, "Reader", Counted)
    assert library.run(scenario, watch=Closing()) == 0
    assert parsed == [find_run(Path("results")).absolute() / "e" / "journal.jsonl"]


def test_one_broken_journal_leaves_the_others(write_scenario: Write) -> None:
    scenario = write_scenario(REPORTED, {**REPORTED, "name": "f"})
    assert library.run(scenario) == 0
    results = load("results")
    (results.folder / "e" / "journal.jsonl").write_bytes(b"not\na\njournal\n")
    broken, whole = document_of(load("results"))["experiments"]
    assert broken["state"] == "unreadable"
    assert "line 1 is damaged" in broken["damage"][0]
    assert whole["best"]["action"] == {"x": 3}
