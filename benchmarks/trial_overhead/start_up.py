"""``tunegym --help`` beside importing the library that it is built with."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.trial_overhead.measure import Line, alternating, children_cpu_s, middle, ratios


def measured(quick: bool) -> list[Line]:
    """Both as whole processes."""
    script = str(Path(sys.executable).with_name("tunegym"))
    commands = {"help": [script, "--help"], "typer": [sys.executable, "-c", "import typer"]}
    for command in commands.values():
        children_cpu_s(command)  # byte-compiled and in the page cache
    results = alternating(
        5 if quick else 15,
        {
            "help": lambda: {"ms": children_cpu_s(commands["help"]) * 1e3},
            "typer": lambda: {"ms": children_cpu_s(commands["typer"]) * 1e3},
        },
    )
    ours, peer = results["help"], results["typer"]
    rounds = ratios(ours, peer, "ms")
    return [Line("tunegym --help", "ms", middle(ours, "ms"), "import typer", middle(peer, "ms"), rounds, 3)]
