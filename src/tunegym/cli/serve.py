"""``tunegym serve``: a live system for experiments elsewhere."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import typer

from tunegym.app.serving import Offer, Service, checked_class, is_loopback
from tunegym.cli.errors import guarded
from tunegym.core.escaping import escaped
from tunegym.tuning.runners.stops import StopFlag
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.servers.tokens import read_token

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPING = b"\nstopping: servers are closed; once more to stop at once\n"


def main(reference: str, host: str, port: int, token_file: Path | None, max_connections: int) -> int:
    """Serve until a signal; where, on stdout, and what happens, on stderr."""
    return guarded(lambda: _serve(reference, host, port, token_file, max_connections))


def _serve(reference: str, host: str, port: int, token_file: Path | None, max_connections: int) -> int:
    folder = Path.cwd()
    gym_class = checked_class(reference, folder)
    token = read_token(token_file)
    fresh = token is None
    offer = Offer(reference, folder, host, port, token or secrets.token_hex(16), max_connections)
    service = Service(offer, gym_class, _say)
    if fresh:
        _say(f"clients need this token:\nexport {TOKEN_VARIABLE}={offer.token}")
    if not is_loopback(host):
        _say("warning: others can connect, and what travels is not encrypted; over a network use an SSH tunnel")
    stop = StopFlag()
    with _caught(stop):
        typer.echo(escaped(f"serving {reference} on {service.address}"))
        sys.stdout.flush()
        service.run(stop)
    stop.close()
    return 0


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        typer.echo("\n".join(escaped(line) for line in text.splitlines()), err=True)


@contextlib.contextmanager
def _caught(stop: StopFlag) -> Iterator[None]:
    """While this lasts, a signal asks to stop; a second one leaves nobody time."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not stop.is_set:
            with contextlib.suppress(OSError):
                os.write(2, _STOPPING)  # not through a stream: the handler may have interrupted a write to it
        stop.set()

    before = {}
    for number in _SIGNALS:
        # nohup asks us to ignore SIGHUP; it stays that way.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
