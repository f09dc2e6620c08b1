"""Telling one process from another that later got its pid."""

from __future__ import annotations

import subprocess
from pathlib import Path


def process_start_time(pid: int) -> str | None:
    """When the process started, as an opaque text; None if there is no such living process.

    The same pid with another start time is another process. A zombie is not living.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None if Path("/proc/self").is_dir() else _by_ps(pid)
    # The second field is the name in parentheses and may hold anything, parentheses too.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
