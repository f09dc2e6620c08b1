"""The Ray runner's part on a node: an actor that runs one trial after another.

The actor holds a trial's resources for as long as the driver needs a slot. It runs jobs with a ``LocalRunner``, whose
workers stay warm between trials. When the driver dies, Ray kills the actor, and all that it started dies with it: a
worker process by its lifeline, a command by its launcher.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import queue
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunegym.core.errors import RunnerError
from tunegym.core.processes import process_handle, process_start_time
from tunegym.tuning.model.trial import CallJob, Job, JobHandle, JobResult
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.runners.shipping import (
    Scratch,
    Shipment,
    SmallFiles,
    in_pieces,
    pack,
    relocated,
    remove,
    take_small,
    unpack,
)

VERSION = importlib.metadata.version("tunegym")
INLINE = 64 * 1024
"""Files up to this size come with the result, as long as Ray sends it without its object store."""


@dataclass(frozen=True)
class Reply:
    """The end of a job: its result, or why there is none, and its files."""

    result: JobResult | None
    broken: tuple[str, str | None] = ("", None)  # message and hint of a ``RunnerError``
    small: SmallFiles | None = None  # the files, if they are few and plain
    files: bytes = b""  # else the begin of a tar stream; neither if the job left no folder
    more: bool = False  # ask ``piece`` for the rest


class _Reports:
    """Carries the values of one job to the driver, and the driver's verdicts back."""

    def __init__(self) -> None:
        self.values: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self.verdicts: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def tell(self, step: int, value: float) -> bool:
        self.values.put((step, value))
        return self.verdicts.get()


class TrialHost:
    """Runs jobs on this node for one driver, one at a time; other calls may come meanwhile.

    Args:
        token: names the run.
        shipment: the scenario's files.
        content: a reference to them, in a list, so that it is fetched only where they aren't yet.
    """

    def __init__(self, token: str, shipment: Shipment, content: list[Any]) -> None:
        self._scratch = Scratch()
        self._scratch.sweep()
        self._runner = LocalRunner(f"{token}/{uuid.uuid4().hex}", kill_orphans=True)
        self._places = {shipment.scenario_dir: str(self._unpacked(shipment, content))}
        self._home = self._scratch.use(f"host-{uuid.uuid4().hex[:12]}")
        self._reports: dict[int, _Reports] = {}
        self._ended = 0
        self._rest: Iterator[bytes] = iter(())
        self._lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """Names the host: ``handle`` is for the journal, ``node`` for people."""
        import ray

        context = ray.get_runtime_context()
        node, pid = context.get_node_id(), os.getpid()
        address = ray.util.get_node_ip_address()
        handle = {"ray": context.get_actor_id(), "node": node, "address": address}
        return {
            "version": VERSION,
            "node": f"{socket.gethostname()} ({address}, {node[:8]})",
            "handle": {**handle, **process_handle(pid, process_start_time(pid) or "")},
        }

    def run(self, number: int, packed: bytes, reports: bool) -> bytes:
        """Run the driver's ``number``-th job to its end; with ``reports``, ``next_report`` must be asked for values.

        A pickled ``Job``, and a pickled ``Reply``: Ray takes longer for values of our classes.
        """
        return pickle.dumps(self._run(number, pickle.loads(packed), reports))

    def _run(self, number: int, job: Job, reports: bool) -> Reply:
        folder = str(self._home / "trial")
        channel = self._channel(number)
        assert channel is not None
        moved = relocated(job, {**self._places, job.folder: folder})
        moved = replace(moved, isolate=True) if isinstance(moved, CallJob) else moved
        try:
            result = self._runner.run(moved, lambda _: None, channel.tell if reports else None)
            if result.ending == "interrupted":  # it runs again later
                remove(folder)
                return Reply(result)
            return self._with_files(result, folder)
        except RunnerError as error:
            return Reply(None, (error.message, error.hint))
        finally:
            with self._lock:
                self._ended = number
                self._reports.pop(number).values.put(None)

    def next_report(self, number: int, verdict: bool | None) -> tuple[int, float] | None:
        """Give the verdict on the last value, if there was one; the job's next value, None after the last one."""
        channel = self._channel(number)
        if channel is None:
            return None
        if verdict is not None:
            channel.verdicts.put(verdict)
        return channel.values.get()

    def piece(self) -> bytes:
        """The next piece of the last job's files; empty after the last one."""
        return next(self._rest, b"")

    def stop(self) -> None:
        """End the running job; no other will run."""
        self._runner.stop()
        for channel in list(self._reports.values()):
            channel.verdicts.put(True)

    def close(self) -> None:
        """Release everything. No job may be running."""
        self._runner.close()
        remove(str(self._home))
        self._scratch.close()

    def _channel(self, number: int) -> _Reports | None:
        """The channel of a job, which the driver may ask before the job is here; None once it has ended."""
        with self._lock:
            return self._reports.setdefault(number, _Reports()) if number > self._ended else None

    def _with_files(self, result: JobResult, folder: str) -> Reply:
        if not Path(folder).exists():
            return Reply(result)
        if (small := take_small(folder, INLINE)) is not None:
            return Reply(result, small=small)
        pieces = in_pieces(pack(folder), INLINE)
        first = next(pieces)
        if len(first) < INLINE:
            remove(folder)
            return Reply(result, files=first)
        self._rest = self._pieces_of(pieces, folder)
        return Reply(result, files=first, more=True)

    @staticmethod
    def _pieces_of(pieces: Iterator[bytes], folder: str) -> Iterator[bytes]:
        yield from in_pieces(pieces)
        remove(folder)

    def _unpacked(self, shipment: Shipment, content: list[Any]) -> Path:
        import ray

        def fill(folder: Path) -> None:
            packed: Any = ray.get(content[0])
            unpack(iter([packed]), str(folder))

        return self._scratch.use(f"files-{shipment.digest}", fill)


def end_leftovers(token: str, handles: Iterable[JobHandle]) -> int:
    """End what a killed driver's hosts left running on this machine, the hosts included."""
    runner = LocalRunner(token)
    try:
        return runner.end_leftovers(handles)
    finally:
        runner.close()
