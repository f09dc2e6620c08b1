"""A tracker: a child process that follows a journal and sends its items to a sink.

The driver starts it and leaves it behind in bounded time; whatever happens to it can neither delay nor fail a trial.
Items that were not sent are tried again, and none is sent twice: every connection starts over with the first item and
passes over those that the sink has, so a resumed session, a sink that was away and a lost answer are one case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from subprocess import PIPE
from typing import IO, Any, Protocol

import msgspec

from tunegym.core.processes import Child, start_python
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.values import masked
from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.trackers.feed import Feed, Item, all_items

logger = logging.getLogger(__name__)

LONGEST_S = 60.0
"""How long a tracker may take to send the rest at the end of an experiment."""
INTERRUPTED_S = 3.0
"""The same when the user wants to stop."""
BATCH = 100
"""How many items are handed over at once."""
LOOK_EVERY_S = 0.2
"""How often the journal is looked at."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""The pause after a failure, which doubles from one to the next."""
TRIES = 3
"""How often an item is tried by a sink that is there and fails on just this one."""
NICENESS = 5
"""Trials are measured beside us: they come first."""

Message = dict[str, Any]
"""From child to driver: ``sent`` is how many items the sink has, ``complete`` that it has all of them; ``warning`` or
``info`` is a text for the log."""


class Sink(Protocol):
    """The place that items go to. Anything may raise; it is then opened again before more is sent."""

    def open(self, head: Head) -> set[int]:
        """Connect; the numbers of the items that it has already. ``head`` is the journal's first record."""
        ...

    def send(self, items: Sequence[Item]) -> Iterator[int]:
        """Send items, and yield the number of each as soon as it is there."""
        ...

    def close(self) -> None:
        """Nothing follows."""
        ...


@dataclass(frozen=True)
class TrackerSpec:
    """The work of a tracker's process."""

    name: str  # what warnings call it
    sink: str  # ``module:Class`` of the sink, which is imported in that process only
    options: Mapping[str, Any] = field(default_factory=dict)  # what the sink is built with; plain data
    env: Mapping[str, str] = field(default_factory=dict)  # variables of that process, unless the user has set them


class TrackerProcess:
    """A tracker as its driver sees it. Nothing here raises; trouble is a warning in the log."""

    def __init__(self, spec: TrackerSpec, folder: Path) -> None:
        self._name = spec.name
        self._journal = folder / JOURNAL
        self._sent = 0
        self._complete = False
        self._ended = threading.Event()
        self._child: Child | None = None
        self._stdin: IO[bytes] | None = None
        settings = {"journal": str(self._journal), "sink": spec.sink, "options": dict(spec.options)}
        try:
            env = {**spec.env, **os.environ}
            self._child = start_python(f"{__name__}:main", marker="", env=env, stdin=PIPE, stdout=PIPE)
            assert self._child.popen is not None
            self._stdin, messages = self._child.popen.stdin, self._child.popen.stdout
            assert self._stdin is not None
            # Not as an argument: they may hold a password.
            self._stdin.write(msgspec.json.encode(settings) + b"\n")
            self._stdin.flush()
        except Exception as error:
            logger.warning("tracker %s can't be started: %s; trials go on without it", spec.name, error)
            self._ended.set()
        else:
            threading.Thread(target=self._listen, args=(messages,), name=f"tunegym-{spec.name}", daemon=True).start()

    def ask_to_finish(self) -> None:
        """Nothing follows: the end of its stdin says so. Asking again changes nothing."""
        if self._stdin is not None:
            with contextlib.suppress(OSError):
                self._stdin.close()

    def finish(self, *, interrupted: bool = False) -> None:
        """Let it send the rest, in bounded time; warn about items that it lacks."""
        self.ask_to_finish()
        self._ended.wait(INTERRUPTED_S if interrupted else LONGEST_S)
        self.kill()
        if not self._complete:
            self._warn_of_missing()

    def kill(self) -> None:
        """End the process now, whatever it does. Calling it twice is fine."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        if child.wait(1.0) == "exited":  # else the kernel holds it, as long as its disk is away
            child.reap()
        self._ended.wait(1.0)  # for its last message
        self.ask_to_finish()

    def _warn_of_missing(self) -> None:
        try:
            items = all_items(self._journal)
        except Exception:  # a damaged journal is reported by its writer
            return
        lacks = len(items) - self._sent
        if lacks > 0:
            what = "points" if items[0].trial is None else "trials"
            end = f"{what} were not sent; the journal has them, and a resume sends them"
            logger.warning("tracker %s: %d of %d %s", self._name, lacks, len(items), end)

    def _listen(self, messages: IO[bytes]) -> None:
        """On its own thread: hear the process's messages, to its end."""
        try:
            with messages:
                for line in messages:
                    message: Message = msgspec.json.decode(line)
                    self._sent = message["sent"]
                    self._complete = message.get("complete", False)
                    for level in ("warning", "info"):
                        if level in message:
                            getattr(logger, level)("tracker %s %s", self._name, message[level])
        except (OSError, ValueError) as error:
            logger.debug("tracker %s can't be heard: %s", self._name, error)
        finally:
            self._ended.set()


