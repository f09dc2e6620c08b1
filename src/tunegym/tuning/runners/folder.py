"""The folder of a trial: made fresh, read for reasons, tidied up."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunegym.core.errors import RunnerError

STDOUT = "stdout.txt"
STDERR = "stderr.txt"

_HINTS = {
    errno.ENOSPC: "the disk is full: make room, then resume the run",
    errno.EDQUOT: "the disk quota is used up: make room, then resume the run",
    errno.EACCES: "give yourself the right to write there, or choose another --output folder",
    errno.EPERM: "give yourself the right to write there, or choose another --output folder",
    errno.EROFS: "the file system is read-only: choose another --output folder",
    errno.EMFILE: "too many open files: raise `ulimit -n`, or use fewer slots",
    errno.ENFILE: "too many open files on this machine: use fewer slots",
    errno.EAGAIN: "too many processes: raise `ulimit -u`, or use fewer slots",
    errno.ENOMEM: "out of memory: use fewer slots",
}


def broken(what: str, error: OSError) -> RunnerError:
    """The error for infrastructure that refuses to work."""
    hint = _HINTS.get(error.errno or 0, "remove the cause, then resume the run")
    return RunnerError(f"{what}: {error.strerror or error}", hint=hint)


def make_fresh(folder: str) -> None:
    """Make the folder, and empty it of what an earlier, killed attempt left there.

    Raises:
        RunnerError: it can't be made or emptied.
    """
    try:
        try:
            os.mkdir(folder)  # noqa: PTH102 (this runs for every trial)
        except FileExistsError:
            _empty(folder)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError as error:
        raise broken(f"the trial's folder {folder} can't be made", error) from error


def tidy(folder: str) -> None:
    """Remove the output files if they are empty, and the folder if nothing else is in it."""
    for name in (STDOUT, STDERR):
        path = Path(folder, name)
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
    with contextlib.suppress(OSError):
        Path(folder).rmdir()


def last_line(folder: str, name: str, limit: int = 200) -> str:
    """The last line with something on it, fit to be shown; empty if there is none."""
    try:
        with Path(folder, name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = "".join(c if c.isprintable() else "\ufffd" for c in lines[-1]) if lines else ""
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def _empty(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, onerror=_make_writable)
            else:
                os.unlink(entry.path)  # noqa: PTH108


def _make_writable(function: Callable[..., Any], path: str, _: object) -> None:
    """Folders that a job made read-only are removed all the same."""
    Path(path).parent.chmod(0o700)
    if function is os.unlink or function is os.rmdir:
        function(path)
    else:
        Path(path).chmod(0o700)
        shutil.rmtree(path)


def _writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(4096)) == 4096
    except OSError:
        return False


def check_disk(folder: str) -> None:
    """Refuse to believe a job that ran on a full disk, be it a failure or a metric that was cut short.

    Raises:
        RunnerError: nothing more can be written to the folder.
    """
    try:
        room = os.statvfs(folder)
    except OSError:  # no folder, no output that could have been cut short
        return
    full = (room.f_blocks and not room.f_bavail) or (room.f_files and not room.f_favail)
    if full and not _writable(folder):  # some may still write where others can't any more
        raise RunnerError(
            f"the disk of {folder} is full, so what a job says there can't be believed",
            hint="free some space, then resume: the trial is run again",
        )
