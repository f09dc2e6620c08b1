"""Where a run's results go."""

from __future__ import annotations

import errno
import time
from pathlib import Path

from tunegym.core import toml
from tunegym.core.errors import StoreError
from tunegym.core.whole import write_whole
from tunegym.tuning.model.scenario import Scenario
from tunegym.tuning.reports.results import SCENARIO

RESULTS = "results"
FAILURE = "dse_failure.txt"
"""What ended a run with an exception is told here."""

_ROOM = "free some space, then resume"
_RIGHTS = "give yourself the right to write there, or copy the results to another place"
_HINTS = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM} | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _RIGHTS)


def unwritable(folder: Path, error: OSError) -> StoreError:
    """The error for results that can't be written any more, with a hint that fits the cause."""
    hint = _HINTS.get(error.errno or 0, "mend the cause, then resume")
    return StoreError(f"{folder} can't be written: {error.strerror or error}", hint=hint)


def new_run_folder(scenario: Scenario, output: str | Path | None) -> Path:
    """A fresh ``<output>/<scenario>/<time>/`` with the resolved ``scenario.toml`` in it.

    Two runs that start in the same second get different folders, whichever process they are in: making a
    folder is the one thing that only one of them can do.
    """
    parent = Path(output or RESULTS) / scenario.name
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = _made(parent, stamp)
    except OSError as error:
        raise StoreError(
            f"{parent} can't be written: {error.strerror}", hint="choose another place with --output"
        ) from error
    write_scenario(folder, scenario)
    return folder.absolute()


def write_scenario(folder: Path, scenario: Scenario) -> None:
    """Write down what is run, whole or not at all. A file that says so already is left alone."""
    path = folder / SCENARIO
    text = toml.dumps(scenario.document)
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        write_whole(path, text)
    except OSError as error:
        hint = "mend the cause (is the disk full, the folder yours?), or choose another place with --output"
        raise StoreError(f"{path} can't be written: {error.strerror}", hint=hint) from error


def _made(parent: Path, stamp: str) -> Path:
    count = 1
    while True:
        folder = parent / (stamp if count == 1 else f"{stamp}-{count}")
        try:
            folder.mkdir()
        except FileExistsError:
            count += 1
        else:
            return folder
