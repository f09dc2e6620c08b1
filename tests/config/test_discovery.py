from __future__ import annotations

from tunegym.cli.scenarios import verify


def test_folders_are_searched_but_not_hidden_ones_and_results(tmp_path, capsys):
    run = "results/s/2026-01-01_00-00-00"
    files = ("b.toml", "a.toml", "notes.txt", "sub/c.toml", ".hidden/d.toml", "sub/.git/e.toml")
    for name in (*files, f"{run}/scenario.toml", f"{run}/e/best.toml", f"{run}/e/journal.jsonl"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "empty").mkdir()

    def bad(*paths):
        assert verify([tmp_path / path for path in paths]) == 2
        lines = capsys.readouterr().err.splitlines()
        return [line.split(": ")[1].removeprefix(f"{tmp_path}/") for line in lines if "a name is required" in line]

    assert bad(".") == ["a.toml", "b.toml", "sub/c.toml"]
    assert bad("notes.txt", "a.toml", "a.toml", "sub") == ["notes.txt", "a.toml", "sub/c.toml"]
    assert bad(run) == [f"{run}/scenario.toml", f"{run}/e/best.toml"]
    assert verify([tmp_path / "empty"]) == 2
    assert "no scenario (*.toml) in this folder\n  hint: " in capsys.readouterr().err
