"""``tunegym compare``: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunegym.tuning.reports.comparison import comparison
from tunegym.tuning.reports.page import write_page
from tunegym.tuning.reports.results import load


def compare(folders: Sequence[Path]) -> dict[str, Any]:
    """The runs in ``folders`` as plain data.

    Raises:
        StoreError: one of them is no run, or its journal is broken.
    """
    return comparison([load(folder) for folder in folders])


def write_comparison(path: Path, document: dict[str, Any]) -> Path:
    """Write the page of a comparison.

    Raises:
        StoreError: it can't be written.
    """
    runs = len({entry["folder"] for entry in document["entries"]})
    return write_page(path, f"{runs} runs compared", document, hint="choose another place with --output")
