"""``tunegym serve``: a live system for experiments elsewhere."""

from __future__ import annotations

import contextlib
import secrets
import sys
from pathlib import Path

import typer

from tunegym.app.serving import Offer, Service, checked_class, is_loopback
from tunegym.cli.terminal import guarded, heard, say_stopping
from tunegym.core.escaping import escaped
from tunegym.core.stop import StopFlag
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.servers.tokens import served_token


def main(reference: str, host: str, port: int, token_file: Path | None, max_connections: int) -> int:
    """Serve until a signal; where, on stdout, and what happens, on stderr."""
    return guarded(lambda: _serve(reference, host, port, token_file, max_connections))


def _serve(reference: str, host: str, port: int, token_file: Path | None, max_connections: int) -> int:
    folder = Path.cwd()
    gym_class = checked_class(reference, folder)
    token = served_token(token_file)
    fresh = token is None
    offer = Offer(reference, folder, host, port, token or secrets.token_hex(16), max_connections)
    service = Service(offer, gym_class, _say)
    if fresh:
        _say(f"clients need this token:\nexport {TOKEN_VARIABLE}={offer.token}")
    if not is_loopback(host):
        _say("warning: others can connect, and what travels is not encrypted; over a network use an SSH tunnel")
    stop = StopFlag()
    with heard(lambda: _stop(stop)):
        typer.echo(escaped(f"serving {reference} on {service.address}"))
        sys.stdout.flush()
        service.run(stop)
    stop.close()
    return 0


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        typer.echo("\n".join(escaped(line) for line in text.splitlines()), err=True)


def _stop(stop: StopFlag) -> None:
    """Asked once it stops; a second time leaves nobody time."""
    if not stop.is_set:
        say_stopping("servers are closed")
    stop.set()
