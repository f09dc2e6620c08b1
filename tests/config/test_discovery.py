from __future__ import annotations

import pytest

from tunegym.cli.verify import scenario_files
from tunegym.core.errors import ConfigError


@pytest.fixture
def tree(tmp_path):
    for name in ("b.toml", "a.toml", "notes.txt", "sub/c.toml", ".hidden/d.toml", "sub/.git/e.toml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_folders_are_searched_and_hidden_ones_are_not(tree):
    assert scenario_files([tree]) == [tree / "a.toml", tree / "b.toml", tree / "sub" / "c.toml"]


def test_files_are_taken_as_they_are_and_once(tree):
    missing = tree / "missing.toml"
    found = scenario_files([tree / "notes.txt", str(missing), tree / "a.toml", tree / "a.toml", tree / "sub"])
    assert found == [tree / "notes.txt", missing, tree / "a.toml", tree / "sub" / "c.toml"]


def test_a_folder_without_scenarios_is_an_error(tree):
    with pytest.raises(ConfigError, match=r"empty: no scenario \(\*\.toml\) in this folder\n  hint: "):
        scenario_files([tree / "empty"])


def test_results_of_runs_are_left_out_unless_named(tmp_path):
    run = tmp_path / "results" / "s" / "2026-01-01_00-00-00"
    (run / "e").mkdir(parents=True)
    (tmp_path / "s.toml").touch()
    for name in ("scenario.toml", "e/best.toml", "e/journal.jsonl"):
        (run / name).touch()

    assert scenario_files([tmp_path]) == [tmp_path / "s.toml"]
    assert run / "scenario.toml" in scenario_files([run])
