"""Folders that may hold what another user wrote, or another version of tunegym, are refused before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import MISSING

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import StorageError
from tunegym.dataplane.hosts.folder import FORMAT, bootstrap

OTHER = 65534


def plane(folder: Path) -> None:
    bootstrap(folder)


def planted(folder: Path) -> None:
    """Another user was quicker, in a folder that everybody may write to."""
    folder.mkdir()
    (folder / "plane.json").write_text(f'{{"format": {FORMAT}}}')
    (folder / "ledger-00000000.journal").write_bytes(b"planted")


def planted_beginning(folder: Path) -> None:
    """Only names that a plane itself makes first."""
    folder.mkdir()
    (folder / "plane.json.new").symlink_to(folder.parent / "victim")
    (folder / "start.lock").touch()


def older(folder: Path) -> None:
    folder.mkdir()
    (folder / "plane.json").write_text('{"format": 3}')


def damaged(folder: Path) -> None:
    folder.mkdir()
    (folder / "plane.json").write_text("{")


@pytest.mark.parametrize("how", [connect, attach])
@pytest.mark.parametrize(
    ("prepare", "owner", "mode", "message", "hint"),
    [
        (plane, OTHER, 0o700, f"belongs to another user \\({OTHER}\\)", "your own folder"),
        (plane, OTHER, 0o777, f"belongs to another user \\({OTHER}\\)", "your own folder"),
        (plane, None, 0o720, "others may write to", "chmod go-w"),
        (plane, None, 0o702, "others may write to", "chmod go-w"),
        (planted, None, 0o777, "others may write to", "chmod go-w"),
        (planted_beginning, None, 0o777, "others may write to", "chmod go-w"),
        (older, None, 0o700, f"has format 3, this tunegym knows {FORMAT}", "the version of tunegym that made it"),
        (damaged, None, 0o700, "plane.json is damaged", ""),
    ],
)
def test_a_folder_that_is_refused(
    tmp_path: Path,
    how: Callable[..., DataPlaneClient],
    prepare: Callable[[Path], None],
    owner: int | None,
    mode: int,
    message: str,
    hint: str,
) -> None:
    if owner is not None and os.geteuid():
        pytest.skip(f"{MISSING}the right to give files to another user")
    folder = tmp_path / "plane"
    prepare(folder)
    if owner is not None:
        os.chown(folder, owner, owner)
    folder.chmod(mode)
    before = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(StorageError, match=message) as error:
        how(f"mmap://{folder}")
    assert hint in (error.value.hint or "")
    after = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    assert {**after, "start.lock": 0} == {**before, "start.lock": 0}
    assert not (tmp_path / "victim").exists()


def test_an_empty_folder_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    folder.mkdir()
    folder.chmod(0o777)
    bootstrap(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