# in the child ---------------------------------------------------------------------------------------------


def main() -> None:
    """Follow a journal until stdin ends. The settings come as its only line, in JSON."""
    settings: dict[str, Any] = msgspec.json.decode(sys.stdin.buffer.readline())
    # Libraries print; our messages go through their own descriptor.
    channel = os.dup(1)
    os.dup2(2, 1)
    finish = threading.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        finish.set()

    def tell(message: Message) -> None:
        try:
            os.write(channel, msgspec.json.encode(message) + b"\n")
        except OSError:
            os._exit(1)  # the driver is gone

    threading.Thread(target=listen, name="tunegym-listen", daemon=True).start()
    code, follower = 1, None
    try:
        os.nice(NICENESS)
        sink = resolve_name(settings["sink"])(**settings["options"])
        follower = JournalFollower(Feed(Path(settings["journal"])), sink, tell, finish)
        code = 0 if follower.run() else 1
    except BaseException as error:  # the driver reports it, whatever it is
        why = f"ended: {type(error).__name__}: {error}; trials go on without it"
        tell({"sent": follower.sent if follower is not None else 0, "warning": why})
    os._exit(code)  # threads of libraries must not keep us


class JournalFollower:
    """Sends every item of a journal to a sink, until it is asked to finish.

    Args:
        feed: the journal.
        sink: where items go.
        tell: hears what happens; must not raise.
        finish: once set, the rest of the journal is sent, with no second try, and ``run`` returns.
    """

    def __init__(self, feed: Feed, sink: Sink, tell: Callable[[Message], None], finish: threading.Event) -> None:
        self._feed = feed
        self._sink = sink
        self._tell = tell
        self._finish = finish
        self._pending: list[Item] = []
        self._connected = False
        self._there: set[int] = set()
        self._pause = FIRST_PAUSE_S
        self._reported: set[str] = set()
        self._away = False
        self._failures: tuple[int, int] = (0, 0)
        self._refused: set[int] = set()

    @property
    def sent(self) -> int:
        """How many items the sink has."""
        return len(self._there) - len(self._refused)

    def run(self) -> bool:
        """Follow to the end; whether everything was sent."""
        while True:
            finishing = self._finish.is_set()  # asked first, so that the last records are read after it
            if not self._pending:
                self._pending = self._feed.read(BATCH)
            if not self._pending and finishing:
                self._pending = self._feed.rest()
            if not self._pending:
                if finishing:
                    return self._close()
                self._finish.wait(LOOK_EVERY_S)
            elif not self._send():
                if finishing:
                    return False
                self._finish.wait(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def _send(self) -> bool:
        """Connect, or send the pending items; False if that failed."""
        try:
            if not self._connected:
                assert self._feed.head is not None  # it comes before any item
                self._there = self._sink.open(self._feed.head) | self._refused
                self._connected = True
                self._pending = []
                self._feed.rewind()
                return True
            for number in self._sink.send([item for item in self._pending if item.number not in self._there]):
                self._there.add(number)
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._pending = []
        self._pause = FIRST_PAUSE_S
        self._report(**({"info": "is back"} if self._away else {}))
        self._away = False
        return True

    def _report(self, **message: Any) -> None:
        self._tell({"sent": self.sent, **message})

    def _failed(self, error: BaseException) -> None:
        """Report it, once per kind of trouble, and connect again before the next try.

        An item that fails again and again, on a sink that is there, must not keep the others.
        """
        was_connected, self._connected = self._connected, False
        self._away = True
        reason = reason_of(error)
        kind = reason.partition(":")[0]
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(warning=f"is away: {reason}; trials go on, and it is tried again")
        first = next((item.number for item in self._pending if item.number not in self._there), None)
        if was_connected and first is not None:
            number, times = self._failures
            self._failures = first, times + 1 if first == number else 1
            if self._failures[1] >= TRIES:
                self._refused.add(first)
                self._there.add(first)
                self._report(warning=f"does not take trial {first}: {reason}")

    def _close(self) -> bool:
        try:
            self._sink.close()
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._report(complete=not self._refused)
        return not self._refused


LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    """The type and the text of the first cause in one line, without passwords."""
    seen: set[int] = set()
    while (cause := error.__cause__ or error.__context__) is not None and id(error) not in seen:
        seen.add(id(error))
        error = cause
    text = masked(" ".join(f"{type(error).__name__}: {error}".split())).removesuffix(":")
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."
