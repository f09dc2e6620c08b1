"""The process of one server: run as a script by ``spawning``, with the numbers of its descriptors.

It ends when the other side of the conversation hangs up, and at once when the driver is gone, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn


def main(conversation: int, setup: int, lifeline: int) -> None:
    """Serve one conversation to its end."""
    from tunegym.core.child_main import end_with

    for fd in (conversation, setup, lifeline):
        os.set_inheritable(fd, False)
    end_with(lifeline)

    import faulthandler
    import socket

    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]

    from tunegym.core.references import resolve
    from tunegym.core.wire import Connection, decode
    from tunegym.tuning.servers.serving import serve

    with os.fdopen(setup, "rb") as file:
        told = decode(file.read())
    channel = Connection(socket.socket(fileno=conversation))
    reference = told["reference"]

    def build() -> Any:
        return resolve(reference, tuple(told["paths"]))(**told["arguments"])

    serve(channel, reference, build)


def leave(code: Any) -> NoReturn:
    """Exit without waiting for the server's threads; what it started is ended by whoever started us."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[4])
    try:
        main(*map(int, sys.argv[1:4]))
    except SystemExit as error:
        leave(error.code)
    except BaseException:
        import traceback

        traceback.print_exc()
        leave(1)
    leave(0)
