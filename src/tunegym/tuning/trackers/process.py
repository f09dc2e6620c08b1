"""A tracker: a child process that follows a journal and sends its items to a sink.

The driver starts it and leaves it behind in bounded time; whatever happens to it can neither delay nor fail a trial.
What was not sent is tried again, and nothing is sent twice: every connection starts over with the first item and
passes over those that the sink has, so a resumed session, a sink that was away and a lost answer are one case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, Protocol

import orjson

from tunegym.core.processes import Child, start_python
from tunegym.tuning.stores.reader import JOURNAL
from tunegym.tuning.trackers.feed import Feed, Item, all_items

logger = logging.getLogger(__name__)

QUIET_S = 20.0
"""At the end, how long a tracker may be silent before it is given up."""
LONGEST_S = 60.0
"""At the end, how long one that makes progress, or is still being loaded, may take in all."""
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
TELL_EVERY_S = 1.0
"""A long batch says how far it is; a silent tracker is taken for dead."""
NICENESS = 5
"""Trials are measured beside us: they come first."""
FINISH = b"finish\n"

Message = dict[str, Any]
"""From child to driver: ``ready``, ``sent`` (so far), ``away`` (why), ``back``, ``refused`` (a number, and ``why``),
``gone`` (why), and at the end ``done`` (how many were sent; ``lacks``: how many were refused)."""


class Sink(Protocol):
    """The place that items go to. Anything may raise; it is then opened again before more is sent."""

    def open(self, head: Mapping[str, Any]) -> set[int]:
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
    """What a tracker's process does.

    Attributes:
        name: what warnings call it.
        sink: ``module:Class`` of the sink, which is imported in that process only.
        options: what the sink is built with; plain data.
        env: variables of that process, unless the user has set them.
    """

    name: str
    sink: str
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class TrackerProcess:
    """A tracker as its driver sees it. Nothing here raises; trouble is a warning in the log."""

    def __init__(self, spec: TrackerSpec, folder: Path) -> None:
        self._spec = spec
        self._journal = folder / JOURNAL
        self._sent = 0
        self._complete = False
        self._ready = False
        self._heard = time.monotonic()
        self._ended = threading.Event()
        self._child: Child | None = None
        self._stdin: IO[bytes] | None = None
        try:
            env = {**spec.env, **os.environ}
            self._child = start_python(f"{__name__}:main", marker="", env=env, stdin=PIPE, stdout=PIPE)
            assert self._child.popen is not None
            self._stdin, messages = self._child.popen.stdin, self._child.popen.stdout
            settings = {"journal": str(self._journal), "sink": spec.sink, "options": dict(spec.options)}
            self._say(orjson.dumps(settings, option=orjson.OPT_APPEND_NEWLINE))  # no argument: it may hold a password
        except Exception as error:
            logger.warning("tracker %s can't be started: %s; trials go on without it", spec.name, error)
            self._ended.set()
        else:
            threading.Thread(target=self._listen, args=(messages,), name=f"tunegym-{spec.name}", daemon=True).start()

    def ask_to_finish(self) -> None:
        """Nothing follows. Asking again changes nothing."""
        self._say(FINISH)

    def finish(self, *, interrupted: bool = False) -> None:
        """Let it send the rest, in bounded time; warn about items that it lacks."""
        self.ask_to_finish()
        begun = self._heard = time.monotonic()
        longest = INTERRUPTED_S if interrupted else LONGEST_S
        while not self._ended.wait(0.05):
            now = time.monotonic()
            if now - begun > longest or (self._ready and now - self._heard > QUIET_S):
                break
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
        if self._stdin is not None:
            with contextlib.suppress(OSError):
                self._stdin.close()

    def _say(self, line: bytes) -> None:
        if self._child is not None and self._stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stdin.write(line)
                self._stdin.flush()

    def _warn_of_missing(self) -> None:
        try:
            items = all_items(self._journal)
        except Exception as error:  # a damaged journal is reported by its writer
            logger.debug("%s can't be counted: %s", self._journal, error)
            return
        lacks = len(items) - self._sent
        if lacks > 0:
            what = "points" if items[0].trial is None else "trials"
            end = f"{what} were not sent; the journal has them, and a resume sends them"
            logger.warning("tracker %s: %d of %d %s", self._spec.name, lacks, len(items), end)

    def _listen(self, messages: IO[bytes]) -> None:
        """On its own thread: hear the process's messages, to its end."""
        try:
            with messages:
                for line in messages:
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


