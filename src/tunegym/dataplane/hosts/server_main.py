"""The process of a ledger host: ``python -m tunegym.dataplane.hosts.server_main FOLDER LINGER_S FD``.

It writes ``null`` to ``FD`` once it listens, or the error for which it can't.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import orjson

from tunegym.dataplane.errors import DataPlaneError, StorageError
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.keeper import Keeper
from tunegym.dataplane.hosts.operations import as_plain
from tunegym.dataplane.hosts.server import Server
from tunegym.dataplane.hosts.starting import SEGMENTS, SOCKET, open_own, short_path
from tunegym.dataplane.ledger.snapshot import restore, snapshot
from tunegym.dataplane.storage.live import LiveSegments

logger = logging.getLogger(__name__)

HAND_OVER_S = 10.0


def main() -> int:
    """Serve the plane in a folder until nobody needs it; 0, or 1 if that can't be."""
    folder, linger_s, listens = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    if os.fork():  # whoever started this waits for it, and must not have to wait for the host
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    lock = open_own(folder / "host.lock", os.O_RDWR)
    if not _locked(lock):
        return 0  # another one is alive
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def build() -> Keeper:
        keeper = Keeper(LedgerJournal(folder), LiveSegments(folder / SEGMENTS), snapshot, restore)
        repeated = keeper.recover()
        logger.info("the ledger is there, %d changes were repeated", repeated)
        return keeper

    place: tuple[int, int] | None = None
    try:
        try:
            server = Server(
                listener,
                build,
                os.getuid(),
                linger_s,
                sys.stderr.fileno(),
                lambda: place is None or _here(folder, place),
            )
            place = _listen(listener, folder)
        except DataPlaneError as error:
            _tell(listens, error)
            raise
        _tell(listens, None)
        server.run()
    except DataPlaneError as error:
        logger.error("%s", error)  # noqa: TRY400 - it says all there is to say
        return 1
    finally:
        if place is None or _here(folder, place):  # not that of another plane in its place
            with contextlib.suppress(OSError):
                (folder / SOCKET).unlink(missing_ok=True)
        listener.close()
    logger.info("the host ends: nobody has needed it for %g s, or its plane is gone", linger_s)
    return 0


def _here(folder: Path, place: tuple[int, int]) -> bool:
    """Whether the folder still has the socket that was made."""
    try:
        found = (folder / SOCKET).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it can't be told
    return (found.st_dev, found.st_ino) == place


def _listen(listener: socket.socket, folder: Path) -> tuple[int, int]:
    """Listen; which file the socket is."""
    try:
        with short_path(folder) as place:
            (folder / SOCKET).unlink(missing_ok=True)  # a dead host's
            listener.bind(place)
        (folder / SOCKET).chmod(0o600)
        listener.listen(128)
        made = (folder / SOCKET).stat()
    except OSError as error:
        raise StorageError(f"{folder / SOCKET} can't be used: {error.strerror}", hint="is the folder yours?") from error
    return made.st_dev, made.st_ino


def _tell(listens: int, error: DataPlaneError | None) -> None:
    """Tell whoever started this, and may be gone by now."""
    with contextlib.suppress(OSError):
        os.write(listens, orjson.dumps(None if error is None else as_plain(error)))
    os.close(listens)


def _locked(lock: int) -> bool:
    """Take the lock; a host that is just ending has it for a moment longer than its socket."""
    until = time.monotonic() + HAND_OVER_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True


if __name__ == "__main__":
    sys.exit(main())
