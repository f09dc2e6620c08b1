"""What a user's module has, found out by a process of its own: the driver never runs the user's code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tunegym.core.errors import UnresolvedReferenceError

IMPORT_TIMEOUT_S = 60.0


def stamp(file: str | None) -> tuple[int, int] | None:
    """Changes when the file does, so that answers can be remembered; None for no file."""
    if file is None:
        return None
    stat = Path(file).stat()
    return stat.st_mtime_ns, stat.st_size


def asked(reporter: str, target: str, paths: tuple[str, ...], *, slow_hint: str) -> dict[str, Any]:
    """What a fresh process says of ``module:name``, with modules in ``paths`` before all others.

    Args:
        reporter: the module whose ``report`` is called there, with ``target`` and ``paths``; it ends with ``answer``.
        target: the reference.
        paths: folders.
        slow_hint: what to do if importing takes too long.

    Raises:
        UnresolvedReferenceError: the process said nothing: importing takes too long, or ends Python.
    """
    module = target.partition(":")[0]
    code = (
        f"import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {reporter} import report; report(*sys.argv[2:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(sys.path), target, *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        message = f"importing {module} took longer than {IMPORT_TIMEOUT_S:g} s"
        raise UnresolvedReferenceError(message, hint=slow_hint) from None
    finally:
        _end(process)
    try:
        return json.loads(out)
    except ValueError:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        message = f"importing {module} ended Python (exit code {process.returncode}): {last[0]}"
        hint = f"python -c 'import {module}' in its folder shows it"
        raise UnresolvedReferenceError(message, hint=hint) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it may have started; its pipes are then closed by nobody else."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def answer(find: Callable[[], dict[str, Any]]) -> NoReturn:
    """In the child: write what ``find`` gives to stdout, as JSON, and end.

    What the user's module prints while it is imported goes to stderr.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)
    found = find()
    os.write(answer_to, json.dumps(found).encode())
    os.close(answer_to)
    os._exit(0)  # a user's threads and exit handlers have nothing to say
