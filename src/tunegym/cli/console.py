"""Consoles that a pipe, a log file, a narrow terminal and one that went away can live with."""

from __future__ import annotations

import contextlib
import os

from rich.console import Console

WIDE = 120
"""Columns where there is no terminal whose width counts."""


class SteadyConsole(Console):
    """A console whose reader may leave: what runs goes on, and what is still said goes nowhere."""

    def print(self, *objects: object, **options: object) -> None:
        """As rich's; a terminal that was closed is no reason to stop."""
        try:
            super().print(*objects, **options)  # type: ignore[arg-type]
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
        # What is left in the stream's own buffer must have somewhere to go when Python exits.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def console(*, stderr: bool = False) -> SteadyConsole:
    """A console on stdout or stderr."""
    probe = SteadyConsole(stderr=stderr, highlight=False)
    return probe if probe.is_terminal else SteadyConsole(stderr=stderr, highlight=False, width=max(probe.width, WIDE))
