"""Files on their way to nodes and back, without any cluster."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from tunegym.core.errors import RunnerError
from tunegym.tuning.model.trial import CallJob, CommandJob
from tunegym.tuning.runners import shipping
from tunegym.tuning.runners.shipping import (
    Scratch,
    in_pieces,
    pack,
    pack_scenario,
    put_small,
    relocated,
    remove,
    take_small,
    unpack,
)
from tunegym.tuning.workloads.template import Template

ODD = ["plain", "a b", "it's", 'q"q', "$HOME", "`x`", "back\\slash", "é✓", "new\nline", "-dash", "bad\udcff"]


def tree(folder: Path) -> dict[str, object]:
    """Everything about a folder that a trial may have made."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode = 0 if path.is_symlink() else stat.S_IMODE(status.st_mode)
        found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), mode, content)
    return found


@pytest.mark.parametrize("piece", [1, 700, 10_000_000])
def test_a_folder_arrives_as_it_was(tmp_path: Path, piece: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / ("x" * 150) / "er").mkdir(parents=True)
    for name in ODD:
        (source / "deep" / name).write_bytes(os.fsencode(name) * 300)
    (source / "tool").write_text("#!/bin/sh")
    (source / "tool").chmod(0o755)
    (source / "secret").write_text("x")
    (source / "secret").chmod(0o000)
    os.link(source / "tool", source / "twin")
    (source / "away").symlink_to("/nowhere/at all")
    (source / "inside").symlink_to("deep")
    (source / "empty").mkdir(mode=0o500)
    os.mkfifo(source / "pipe")
    target.mkdir()
    (target / "stale").write_text("old")
    expected = {**tree(source)}
    unpack(in_pieces(pack(str(source)), piece), str(target))
    assert tree(target) == expected
    assert (target / "tool").stat().st_nlink == 2


def test_few_plain_files_need_no_stream(tmp_path: Path) -> None:
    """Anything else does, and is left alone."""
    folder = tmp_path / "f"
    folder.mkdir()
    for number, name in enumerate(ODD):
        (folder / name).write_text("x" * number)
    (folder / "plain").chmod(0o751)
    expected = tree(folder)
    small = take_small(str(folder), 64 * 1024)
    assert small is not None
    assert not folder.exists()
    put_small(small, str(folder))
    assert tree(folder) == expected
    assert take_small(str(folder), 1000) is None
    (folder / "link").symlink_to("plain")
    assert take_small(str(folder), 64 * 1024) is None
    assert len(tree(folder)) == len(ODD) + 1


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
    shipment, content = pack_scenario(str(tmp_path / "s"))
    unpack(iter([content]), str(tmp_path / "t"))
    files = {str(path.relative_to(tmp_path / "t")) for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert files == {"a.py", "data/b.csv"}
    assert pack_scenario(str(tmp_path / "s"))[0] == shipment
    (tmp_path / "s" / "a.py").write_text("changed")
    assert pack_scenario(str(tmp_path / "s"))[0] != shipment


def test_a_scenario_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MOST_SHIPPED_MB", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_bytes(bytes(1_100_000))
    with pytest.raises(RunnerError, match=r"more than 1 MB.*data/ alone has 1 MB") as caught:
        pack_scenario(str(tmp_path))
    assert "put large data where the nodes can see it" in str(caught.value.hint)


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


def test_entries_live_as_long_as_they_are_used(tmp_path: Path) -> None:
    """Several processes may use one; what a killed process left goes with the next sweep."""
    filled: list[Path] = []

    def fill(folder: Path) -> None:
        filled.append(folder)
        (folder / "x").write_text("x")

    one, two = Scratch(tmp_path / "s"), Scratch(tmp_path / "s")
    assert one.use("files-a", fill) == two.use("files-a", fill)
    assert len(filled) == 1
    one.close()
    assert (tmp_path / "s" / "files-a" / "x").exists()
    own = one.use("host-b")
    (own / "deep").mkdir(mode=0o000)
    locks, one._locks = one._locks, {}
    for fd in locks.values():
        fcntl.flock(fd, fcntl.LOCK_UN)  # as the kernel does for a process that is killed
        os.close(fd)
    two.sweep()
    assert not own.exists()
    two.close()
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["filling"]
    remove(str(own))
