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
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tunegym.core.processes import process_handle, process_start_time
from tunegym.tuning.model.trial import CallJob, Job
from tunegym.tuning.runners.command import make_fresh
from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.runners.shipment import Entry, ScratchFolder, next_batch, read_folder, relocated, write_folder

VERSION = importlib.metadata.version("tunegym")


class TrialHost:
    """Runs jobs on this node for one driver, one at a time; other calls may come meanwhile.

    Args:
        token: names the run.
        scenario_dir: where the scenario's files lie at the driver.
        files: the files.
    """

    def __init__(self, token: str, scenario_dir: str, files: list[Entry]) -> None:
        self._scratch = ScratchFolder()
        self._runner = LocalRunner(f"{token}/{uuid.uuid4().hex}", kill_orphans=True)
        self._places = {scenario_dir: str(self._scratch.path / "files")}
        write_folder(files, self._places[scenario_dir])
        self._values: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[bool | None] = queue.SimpleQueue()  # None when the job is stopped
        self._verdict: bool | None = False
        self._files: Iterator[Entry] = iter(())

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

    def run(self, packed: bytes, reports: bool) -> bytes:
        """Run a job to its end: its result, its first files, and whether there are more.

        With ``reports``, ask ``next_report`` until there is none. Job and answer are pickled: Ray takes longer for
        values of our classes. Raises ``RunnerError``.
        """
        try:
            job: Job = pickle.loads(packed)
            folder = str(self._scratch.path / "trial")
            moved = relocated(job, {**self._places, job.folder: folder})
            moved = replace(moved, isolate=True) if isinstance(moved, CallJob) else moved
            result = self._runner.run(moved, lambda _: None, self._report if reports else None)
        finally:
            if reports:
                self._values.put(None)
        if result.ending == "pruned" and self._verdict is None:
            result = replace(result, ending="interrupted")
        if result.ending == "interrupted":  # it runs again later
            make_fresh(folder)
        self._files = self._take_files(folder)
        return pickle.dumps((result, *self.next_files()))

    def _take_files(self, folder: str) -> Iterator[Entry]:
        yield from read_folder(folder)
        make_fresh(folder)

    def next_files(self) -> tuple[list[Entry], bool]:
        """The next files of the last job, and whether there may be more."""
        return next_batch(self._files)

    def _report(self, step: int, value: float) -> bool:
        self._values.put((step, value))
        self._verdict = self._verdicts.get()
        return self._verdict is not False

    def next_report(self, verdict: bool | None) -> tuple[int, float] | None:
        """Give the verdict on the last value, if there was one; the job's next value, None after the last one."""
        if verdict is not None:
            self._verdicts.put(verdict)
        return self._values.get()

    def stop(self) -> None:
        """End the running job; no other will run."""
        self._runner.stop()
        self._verdicts.put(None)

    def close(self) -> None:
        """Release everything. No job may be running."""
        self._runner.close()
        self._scratch.close()
