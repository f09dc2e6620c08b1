"""The process of one tracker. What it is to do comes as one line of JSON on stdin.

It ends by itself: in good order after the line ``finish`` on stdin, at once when stdin ends without it, as it does
when whoever started it is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from tunegym.tuning.trackers.following import Follower, Message, Sink
from tunegym.tuning.trackers.tail import Tail

FINISH = "finish"
NICENESS = 5
"""Trials are measured beside us: they come first."""


def main() -> int:
    """Follow until told to finish; 0 if everything was sent."""
    settings: dict[str, Any] = orjson.loads(sys.stdin.readline())  # no argument: it may hold a password
    # Libraries print; what we tell goes through a descriptor of its own.
    channel = os.dup(1)
    os.dup2(2, 1)
    finish = threading.Event()
    threading.Thread(target=_listen, args=(finish,), name="tunegym-listen", daemon=True).start()
    try:
        os.nice(NICENESS)
        sink = _sink(settings)
        _tell(channel, {"ready": True})
        follower = Follower(Tail(Path(settings["journal"])), sink, lambda message: _tell(channel, message), finish)
        code = 0 if follower.run() else 1
    except BaseException as error:  # whatever it is, whoever started us is to hear of it
        _tell(channel, {"gone": f"{type(error).__name__}: {error}"})
        code = 1
    os._exit(code)  # threads of libraries must not keep us


def _sink(settings: dict[str, Any]) -> Sink:
    """The sink that ``settings`` name as ``module:Class``, built with their ``options``."""
    module, _, name = settings["sink"].partition(":")
    return getattr(import_module(module), name)(**settings["options"])


def _listen(finish: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == FINISH:
            finish.set()
    if not finish.is_set():
        os._exit(1)


def _tell(channel: int, message: Message) -> None:
    try:
        os.write(channel, orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    except OSError:
        os._exit(1)  # nobody hears us any more


if __name__ == "__main__":
    main()
