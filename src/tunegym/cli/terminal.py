"""The terminal: output, errors and signals that every command shares.

Data goes to stdout, everything else to stderr. Both may be a pipe, a log file, a narrow terminal, or one that has been
closed; the work continues in any case.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich import table as rich_table
from rich.console import Console
from rich.measure import Measurement

from tunegym.core.errors import ConfigError, TunegymError
from tunegym.core.text import escaped_json, escaped_lines
from tunegym.tuning.model.summary import Table
from tunegym.tuning.reports.results import find_run

FAILURE = 1
BAD_CONFIGURATION = 2
INTERRUPTED = 130
WIDE = 120
"""Columns where there is no terminal with a width."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LogHandler(logging.Handler):
    """Prints log records as lines on a console."""

    def __init__(self, out: Console) -> None:
        super().__init__()
        self._console = out

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        label = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        self._console.print(f"{label}{logging.Formatter().format(record)}", soft_wrap=True)


class SteadyConsole(Console):
    """A console whose reader may go away: the process continues, and further output is dropped."""

    def print(self, *objects: object, **options: object) -> None:
        """Print without markup. Unprintable characters in strings are escaped; escape the texts of tables yourself."""
        shown = [escaped_lines(one) if isinstance(one, str) else one for one in objects]
        try:
            super().print(*shown, **options)  # type: ignore[arg-type]
        except OSError as error:
            self.on_broken_pipe()
            if not self.stderr and error.errno not in (errno.EPIPE, errno.EIO):  # not a reader or terminal that is gone
                raise TunegymError(f"stdout can't be written: {error.strerror}") from error

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor visible, since a display that is killed can't show it again."""
        return not show

    def on_broken_pipe(self) -> None:
        """Drop further output, where rich would end the process."""
        self.quiet = True
        # What is left in the stream's own buffer must have somewhere to go when Python exits.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def console(*, stderr: bool = False) -> SteadyConsole:
    """A console on stdout or stderr that takes nothing in a text for markup or an emoji."""
    plain: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    probe = SteadyConsole(**plain)
    return probe if probe.is_terminal else SteadyConsole(**plain, width=max(probe.width, WIDE))


def say(*lines: str) -> None:
    """Print lines on stdout, without wrapping them."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def note(text: str) -> None:
    """Print lines on stderr, without wrapping them."""
    console(stderr=True).print(text, soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    note(f"warning: {message}")


def chosen_run(folder: Path) -> Path:
    """The run, or the experiment's folder in one, that a path means. A run that the path doesn't name is printed."""
    if (run := find_run(folder)) not in (folder, folder.parent):
        note(f"run: {run}")
        return run
    return folder


def print_json(document: Any) -> None:
    """Print JSON on stdout, in which everything is printable."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    console().out(escaped_json(text), highlight=False)


def print_table(table: Table) -> None:
    """Print a table on stdout; on a terminal that is too narrow, its cells are folded."""
    out = console()
    out.print(rendered(table, out, fold=True))


def rendered(table: Table, out: Console, *, fold: bool = False) -> rich_table.Table | str:
    """The table as ``out`` can show it.

    On a terminal that is too narrow, its cells are folded, or each row becomes a list of ``name = value``.
    """
    made = rich_table.Table(title=table.title or None, title_justify="left")
    for title in table.columns:
        made.add_column(title, justify="left" if title in table.left else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    width = Measurement.get(out, out.options.update_width(10_000), made).maximum
    if fold and not out.is_terminal:  # a pipe or a file has no width to keep to
        out.width = max(out.width, width)
    if fold or width <= out.width:
        return made
    lines = [table.title] if table.title else []
    for row in table.rows:
        lines += ["", *(f"  {title} = {cell}" for title, cell in zip(table.columns, row, strict=True) if cell)]
    return "\n".join(lines)


# errors ---------------------------------------------------------------------------------------------------------------


def show(error: TunegymError) -> None:
    """Write an error and its hint on stderr, with unprintable characters escaped."""
    if isinstance(error, ConfigError):
        lines = [f"error: {problem.render(error.file)}\n" for problem in error.problems]
    else:
        lines = [f"error: {error.message}\n", *([f"hint: {error.hint}\n"] if error.hint is not None else [])]
    for line in lines:
        sys.stderr.write(escaped_lines(line))


def guarded(command: Callable[[], int]) -> int:
    """The command's exit code. For an error of ours print its message instead of a traceback; the code is 2 or 1."""
    logging.lastResort = LogHandler(console(stderr=True))  # where no other handler shows what is logged
    logging.lastResort.setLevel(logging.WARNING)
    try:
        return command()
    except ConfigError as error:
        show(error)
        return BAD_CONFIGURATION
    except TunegymError as error:
        show(error)
        return FAILURE
    except SystemExit as error:  # an agent's own: whatever its code, the run did not come to its end
        sys.stderr.write(f"error: the run was ended from within, by sys.exit({error.code!r})\n")
        return FAILURE


# signals --------------------------------------------------------------------------------------------------------------


def say_stopping(what: str) -> None:
    """Print what happens now. Safe in a signal handler: it writes to no stream, which may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, f"\nstopping: {what}; once more to stop at once\n".encode())


@contextlib.contextmanager
def heard(handle: Callable[[], None]) -> Iterator[None]:
    """While this lasts, call ``handle`` for SIGINT, SIGTERM and SIGHUP."""
    before = {}
    for number in _SIGNALS:
        # nohup makes us ignore SIGHUP; it stays that way.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: handle())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_now() -> None:
    """End the process at once, after the moving line."""
    with contextlib.suppress(OSError):
        os.write(2, b"\n")
    os._exit(INTERRUPTED)
