"""``tunegym serve``: a live system for experiments elsewhere."""

from __future__ import annotations

import secrets
from pathlib import Path

from tunegym.cli.terminal import heard, note, say, say_stopping
from tunegym.core.stop import StopFlag
from tunegym.core.text import escaped
from tunegym.tuning.servers.listener import Offer, ServerListener, checked_class, is_loopback
from tunegym.tuning.servers.protocol import SHORTEST_TOKEN, TOKEN_VARIABLE, read_token


def serve(reference: str, host: str, port: int, token_file: Path | None, max_connections: int) -> int:
    """Serve until a signal. The address goes to stdout, events to stderr."""
    folder = Path.cwd()
    gym_class = checked_class(reference, folder)
    token = read_token(token_file, shortest=SHORTEST_TOKEN)
    offer = Offer(gym_class, folder, token or secrets.token_hex(16), max_connections)
    listener = ServerListener(offer, host, port, note)
    if token is None:
        note(f"clients need this token:\nexport {TOKEN_VARIABLE}={offer.token}")
    if not is_loopback(host):
        note("warning: others can connect, and what travels is not encrypted; over a network use an SSH tunnel")
    stop = StopFlag()
    with heard(lambda: _stop(stop)):
        say(escaped(f"serving {reference} on {listener.address}"))
        listener.run(stop)
    stop.close()
    return 0


def _stop(stop: StopFlag) -> None:
    """Stop; asked a second time, at once."""
    if not stop.is_set:
        say_stopping("servers are closed")
    stop.set()
