"""Atomic writes: a file is replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomic(path: Path, content: str | bytes | memoryview) -> None:
    """Replace the content of ``path``.

    A reader, also after a crash of the machine, finds the old or the new content, never a part. A write that fails
    leaves nothing behind. One writer at a time; it needs ``<name>.new`` beside it. Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:  # also an interrupt
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
