"""``tunegym plane top``: the state of a data plane, once or live."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tunegym.cli.terminal import guarded
from tunegym.core.text import escaped, escaped_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 180
"""Columns where the output is not a terminal."""
LINGER_S = 1.0
"""A host that was started only for this command ends soon."""
CONSUMED = "consumed"
"""The reason of samples that every task was done with: all others were dropped."""

Form = Literal["table", "json", "prometheus"]
_ENDLESS = 10_000
_LEFT = ("partition", "task", "dropped")


class Look(NamedTuple):
    """A plane's stats, and when they were taken (monotonic)."""

    stats: Mapping[str, Any]
    at: float


def main(url: str, form: Form, *, once: bool, interval_s: float) -> int:
    """Print the state of the plane at ``url``, once or until interrupted. Never makes a plane."""
    return guarded(lambda: _top(url, form, once=once, interval_s=interval_s))


def _top(url: str, form: Form, *, once: bool, interval_s: float) -> int:
    from tunegym.dataplane.connect import attach
    from tunegym.dataplane.errors import NoPlaneError

    if url.startswith("memory://"):
        raise NoPlaneError(
            f"{url} can't be seen from another process", hint="call stats() of a client in its own process"
        )
    with attach(url, linger_s=LINGER_S) as plane, _reader_may_leave():
        if form == "table" and not once and sys.stdout.isatty():
            _live(plane.stats, url, interval_s)
        before: Look | None = None
        while True:
            now = Look(plane.stats(), time.monotonic())
            _print(now, before, url, form, indent=once)
            if once:
                break
            before = now
            time.sleep(interval_s)
    return 0


# tables -----------------------------------------------------------------------------------------------


def table(now: Look, before: Look | None = None, title: str | None = None) -> Table:
    """A row for each partition and task; with an earlier look also samples per second."""
    shown = _empty(title)
    names, rows = _rows(now, before)
    for name in names:
        shown.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=name not in _LEFT)
    for cells in rows:
        shown.add_row(*cells)
    return shown


def fitting(console: Console, now: Look, before: Look | None = None, title: str | None = None) -> Table:
    """The table, or in a narrow terminal one with a column for each partition and task."""
    wide = table(now, before, title)
    if console.measure(wide, options=console.options.update(width=_ENDLESS)).maximum <= console.width:
        return wide
    shown = _empty(title)
    names, rows = _rows(now, before)
    for at, name in enumerate((names[0], *(cells[0] for cells in rows))):
        shown.add_column(name, justify="right" if at else "left")
    for name, *cells in list(zip(names, *rows, strict=True))[1:]:
        shown.add_row(name, *cells)
    return shown


def _empty(title: str | None) -> Table:
    from rich.table import Table

    return Table(title=None if title is None else escaped(title), title_justify="left")


def _rows(now: Look, before: Look | None) -> tuple[list[str], list[list[str]]]:
    names = ["partition", "task", "produced", "resident", "ready", "leased", "acked", "redelivered", "dropped"]
    names += ["waiting", "bytes", "age p50", "lag p95", "put ms", "claim ms"]
    if before is not None:
        names += ["put/s", "claim/s"]
    rows: list[list[str]] = []
    for partition_id, partition in now.stats.items():
        for task_name, task in partition["tasks"].items():
            cells = _cells(partition_id, partition, task_name, task)
            if before is not None:
                cells += _rates(now, before, partition_id, task_name)
            rows.append(cells)
    return names, rows


def _cells(partition_id: str, partition: Mapping[str, Any], task_name: str, task: Mapping[str, Any]) -> list[str]:
    room = "" if partition["capacity"] is None else f"/{partition['capacity']}"
    ready = task["ready"]
    if len(ready) > 1:
        told = "\n".join(f"{escaped(fields)}: {count}" for fields, count in ready.items())
    else:  # "-": without a claim so far, the required fields are unknown
        told = "".join(str(count) for count in ready.values()) or "-"
    dropped = {reason: count for reason, count in partition["gone"].items() if reason != CONSUMED}
    waiting = [f"{count} {call}" for call, count in partition["waiting"].items() if count]
    return [
        escaped(partition_id) + (" (sealed)" if partition["sealed"] else ""),
        escaped(task_name),
        str(partition["produced"]),
        f"{partition['resident']}{room}",
        told,
        str(task["leased"]),
        str(task["acked"]),
        str(task["redelivered"]),
        "\n".join(f"{escaped(reason)}: {count}" for reason, count in dropped.items()) or "0",
        "\n".join(waiting) or "0",
        size(partition["bytes"]),
        quantile(task["age"], 0.5),
        quantile(task["lag"], 0.95),
        latency(partition["put_latency"]),
        latency(task["claim_latency"]),
    ]


def _rates(now: Look, before: Look, partition_id: str, task_name: str) -> list[str]:
    """Samples per second since the look before; "-" for a new or restarted partition."""
    seconds = now.at - before.at
    new, old = now.stats[partition_id], before.stats.get(partition_id)
    if old is None or task_name not in old["tasks"] or seconds <= 0:
        return ["-", "-"]
    changes = (
        new["produced"] - old["produced"],
        new["tasks"][task_name]["claimed"] - old["tasks"][task_name]["claimed"],
    )
    return ["-" if change < 0 else f"{change / seconds:.0f}" for change in changes]


def quantile(histogram: Mapping[str, Any], share: float) -> str:
    """The upper end of the quantile's bucket; "-" for an empty histogram."""
    if not any(histogram["counts"]):
        return "-"
    end = _end(histogram, share)
    return f"> {histogram['bounds'][-1]:g} s" if end == math.inf else f"<= {end:g} s"


def latency(histogram: Mapping[str, Any]) -> str:
    """Median and 95th percentile in ms, as upper ends of their buckets; "-" for an empty histogram."""
    if not any(histogram["counts"]):
        return "-"
    return " / ".join(f"{1000 * _end(histogram, share):g}" for share in (0.5, 0.95))


def _end(histogram: Mapping[str, Any], share: float) -> float:
    wanted = math.ceil(share * sum(histogram["counts"]))
    seen = 0
    for bound, count in zip(histogram["bounds"], histogram["counts"], strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return math.inf


def size(nbytes: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


# output -----------------------------------------------------------------------------------------------


def _print(now: Look, before: Look | None, url: str, form: Form, *, indent: bool) -> None:
    if form == "table":
        from rich.console import Console

        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, emoji=False, width=max(console.width, WIDE))
        console.print(fitting(console, now, before, url) if now.stats else f"{escaped(url)}: no partition")
    elif form == "json":
        import orjson

        text = orjson.dumps(now.stats, option=orjson.OPT_INDENT_2 if indent else None).decode()
        sys.stdout.write(f"{escaped_json(text)}\n")
    else:
        from tunegym.dataplane.metrics import prometheus_text

        sys.stdout.write(prometheus_text(now.stats))
    sys.stdout.flush()


def _live(stats: Callable[[], Mapping[str, Any]], url: str, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    before = Look(stats(), time.monotonic())
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(fitting(console, before, title=url), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval_s)
            now = Look(stats(), time.monotonic())
            live.update(fitting(console, now, before, url), refresh=True)
            before = now


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Ctrl-C and a closed pipe end the command without an error."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # What is left in the stream's buffer needs somewhere to go when Python exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