# in the child ---------------------------------------------------------------------------------------------


def main() -> None:
    """Follow a journal until the driver says ``finish``. The settings come as one line of JSON on stdin."""
    settings: dict[str, Any] = orjson.loads(sys.stdin.buffer.readline())
    # Libraries print; our messages go through their own descriptor.
    channel = os.dup(1)
    os.dup2(2, 1)
    finish = threading.Event()

    def listen() -> None:
        for line in sys.stdin.buffer:
            if line == FINISH:
                finish.set()

    def tell(message: Message) -> None:
        try:
            os.write(channel, orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        except OSError:
            os._exit(1)  # the driver is gone

    threading.Thread(target=listen, name="tunegym-listen", daemon=True).start()
    code = 1
    try:
        os.nice(NICENESS)
        module, _, name = settings["sink"].partition(":")
        sink = getattr(import_module(module), name)(**settings["options"])
        tell({"ready": True})
        code = 0 if Follower(Feed(Path(settings["journal"])), sink, tell, finish).run() else 1
    except BaseException as error:  # the driver reports it, whatever it is
        tell({"gone": f"{type(error).__name__}: {error}"})
    os._exit(code)  # threads of libraries must not keep us


class Follower:
    """Sends every item of a journal to a sink, until it is asked to finish.

    Args:
        feed: the journal.
        sink: where items go.
        tell: hears what happens; must not raise.
        finish: once set, what the journal holds is sent, with no second try, and ``run`` returns.
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

    def run(self) -> bool:
        """Follow to the end; whether everything was sent."""
        while True:
            finishing = self._finish.is_set()  # asked first: what was written before is then read after
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
        """Send what is pending; False if that failed."""
        try:
            if not self._connected:
                self._there = self._sink.open(self._feed.head) | self._refused
                self._connected = True
                self._pending = []
                self._feed.rewind()
                return True
            told = time.monotonic()
            for number in self._sink.send([item for item in self._pending if item.number not in self._there]):
                self._there.add(number)
                if time.monotonic() - told > TELL_EVERY_S:
                    told = time.monotonic()
                    self._tell({"sent": self._sent})
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._pending = []
        self._pause = FIRST_PAUSE_S
        self._tell({"sent": self._sent})
        if self._away:
            self._away = False
            self._tell({"back": True})
        return True

    @property
    def _sent(self) -> int:
        return len(self._there) - len(self._refused)

    def _failed(self, error: BaseException) -> None:
        """Say so, once per kind of trouble, and connect again before the next try.

        An item that fails again and again, on a sink that is there, must not keep the others.
        """
        was_connected, self._connected = self._connected, False
        self._away = True
        reason = reason_of(error)
        kind = _CHANGING.sub("#", reason)
        if kind not in self._reported:
            self._reported.add(kind)
            self._tell({"sent": self._sent})
            self._tell({"away": reason})
        first = next((item.number for item in self._pending if item.number not in self._there), None)
        if was_connected and first is not None:
            number, times = self._failures
            self._failures = first, times + 1 if first == number else 1
            if self._failures[1] >= TRIES:
                self._refused.add(first)
                self._tell({"refused": first, "why": reason})

    def _close(self) -> bool:
        try:
            self._sink.close()
        except (Exception, SystemExit) as error:
            self._failed(error)
            return False
        self._tell({"done": self._sent, "lacks": len(self._refused)})
        return not self._refused


_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_CHANGING = re.compile(r"0x[0-9a-f]+|[0-9]+")
_LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    """The first cause in one line: the layers in between say no more, at length."""
    seen: set[int] = set()
    while (cause := error.__cause__ or error.__context__) is not None and id(error) not in seen:
        seen.add(id(error))
        error = cause
    text = " ".join(str(error).split())
    text = _CREDENTIALS.sub("//", f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
