"""Files that are replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Put ``content`` in place of what ``path`` holds.

    Whoever reads it, also after a crash of the machine, finds one or the other, never a part. What fails leaves nothing
    behind: a full disk is no place for half a file. One writer at a time; it needs ``<name>.new`` beside it. Raises
    ``OSError``.
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
