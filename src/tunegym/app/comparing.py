"""``tunegym compare``: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunegym.tuning.model.summary import Comparison
from tunegym.tuning.reports.compare import compare as compare_runs
from tunegym.tuning.reports.page import write_page
from tunegym.tuning.reports.results import load


def compare(folders: Sequence[Path]) -> Comparison:
    """The runs in ``folders`` side by side.

    Raises:
        StoreError: one of them is no run, or its journal is broken.
    """
    return compare_runs([load(folder) for folder in folders])


def write_comparison(path: Path, found: Comparison) -> Path:
    """Write the page of a comparison.

    Raises:
        StoreError: it can't be written.
    """
    runs = len({entry["folder"] for entry in found.facts["entries"]})
    return write_page(path, f"{runs} runs compared", found.facts, hint="choose another place with --output")
