"""``report.html`` of real runs: however they end, and whatever stands in its way."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunegym as library
from tunegym.app.report import document_of, write_report
from tunegym.app.run import Watch
from tunegym.core.stop import Stop
from tunegym.tuning.reports import page
from tunegym.tuning.reports.results import RunResults, find_run, load
from tunegym.tuning.stores import reader

SCENARIO = """
name = "reported"

[[experiments]]
name = "e"
workload = "command"
agent = "grid_search"
agent_metrics = ["value"]
  [experiments.cmd_args]
  command = "echo value={x} {word}; echo oops >&2; test {x} -ne 2"
  x = [1, 2, 3]
  word = "two words"
  [experiments.metrics]
  value = { regex = 'value=([0-9]+)' }
"""


@pytest.fixture
def scenario(write: Callable[..., Path]) -> Path:
    return write("own/scenario.toml", SCENARIO)


def embedded(folder: Path) -> dict[str, Any]:
    """The data in a run's page."""
    found = re.search(r'id="data">(.*?)</script>', (folder / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_run_ends_with_its_page(scenario: Path) -> None:
    assert library.run(scenario) == 0
    run = load("results").folder
    told = embedded(run)
    assert (told["scenario"], told["failure"]) == ("reported", None)
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


def test_an_interrupted_run_has_its_page(scenario: Path) -> None:
    stop = Stop()

    class Watching(Watch):
        def trial_closed(self, trial: Any) -> None:
            stop.request()

    assert library.run(scenario, watch=Watching(), stop=stop) == 130
    (one,) = embedded(load("results").folder)["experiments"]
    assert one["state"] == "interrupted"
    assert one["trials"]["done"] >= 1


def test_a_failed_run_has_its_page_with_the_error(scenario: Path, write: Callable[..., Path]) -> None:
    write(
        "own/mine.py",
        """
        import tunegym
        class Breaks(tunegym.BaseAgent):
            def select_action(self, observation):
                if observation.number == 2:
                    raise RuntimeError("the agent <broke>")
                return {"x": 1}
        """,
    )
    scenario.write_text(SCENARIO.replace("grid_search", "mine:Breaks"))
    with pytest.raises(RuntimeError, match="the agent <broke>"):
        library.run(scenario, overrides=["experiments.e.agent_steps=5"])
    told = embedded(load("results").folder)
    assert "RuntimeError: the agent <broke>" in told["failure"].splitlines()[0]
    assert "Traceback" in told["failure"]
    assert told["experiments"][0]["trials"]["done"] == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyError("a bug"), SystemExit(3)])
def test_a_page_that_can_not_be_written_masks_nothing(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(*args: object, **keys: object) -> None:
        raise error

    monkeypatch.setattr(page, "render", fail)
    assert library.run(scenario) == 0
    (told,) = [record.getMessage() for record in caplog.records if "report.html" in record.getMessage()]
    if isinstance(error, OSError):
        run = load("results").folder.absolute()
        assert told == f"{run}/report.html can't be written: No space left; tunegym report writes it later"
    else:
        assert "report.html could not be written" in told
    assert not list(Path("results").rglob("report.html"))


def test_an_environment_leaves_a_page(scenario: Path) -> None:
    env = library.make(scenario)
    env.reset()
    env.step_raw({"x": 3})
    env.close()
    (one,) = embedded(load("results").folder)["experiments"]
    assert one["trials"]["statuses"] == {"measured": 1}


def test_the_calls_stay_when_the_scenarios_own_files_are_gone(write: Callable[..., Path]) -> None:
    write("own/work.py", "def value(x): return x\n")
    text = 'name = "p"\n[[experiments]]\nname = "e"\nworkload = "python"\nagent = "grid_search"\n'
    text += 'agent_metrics = ["value"]\nisolate = false\n[experiments.cmd_args]\ncallable = "work:value"\nx = [1, 2]\n'
    assert library.run(write("own/scenario.toml", text)) == 0
    results = load("results")
    shutil.rmtree("own")
    write_report(results)
    (one,) = embedded(results.folder)["experiments"]
    assert one["page"]["commands"]["lines"] == ["work:value(x=2)", "work:value(x=1)"]
    assert "fixed parameters are left out" in one["page"]["notes"][0]
    assert one["best"]["action"] == {"x": 2}


def test_a_run_parses_its_finished_journal_once(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``best.toml``, the page and the closing table share one reading."""
    parsed: list[Path] = []

    class Counted(reader.Reader):
        def read(self, *, last: bool = False) -> Any:
            if reader.scan(self.path).ended is not None:
                parsed.append(self.path)
            return super().read(last=last)

    class Closing(Watch):
        def run_reported(self, results: RunResults) -> None:
            assert results.experiments["e"].summary().table is not None

    monkeypatch.setattr(reader, "Reader", Counted)
    assert library.run(scenario, watch=Closing()) == 0
    assert parsed == [find_run(Path("results")).absolute() / "e" / "journal.jsonl"]


def test_one_broken_journal_leaves_the_others(scenario: Path) -> None:
    second = SCENARIO[SCENARIO.index("[[experiments]]") :].replace('"e"', '"f"')
    scenario.write_text(SCENARIO + second)
    assert library.run(scenario) == 0
    results = load("results")
    (results.folder / "e" / "journal.jsonl").write_bytes(b"not\na\njournal\n")
    broken, whole = document_of(load("results"))["experiments"]
    assert broken["state"] == "broken"
    assert "line 1 is damaged" in broken["error"]
    assert whole["best"]["action"] == {"x": 3}
