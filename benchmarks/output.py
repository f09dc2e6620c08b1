"""How benchmarks show their lines and write them down."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trial_overhead.measure import ROOT


def row(widths: Sequence[int], *cells: str) -> str:
    """Cells in columns; those beyond the last width as they are."""
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
    return " ".join([*padded, *cells[len(widths) :]]).rstrip()


def write(benchmark: str, lines: Sequence[Mapping[str, Any]], packages: Sequence[str], **more: Any) -> Path:
    """A file of its own in ``benchmarks/results`` with the lines and what they were measured on."""
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}-{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
    document = {
        "benchmark": benchmark,
        "at": time.time(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        **more,
        "lines": list(lines),
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
