"""A tracker as its driver sees it: a process to start, and to leave behind in bounded time."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tunegym.tuning.stores import reader
from tunegym.tuning.trackers import following_main
from tunegym.tuning.trackers.following import BATCH, Message
from tunegym.tuning.trackers.tail import Tail

logger = logging.getLogger(__name__)

QUIET_S = 20.0
"""At the end, how long a tracker may be silent before it is given up."""
LONGEST_S = 60.0
"""At the end, how long one that gets on, or is still being loaded, may take in all."""
INTERRUPTED_S = 3.0
"""The same for somebody who wants to stop."""


@dataclass(frozen=True)
class TrackerSpec:
    """What a tracker's process is to do.

    Attributes:
        name: what warnings call it.
        sink: ``module:Class`` of the sink, which is imported in that process only.
        options: what the sink is built with; plain data.
        env: variables of that process that count unless the user has set them.
    """

    name: str
    sink: str
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class TrackerProcess:
    """Tells a tracker of the trials in a journal, from a process of its own that reads the journal by itself.

    So it costs the driver nothing, and whatever becomes of it can neither delay nor fail a trial. Nothing here
    raises; trouble is a warning in the log.
    """

    def __init__(self, spec: TrackerSpec, folder: Path) -> None:
        self._spec = spec
        self._journal = folder / reader.JOURNAL
        self._sent = 0
        self._complete = False
        self._ready = False
        self._heard = time.monotonic()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = _started(spec, self._journal)
        except Exception as error:
            logger.warning("tracker %s can't be started: %s; trials go on without it", spec.name, error)
            self._ended.set()
        else:
            threading.Thread(target=self._listen, name=f"tunegym-{spec.name}", daemon=True).start()

    def finish(self, *, interrupted: bool = False) -> None:
        """Let it send the rest, in bounded time; say how many trials it lacks, if any."""
        self.ask_to_finish()
        begun = time.monotonic()
        longest = INTERRUPTED_S if interrupted else LONGEST_S
        self._heard = begun
        while not self._ended.wait(0.05):
            now = time.monotonic()
            if now - begun > longest or (self._ready and now - self._heard > QUIET_S):
                break
        self.kill()
        if not self._complete:
            self._count_missing()

    def kill(self) -> None:
        """End the process now, whatever it does. Calling it twice is fine."""
        process = self._process
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it, as long as its disk is away
                process.wait(1.0)
            self._ended.wait(1.0)  # for what it said last
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            self._process = None

    def ask_to_finish(self) -> None:
        """Nothing follows. Asking again changes nothing."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(f"{following_main.FINISH}\n".encode())
                self._process.stdin.flush()

    def _count_missing(self) -> None:
        try:
            closed = _count(self._journal)
        except Exception as error:  # the journal's own trouble is told by whoever writes it
            logger.debug("%s can't be counted: %s", self._journal, error)
            return
        if closed > self._sent:
            logger.warning(
                "tracker %s: %d of %d %s were not sent; the journal has them, and a resume sends them",
                self._spec.name,
                closed - self._sent,
                closed,
                "points" if (reader.head_of(self._journal) or {}).get("live") else "trials",
            )

    def _listen(self) -> None:
        """On a thread of its own: hear what the process has to say, to its end."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    self._heard = time.monotonic()
                    self._hear(orjson.loads(line))
        except (OSError, ValueError) as error:
            logger.debug("tracker %s can't be heard: %s", self._spec.name, error)
        finally:
            self._ended.set()

    def _hear(self, message: Message) -> None:
        name = self._spec.name
        if "ready" in message:
            self._ready = True
        elif "sent" in message:
            self._sent = message["sent"]
        elif "done" in message:
            self._sent, self._complete = message["done"], not message["lacks"]
        elif "away" in message:
            logger.warning("tracker %s is away: %s; trials go on, and it is tried again", name, message["away"])
        elif "back" in message:
            logger.info("tracker %s is back", name)
        elif "refused" in message:
            logger.warning("tracker %s does not take trial %d: %s", name, message["refused"], message["why"])
        elif "gone" in message:
            logger.warning("tracker %s ended: %s; trials go on without it", name, message["gone"])


def _count(journal: Path) -> int:
    """How many trials, or points of a live experiment, there are to be sent."""
    if not (reader.head_of(journal) or {}).get("live"):
        return reader.scan(journal).closed
    tail = Tail(journal)
    count = 0
    while found := tail.read(BATCH):
        count += len(found)
    return count + len(tail.rest())


def _started(spec: TrackerSpec, journal: Path) -> subprocess.Popen[bytes]:
    settings = {"journal": str(journal), "sink": spec.sink, "options": dict(spec.options)}
    process = subprocess.Popen(
        # -P: the folder that we happen to be in is not for importing from.
        [sys.executable, "-P", "-m", following_main.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Not in our group: a Ctrl-C is for the driver, which then asks us to finish.
        start_new_session=True,
        env={**spec.env, **os.environ},
    )
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(settings, option=orjson.OPT_APPEND_NEWLINE))
    process.stdin.flush()
    return process
