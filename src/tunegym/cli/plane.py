"""``tunegym plane top``: the state of a data plane, once or live."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from rich.live import Live

from tunegym.cli.terminal import console, rendered
from tunegym.core.text import escaped, escaped_json
from tunegym.dataplane.connect import attach
from tunegym.dataplane.errors import NoPlaneError
from tunegym.tuning.model.summary import Table, table_of
from tunegym.tuning.model.values import number

LINGER_S = 1.0
"""A host that was started only for this command ends soon."""
CONSUMED = "consumed"
"""The reason of samples that every task was done with: all others were dropped."""

Form = Literal["table", "json", "prometheus"]
_LEFT = ("partition", "task", "dropped")


class Look(NamedTuple):
    """A plane's stats, and when they were taken (monotonic)."""

    stats: Mapping[str, Any]
    at: float


def top(url: str, form: Form, *, once: bool, interval_s: float) -> int:
    """Print the state of the plane at ``url``, once or until interrupted. Never makes a plane."""
    if url.startswith("memory://"):
        hint = "call stats() of a client in its own process"
        raise NoPlaneError(f"{url} can't be seen from another process", hint=hint)
    with attach(url, linger_s=LINGER_S) as plane, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        out = console()
        screen = None
        if form == "table" and not once and out.is_terminal:
            screen = stack.enter_context(Live(console=out, auto_refresh=False, screen=True))
        before: Look | None = None
        while not out.quiet:  # its reader may leave
            now = Look(plane.stats(), time.monotonic())
            if form == "table":
                shown = rendered(table(now, before, url), out, fold=not out.is_terminal)
                if screen is not None:
                    screen.update(shown, refresh=True)
                else:
                    out.print(shown if now.stats else f"{url}: no partition")
            elif form == "json":
                text = msgspec.json.encode(now.stats)
                text = msgspec.json.format(text, indent=2) if once else text
                out.out(escaped_json(text.decode()), highlight=False)
            else:
                from tunegym.dataplane.metrics import prometheus_text

                out.out(prometheus_text(now.stats), highlight=False, end="")
            if once:
                break
            before = now
            time.sleep(interval_s)
    return 0


def table(now: Look, before: Look | None = None, title: str = "") -> Table:
    """A row for each partition and task; with an earlier look also samples per second."""
    rows = [
        _cells(partition_id, partition, task_name, task) | _rates(now, before, partition_id, task_name)
        for partition_id, partition in now.stats.items()
        for task_name, task in partition["tasks"].items()
    ]
    return table_of(escaped(title), rows, _LEFT)


def _cells(partition_id: str, partition: Mapping[str, Any], task_name: str, task: Mapping[str, Any]) -> dict[str, str]:
    room = "" if partition["capacity"] is None else f"/{number(partition['capacity'])}"
    ready = task["ready"]
    if len(ready) > 1:
        told = "\n".join(f"{escaped(fields)}: {number(count)}" for fields, count in ready.items())
    else:  # "-": without a claim so far, the required fields are unknown
        told = "".join(number(count) for count in ready.values()) or "-"
    dropped = {reason: count for reason, count in partition["gone"].items() if reason != CONSUMED}
    waiting = [f"{number(count)} {call}" for call, count in partition["waiting"].items() if count]
    return {
        "partition": escaped(partition_id) + (" (sealed)" if partition["sealed"] else ""),
        "task": escaped(task_name),
        "produced": number(partition["produced"]),
        "resident": f"{number(partition['resident'])}{room}",
        "ready": told,
        "leased": number(task["leased"]),
        "acked": number(task["acked"]),
        "redelivered": number(task["redelivered"]),
        "dropped": "\n".join(f"{escaped(reason)}: {number(count)}" for reason, count in dropped.items()) or "0",
        "waiting": "\n".join(waiting) or "0",
        "bytes": f"{size(partition['bytes'])} / {size(partition['stored_bytes'])}",
        "age p50": quantile(task["age"], 0.5),
        "lag p95": quantile(task["lag"], 0.95),
        "put ms": latency(partition["put_latency"]),
        "claim ms": latency(task["claim_latency"]),
    }


def _rates(now: Look, before: Look | None, partition_id: str, task_name: str) -> dict[str, str]:
    """Samples per second since the look before; "-" for a new or restarted partition."""
    if before is None:
        return {}
    seconds = now.at - before.at
    new, old = now.stats[partition_id], before.stats.get(partition_id)
    if old is None or task_name not in old["tasks"] or seconds <= 0:
        return {"put/s": "-", "claim/s": "-"}
    put = new["produced"] - old["produced"]
    claimed = new["tasks"][task_name]["claimed"] - old["tasks"][task_name]["claimed"]
    return {name: "-" if one < 0 else number(one / seconds, 3) for name, one in (("put/s", put), ("claim/s", claimed))}


def quantile(histogram: Mapping[str, Any], share: float) -> str:
    """The upper end of the quantile's bucket; "-" for an empty histogram."""
    if not any(histogram["counts"]):
        return "-"
    end = _end(histogram, share)
    return f"> {number(histogram['bounds'][-1])} s" if end == math.inf else f"<= {number(end)} s"


def latency(histogram: Mapping[str, Any]) -> str:
    """Median and 95th percentile in ms, as upper ends of their buckets; "-" for an empty histogram."""
    if not any(histogram["counts"]):
        return "-"
    return " / ".join(number(1000 * _end(histogram, share)) for share in (0.5, 0.95))


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
            return f"{number(nbytes, 3)} {unit}"
        nbytes /= 1000
    return f"{number(nbytes, 3)} TB"
