"""Consoles that a pipe, a log file, a narrow terminal and one that went away can live with."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import orjson
from rich.console import Console

from tunegym.core.escaping import escaped_json, escaped_lines

WIDE = 120
"""Columns where there is no terminal whose width counts."""


class SteadyConsole(Console):
    """A console whose reader may leave: what runs goes on, and what is still said goes nowhere."""

    def print(self, *objects: object, **options: object) -> None:
        """As rich's, but for what is not printable in a string; a terminal that was closed is no reason to stop.

        What goes into a table or a ``Text`` must have been escaped before: its width counts.
        """
        shown = [escaped_lines(one) if isinstance(one, str) else one for one in objects]
        try:
            super().print(*shown, **options)  # type: ignore[arg-type]
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
    """A console on stdout or stderr, which takes nothing in a text for markup or the name of an emoji."""
    plain: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    probe = SteadyConsole(**plain)
    return probe if probe.is_terminal else SteadyConsole(**plain, width=max(probe.width, WIDE))


def print_json(document: Any) -> None:
    """JSON on stdout, in which everything is printable."""
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    console().out(escaped_json(text), highlight=False)
