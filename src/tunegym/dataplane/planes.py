"""Finding a plane by its URL: ``connect`` makes it if need be, ``attach`` only joins."""

from __future__ import annotations

import os
import threading
import uuid
from functools import partial
from pathlib import Path

from tunegym.dataplane.client import LEASE_S, DataPlaneClient
from tunegym.dataplane.errors import NoPlaneError, SpecError
from tunegym.dataplane.hosts.in_process import InProcessHost, SharedLedger
from tunegym.dataplane.storage.memory import MemoryStorage
from tunegym.dataplane.tags import is_unicode

LINGER_S = 30.0
"""How long a host of its own stays when its last client is gone: the plane is in the folder, whoever hosts it."""

_LONGEST_S = 1e9
_MEMORY = "memory://"
_MMAP = "mmap://"


class _InMemory:
    """The planes in the memory of this process, by name."""

    def __init__(self) -> None:
        self.planes: dict[str, SharedLedger[MemoryStorage]] = {}
        self.guard = threading.Lock()


_in_memory = _InMemory()
os.register_at_fork(after_in_child=_in_memory.__init__)  # they are the parent's


def connect(url: str, *, lease_s: float = LEASE_S, linger_s: float = LINGER_S) -> DataPlaneClient:
    """A client of the plane at ``url``, which is made if there is none.

    Args:
        url: ``memory://name`` for threads of this process, ``mmap:///folder`` for processes of this machine.
        lease_s: how long this client's claims last without ``extend``, while its process lives.
        linger_s: how long a host process stays without clients.
    """
    _check(url, lease_s, linger_s)
    if url.startswith(_MMAP):
        from tunegym.dataplane.hosts.starting import bootstrap

        bootstrap(_folder(url))
    return _joined(url, lease_s, linger_s, make=True)


def attach(url: str, *, lease_s: float = LEASE_S, linger_s: float = LINGER_S) -> DataPlaneClient:
    """A client of the plane that is at ``url``. Raises ``NoPlaneError`` at once if there is none."""
    _check(url, lease_s, linger_s)
    if url.startswith(_MMAP):
        from tunegym.dataplane.hosts.starting import check

        check(_folder(url))
    return _joined(url, lease_s, linger_s, make=False)


def _check(url: str, lease_s: float, linger_s: float) -> None:
    if not isinstance(url, str) or not url.startswith((_MEMORY, _MMAP)):
        raise SpecError(f"{url!r:.200} is no plane's URL", hint="write memory://name or mmap:///folder")
    for name, seconds in (("lease_s", lease_s), ("linger_s", linger_s)):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_S:
            raise SpecError(f"{name} is {seconds!r:.60}", hint=f"give seconds above 0, at most {_LONGEST_S:g}")


def _joined(url: str, lease_s: float, linger_s: float, *, make: bool) -> DataPlaneClient:
    if url.startswith(_MEMORY):
        return _joined_in_memory(url.removeprefix(_MEMORY), lease_s, make=make)
    from tunegym.dataplane.hosts.connection import SocketHost
    from tunegym.dataplane.hosts.starting import SEGMENTS, reach
    from tunegym.dataplane.storage.mmap import MmapStorage

    folder = _folder(url)
    host = SocketHost(partial(reach, folder, linger_s))
    try:
        return DataPlaneClient(host, MmapStorage(folder / SEGMENTS), host.name, lease_s)
    except BaseException:
        host.close()
        raise


def _joined_in_memory(name: str, lease_s: float, *, make: bool) -> DataPlaneClient:
    if not name:
        raise SpecError("memory:// needs a name", hint="write for example memory://rollouts")
    with _in_memory.guard:
        shared = _in_memory.planes.get(name)
        if shared is None:
            if not make:
                raise NoPlaneError(
                    f"there is no plane memory://{name} in this process",
                    hint="connect() makes one, attach() only joins",
                )
            shared = _in_memory.planes[name] = SharedLedger(MemoryStorage())
        shared.users += 1
    owner = uuid.uuid4().hex
    host = InProcessHost(shared, owner, shared.storage.free, partial(_left, name, shared))
    return DataPlaneClient(host, shared.storage, owner, lease_s)


def _left(name: str, shared: SharedLedger[MemoryStorage]) -> None:
    """With its last client a plane in memory is gone."""
    with _in_memory.guard:
        shared.users -= 1
        if shared.users == 0 and _in_memory.planes.get(name) is shared:
            del _in_memory.planes[name]


def _folder(url: str) -> Path:
    folder = Path(url.removeprefix(_MMAP))
    if not folder.is_absolute() or not is_unicode(url) or "\0" in url:
        raise SpecError(f"{url!r:.200} names no absolute folder", hint="write mmap:///folder, with three slashes")
    return folder
