"""Matching a pattern over a file; also a script, run in a process that can be ended. Imports little.

As a script it takes the pattern, ``first`` or ``last``, and the file, and writes what ``search`` returns, marshalled.
"""

import marshal
import mmap
import os
import re
import sys
from functools import lru_cache


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> re.Pattern[bytes]:
    """A metric's pattern over bytes, ``^`` and ``$`` at every line; raises ``re.error``."""
    return re.compile(pattern.encode(), re.MULTILINE)


def search(pattern: str, which: str, file: str) -> tuple[bytes, tuple[bytes | None, ...]] | None:
    """The ``first`` or ``last`` match and its groups; None if there is none.

    The file is mapped rather than read: a job may have printed gigabytes.
    """
    found = None
    with open(file, "rb") as opened:  # noqa: PTH123 (pathlib would be half of the child's start-up)
        empty = os.fstat(opened.fileno()).st_size == 0
        content = b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        for match in compile_regex(pattern).finditer(content):
            found = (match[0], match.groups())
            if which == "first":
                break
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(marshal.dumps(search(*sys.argv[1:])))
