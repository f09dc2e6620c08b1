"""Real runs in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from tunegym.cli.main import main; main()"]


@pytest.fixture
def tunegym() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line to its end."""

    def call(*arguments: str | Path, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return call


@pytest.fixture
def start_tunegym() -> Callable[..., subprocess.Popen[str]]:
    """Start the command line and leave it running; what it prints goes to a file."""

    def start(*arguments: str | Path, log: Path) -> subprocess.Popen[str]:
        with log.open("a") as file:
            return subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=file, stderr=file, text=True)

    return start


@pytest.fixture
def processes_of() -> Callable[[str], list[int]]:
    """The living processes that carry a run's token in their environment."""

    def find(token: str) -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if f"TUNEGYM_MARK={token}/".encode() in environment:
                found.append(int(entry))
        return found

    return find
