"""Serving a live system to others: one process for every connection, so that none can harm another."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunegym.core.child import milliseconds
from tunegym.core.errors import ConfigError, Problem, TunegymError, UnresolvedReferenceError
from tunegym.core.stop import StopFlag
from tunegym.core.wire import keep_alive
from tunegym.tuning.servers.guest import Guest, Served
from tunegym.tuning.servers.protocol import RefusedError
from tunegym.tuning.workloads.signature import ClassError, GymClass, describe_class

STRANGERS = 32
"""How many may be about to say who they are at a time."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served, and to whom.

    Attributes:
        reference: ``module:Class``; modules in ``folder`` come before all others.
        folder: usually the current one.
        host: name or address to listen on.
        port: 0 for any that is free.
        token: what a client must know.
        max_connections: how many servers run at a time.
        output: descriptor that servers print to.
    """

    reference: str
    folder: Path
    host: str
    port: int
    token: str
    max_connections: int = 8
    output: int = 2


def checked_class(reference: str, folder: Path) -> GymClass:
    """The class that is to be served. Raises ``ConfigError`` if it can't be."""
    try:
        return describe_class(reference, (str(folder),))
    except (UnresolvedReferenceError, ClassError) as error:
        problem = Problem("MODULE:CLASS", error.message, found=reference, hint=error.hint)
        raise ConfigError("tunegym serve", [problem]) from None


class Service:
    """Listens, lets clients in, and watches over their servers. One thread runs it.

    Args:
        offer: what is served.
        gym_class: the class of it, checked.
        say: told of what happens, in one line.

    Raises:
        TunegymError: the address can't be listened on.
    """

    def __init__(self, offer: Offer, gym_class: GymClass, say: Callable[[str], None]) -> None:
        self._offer = offer
        self._say = say
        self._listener = _listening(offer.host, offer.port)
        marker = f"serve-{uuid.uuid4().hex}"
        self._served = Served(gym_class, (str(offer.folder),), offer.token, marker, offer.output)
        self._guests: list[Guest] = []

    @property
    def address(self) -> str:
        """Where to connect to, as a scenario says it."""
        host, port = self._listener.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def run(self, stop: StopFlag) -> None:
        """Serve until ``stop`` is set; set twice, no server is given time to end."""
        try:
            while not stop.is_set:
                self._turn(self._ready([(self._listener.fileno(), select.POLLIN), (stop.fd, select.POLLIN)]))
        finally:
            self._listener.close()
            self._end(stop)

    def _ready(self, others: Sequence[tuple[int, int]]) -> set[int]:
        """Wait; the descriptors on which something happened."""
        poll = select.poll()
        interests = [*others, *(one for guest in self._guests for one in guest.interests())]
        for fd, events in interests:
            poll.register(fd, events)
        deadlines = [guest.deadline for guest in self._guests if guest.deadline is not None]
        pause = min(deadlines) - time.monotonic() if deadlines else None
        if any(guest.process is not None and guest.process.pidfd < 0 for guest in self._guests):
            pause = 0.2 if pause is None else min(pause, 0.2)  # without pidfds, ends are asked for
        return {fd for fd, _ in poll.poll(milliseconds(pause))}

    def _turn(self, ready: set[int]) -> None:
        # Clients first: strangers may wait for the place of one that ends.
        for guest in sorted(self._guests, key=lambda guest: guest.process is None):
            fds = {fd for fd, _ in guest.interests()} & ready
            if guest.process is None:
                self._attend_stranger(guest, bool(fds))
            else:
                self._attend_client(guest, fds)
        if self._listener.fileno() in ready:
            self._accept()

    def _accept(self) -> None:
        try:
            connected, address = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):
                self._say(f"a connection can't be accepted: {error}")
                time.sleep(0.1)  # out of descriptors, most likely: it would be tried again without end
            return
        keep_alive(connected)
        guest = Guest(connected, self._served)
        guest.name = f"{guest.name} from {address[0]}"
        if sum(other.process is None for other in self._guests) >= STRANGERS:
            guest.refuse(RefusedError("too many are about to connect", passing=True))
            return
        guest.greet()
        self._guests.append(guest)

    def _attend_stranger(self, guest: Guest, heard: bool) -> None:
        try:
            if heard:
                guest.hear()
            if guest.introduced and self._has_room():
                guest.let_in()
                assert guest.process is not None
                self._say(f"{guest.name}: served by process {guest.process.pid}")
            elif guest.deadline is not None and time.monotonic() >= guest.deadline:
                if guest.introduced:
                    raise RefusedError("no place became free for it in time", passing=True)
                raise RefusedError("it did not say who it is in time")
        except RefusedError as refusal:
            self._say(f"{guest.name}: refused: {refusal.reason}")
            guest.refuse(refusal)
            self._guests.remove(guest)

    def _has_room(self) -> bool:
        """Whether one more may be let in; False if a place is about to be free. Raises ``RefusedError``."""
        most = self._offer.max_connections
        served = [guest for guest in self._guests if guest.process is not None]
        if len(served) < most:
            return True
        if not any(guest.is_leaving for guest in served):
            reason = f"it already serves {most} connection{'' if most == 1 else 's'}, and no more are allowed"
            raise RefusedError(reason, "serve with a higher --max-connections", passing=True)
        return False

    def _attend_client(self, guest: Guest, ready: set[int]) -> None:
        assert guest.process is not None
        late = guest.deadline is not None and time.monotonic() >= guest.deadline
        if late or guest.process.wait(0.0):
            self._guests.remove(guest)
            self._say(f"{guest.name}: {guest.ended()}")
        elif ready:
            guest.hung_up()

    def _end(self, stop: StopFlag) -> None:
        """Every server has a while to end by itself; then it is ended."""
        for guest in self._guests:
            if guest.process is None:
                guest.close()
            else:
                guest.hung_up()
        self._guests = [guest for guest in self._guests if guest.process is not None]
        while self._guests:
            ready = self._ready([(stop.hurry_fd, select.POLLIN)])
            for guest in list(self._guests):
                if stop.hurry_fd in ready:
                    guest.deadline = time.monotonic()
                self._attend_client(guest, set())


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise TunegymError(f"{host} is nothing to listen on: {error.strerror or error}", hint="try 127.0.0.1") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(STRANGERS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        hint = "choose another --port, or 0 for any that is free"
        raise TunegymError(f"{host}:{port} can't be listened on: {os.strerror(error.errno or 0)}", hint=hint) from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can connect."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(str(address[0]).startswith("127.") or address[0] == "::1" for *_, address in found)
    return False
