"""What trials printed and what they ran, as much of it as a page can carry, without passwords in addresses."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import printable
from tunegym.tuning.reports.masking import masked

TAIL = 2_000
"""Characters of each file."""
MOST_FOLDERS = 3_000
"""Folders looked into: results may lie on a file system where each costs a millisecond."""
FILES = ("setup.txt", "stdout.txt", "stderr.txt", "teardown.txt")


def by_interest(trials: Sequence[Trial]) -> list[int]:
    """Positions of the trials that one looks at first: failed ones, then by reward, cached ones last."""

    def key(position: int) -> tuple[bool, bool, float]:
        trial = trials[position]
        return trial.cached_from is not None, trial.measured, -trial.reward if trial.measured else trial.number

    return sorted(range(len(trials)), key=key)


def tails(folder: Path, numbers: Iterable[int], budget: int) -> dict[int, list[list[Any]]]:
    """The end of what trials printed: number -> a list of file name, text, and whether something is before it.

    Of several repeats the last one counts, which is the one that failed where one did.

    Args:
        folder: an experiment's ``trials/``.
        numbers: the most interesting ones first.
        budget: characters for all of them together.
    """
    try:
        there = {entry.name for entry in os.scandir(folder)}
    except OSError:
        return {}
    found: dict[int, list[list[Any]]] = {}
    looked = 0
    for number in numbers:
        name = f"{number:06d}"
        if name not in there:
            continue
        if budget <= 0 or looked >= MOST_FOLDERS:
            break
        looked += 1
        files = _files(folder / name)
        if files:
            found[number] = files
            budget -= sum(len(text) for _, text, _ in files)
    return found


def _files(folder: Path) -> list[list[Any]]:
    repeats = [path.name for path in folder.glob("repeat-*") if path.name[7:].isdigit()]
    last = max(repeats, key=lambda name: int(name[7:]), default="")
    files: list[list[Any]] = []
    for name in FILES:
        text, cut = _tail(folder / last / name)
        if text:
            files.append([f"{last}/{name}" if last else name, text, cut])
    return files


def _tail(path: Path) -> tuple[str, bool]:
    try:
        if not path.is_file():  # a job may have put a pipe there
            return "", False
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4 * TAIL))
            text = file.read(4 * TAIL).decode("utf-8", "replace")
    except OSError:
        return "", False
    return masked(text)[-TAIL:], size > 4 * TAIL or len(text) > TAIL


def commands(trials: Sequence[Trial], command: Callable[[Trial], str | None], budget: int) -> dict[str, Any]:
    """What each trial ran: ``lines`` once each, and for every position the lines it is made of.

    Scripts of many lines differ in a few of them from trial to trial. None where a trial ran nothing, or where
    ``budget`` characters are used up; ``left_out`` counts those.
    """
    lines: dict[str, int] = {}
    made: list[list[int] | None] = [None] * len(trials)
    left_out = 0
    for position in by_interest(trials):
        if budget <= 0:
            left_out += 1
            continue
        text = command(trials[position])
        if text is None:
            continue
        parts = textwrap.dedent(printable(masked(text))).strip("\n").rstrip().split("\n")
        budget -= sum(len(part) for part in parts if part not in lines) + len(parts)
        made[position] = [lines.setdefault(part, len(lines)) for part in parts]
    return {"lines": list(lines), "of": made, "left_out": left_out}
