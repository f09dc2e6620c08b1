"""Errors as a user reads them: what is wrong and a hint, never a traceback for what we raised on purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tunegym.core.errors import ConfigError, TunegymError
from tunegym.core.escaping import escaped_lines

FAILURE = 1
BAD_CONFIGURATION = 2


def show(error: TunegymError) -> None:
    """Write an error on stderr; what others wrote in it must not harm a terminal."""
    if isinstance(error, ConfigError):
        lines = [f"error: {problem.render(error.file)}\n" for problem in error.problems]
    else:
        lines = [f"error: {error.message}\n", *([f"hint: {error.hint}\n"] if error.hint is not None else [])]
    for line in lines:
        sys.stderr.write(escaped_lines(line))


def guarded(command: Callable[[], int]) -> int:
    """The command's exit code; for an error of ours, its message on stderr and 2 or 1."""
    try:
        return command()
    except ConfigError as error:
        show(error)
        return BAD_CONFIGURATION
    except TunegymError as error:
        show(error)
        return FAILURE
    except SystemExit as error:  # of somebody's agent: whatever code it gives, the run did not come to its end
        sys.stderr.write(f"error: the run was ended from within, by sys.exit({error.code!r})\n")
        return FAILURE
