"""Files on their way to nodes and back, without any cluster."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunegym.core.errors import RunnerError
from tunegym.tuning.model.trial import CallJob, CommandJob
from tunegym.tuning.runners import shipment
from tunegym.tuning.runners.shipment import (
    Entry,
    ScratchFolder,
    next_batch,
    read_folder,
    read_scenario,
    relocated,
    write_folder,
)
from tunegym.tuning.workloads.template import Template

ODD = ["plain", "a b", "it's", 'q"q', "$HOME", "`x`", "back\\slash", "é✓", "new\nline", "-dash", "bad\udcff"]


def tree(folder: Path) -> dict[str, object]:
    """Everything about a folder that a trial may have made."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode, mtime = (0, 0) if path.is_symlink() else (stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), mode, mtime, content)
    return found


@pytest.mark.parametrize("piece", [1, 700, 10_000_000])
def test_a_folder_arrives_as_it_was(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of any size; only pipes stay behind."""
    monkeypatch.setattr(shipment, "PIECE", piece)
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / ("x" * 150) / "er").mkdir(parents=True)
    for name in ODD:
        (source / "deep" / name).write_bytes(os.fsencode(name) * 300)
    (source / "tool").write_text("#!/bin/sh")
    (source / "tool").chmod(0o755)
    (source / "old").touch()
    os.utime(source / "old", (1, 1))
    (source / "secret").write_text("x")
    (source / "away").symlink_to("/nowhere/at all")
    (source / "inside").symlink_to("deep")
    (source / "empty").mkdir(mode=0o500)
    (source / "empty" / "not").write_text("x")
    target.mkdir()
    (target / "stale").write_text("old")
    expected = tree(source)
    secret = expected["secret"]
    os.mkfifo(source / "pipe")
    (source / "secret").chmod(0o000)
    entries = read_folder(str(source))

    def batches() -> Iterator[Entry]:
        more = True
        while more:
            batch, more = next_batch(entries)
            yield from batch

    write_folder(batches(), str(target))
    (target / "secret").chmod(0o644)
    found = tree(target)
    assert {**found, "secret": secret} == expected


def test_no_files_no_folder(tmp_path: Path) -> None:
    (tmp_path / "stale").mkdir()
    write_folder(read_folder(str(tmp_path / "nowhere")), str(tmp_path / "stale"))
    assert not (tmp_path / "stale").exists()


def test_a_scenario_is_shipped_without_results(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "data/b.csv",
        "results/r/x",
        ".git/config",
        ".hidden",
        "__pycache__/a.pyc",
        "out/e/journal.jsonl",
    ):
        (tmp_path / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / name).write_text(name)
    write_folder(read_scenario(str(tmp_path / "s")), str(tmp_path / "t"))
    files = {str(path.relative_to(tmp_path / "t")) for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert files == {"a.py", "data/b.csv"}


def test_a_scenario_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "MOST_SHIPPED_MB", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_bytes(bytes(1_100_000))
    with pytest.raises(RunnerError, match=r"more than 1 MB.*reached at data/big.bin") as caught:
        read_scenario(str(tmp_path))
    assert "where the nodes can see it" in str(caught.value.hint)


@pytest.mark.parametrize("name", [name for name in ODD if "\udcff" not in name])
def test_paths_in_commands_are_relocated(tmp_path: Path, name: str) -> None:
    """However they are quoted: the shell sees the node's paths, and everything else as it was."""
    old, value = str(tmp_path / name), f"{name} {tmp_path}"
    text = "printf '%s\\n' {dir}/f \"{dir}/g h\" '{dir}' --x={dir} -I{dir}/i  {value}"
    command = Template.parse(text).render({"dir": old, "value": value})
    job = CommandJob("1", old + "/t", command, setup=f"cd {shlex.quote(old)}", env={"A": old + ":" + old + "/b"})
    moved = relocated(job, {old: "/node/files", old + "/t": "/node/trial"})
    assert isinstance(moved, CommandJob)
    seen = subprocess.run(["bash", "-c", moved.command], capture_output=True, text=True, check=True).stdout
    expected = "/node/files/f\n/node/files/g h\n/node/files\n--x=/node/files\n-I/node/files/i\n"
    assert seen == f"{expected}{value}\n"
    assert moved.folder == "/node/trial"
    assert dict(moved.env) == {"A": "/node/files:/node/files/b"}
    assert moved.setup in ("cd /node/files", "cd '/node/files'")


def test_other_paths_stay() -> None:
    moved = relocated(CommandJob("1", "/s/t", "cat /mnt/s /s2 /s-x a/s x=/s/y file:///s"), {"/s": "/n"})
    assert isinstance(moved, CommandJob)
    assert moved.command == "cat /mnt/s /s2 /s-x a/s x=/n/y file:///n"


def test_paths_in_calls_are_relocated() -> None:
    arguments = {"scenario_dir": "/s", "deep": {"x": ["/s/a", "/sb", 3]}, "trial_dir": "/s/results/1", "number": 1.5}
    moved = relocated(CallJob("1", "/s/results/1", "m:f", arguments, ("/s",)), {"/s": "/n", "/s/results/1": "/t"})
    assert isinstance(moved, CallJob)
    expected = {"scenario_dir": "/n", "deep": {"x": ["/n/a", "/sb", 3]}, "trial_dir": "/t", "number": 1.5}
    assert (moved.folder, moved.paths, moved.arguments) == ("/t", ("/n",), expected)


def test_scratch_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the next one is made; those in use stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = """
import os, sys
from tunegym.tuning.runners.shipment import ScratchFolder
(ScratchFolder().path / "deep").mkdir(mode=0)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", text], env={**os.environ, "TMPDIR": str(tmp_path)})
    (left,) = tmp_path.iterdir()
    one = ScratchFolder()
    assert not left.exists()
    two = ScratchFolder()
    assert set(tmp_path.iterdir()) == {one.path, two.path}
    for folder in (one, two, two):
        folder.close()
    assert not list(tmp_path.iterdir())
