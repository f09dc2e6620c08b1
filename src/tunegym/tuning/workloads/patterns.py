"""Matching a user's pattern over a job's output, without ever waiting for it for ever."""

from __future__ import annotations

import marshal
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads.patterns_main import search

LIMIT_S = 30.0
"""How long a pattern that may never end may take."""

_REPEATED_GROUP = re.compile(r"[+*|}][^()]*\)(?:[+*]|\{\d*,)")
_MAIN = str(Path(__file__).with_name("patterns_main.py"))


def may_never_end(pattern: str) -> bool:
    """Whether a group that can match in several ways is itself repeated: matching may then take for ever.

    A guess from the text, on the safe side: a pattern that is suspected in vain only costs a process.
    """
    return _REPEATED_GROUP.search(pattern) is not None


def find(pattern: str, which: Literal["first", "last"], file: Path) -> tuple[bytes, tuple[bytes | None, ...]] | None:
    """The first or the last match in a file, and its groups; None if there is none.

    Raises:
        MetricError: it takes too long.
    """
    if not may_never_end(pattern):
        return search(pattern, which, str(file))
    # A process, as nothing else can stop a match: neither a thread nor a signal.
    command = [sys.executable, "-I", "-S", _MAIN, pattern, which, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        raise MetricError(f"'{pattern}' takes more than {LIMIT_S:g} s to match in {file.name}") from None
    except subprocess.CalledProcessError as error:
        line = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise MetricError(f"'{pattern}' can't be matched in {file.name}: {line}") from None
    return marshal.loads(done.stdout)
