"""Planes by URL: ``connect`` makes the plane if needed, ``attach`` only joins.

The scheme of a URL names a backend: a ledger host plus a storage. Backends, storages and filters are found by name:
the built-in ones here, others through the entry-point groups ``tunegym.planes``, ``tunegym.storages`` and
``tunegym.filters``. A backend's entry point is an ``Opener``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tunegym.core.references import resolve
from tunegym.dataplane.client import DataPlaneClient
from tunegym.dataplane.errors import SpecError
from tunegym.dataplane.filters import BaseRolloutFilter
from tunegym.dataplane.hosts.operations import Host
from tunegym.dataplane.model import is_unicode
from tunegym.dataplane.storage import Storage

LINGER_S = 30.0
"""How long the host process of a plane stays without clients. The plane itself stays in its folder."""
TIMEOUT_S = 30.0
"""How long a call without a ``timeout_s`` may take."""
_LONGEST_S = 1e9

Group: TypeAlias = Literal["planes", "storages", "filters"]
BUILT_IN: Mapping[Group, Mapping[str, str]] = {
    "planes": {
        "memory": "tunegym.dataplane.hosts.local:open_plane",
        "mmap": "tunegym.dataplane.hosts.client:open_plane",
        "tq": "tunegym.dataplane.hosts.ray_actor:open_plane",
    },
    "storages": {
        "memory": "tunegym.dataplane.storage.memory:MemoryStorage",
        "mmap": "tunegym.dataplane.storage.mmap:MmapStorage",
        "tq": "tunegym.dataplane.storage.transfer_queue:TransferQueueStorage",
    },
    "filters": {
        "staleness": "tunegym.dataplane.filters:StalenessFilter",
        "tags": "tunegym.dataplane.filters:TagFilter",
        "groups": "tunegym.dataplane.filters:GroupFilter",
        "all": "tunegym.dataplane.filters:All",
    },
}


class Plane(NamedTuple):
    """An open backend for one client."""

    host: Host
    storage: Storage
    owner: str  # the name of the client at the host
    url: str = ""  # by which other processes attach, if it is another than the given one


class Opener(Protocol):
    """Opens a backend for one client."""

    def __call__(self, address: str, *, make: bool, linger_s: float, timeout_s: float) -> Plane:
        """Open the plane at ``address``, the URL without its scheme.

        Args:
            address: where the plane is.
            make: make the plane if there is none; otherwise raise ``NoPlaneError`` at once.
            linger_s: how long a host process stays without clients.
            timeout_s: how long a call without its own time may take.
        """
        ...


def connect(
    url: str, *, lease_s: float | None = None, linger_s: float = LINGER_S, timeout_s: float = TIMEOUT_S
) -> DataPlaneClient:
    """A client of the plane at ``url``, which is made if there is none.

    Args:
        url: ``memory://name`` for the threads of this process, ``mmap:///folder`` for the processes of this machine,
            ``tq://name?address=...`` for those of a Ray cluster.
        lease_s: a visibility timeout: a claim of this client that is neither settled nor extended for so long is given
            back, although the client is there. Time in which the plane's host does not run does not count. None for no
            such timeout: claims last while the client is connected.
        linger_s: how long a host process stays without clients.
        timeout_s: how long connecting, and each call that takes no ``timeout_s`` itself, waits for the plane's host.
    """
    return _open(url, lease_s, {"linger_s": linger_s, "timeout_s": timeout_s}, make=True)


def attach(
    url: str, *, lease_s: float | None = None, linger_s: float = LINGER_S, timeout_s: float = TIMEOUT_S
) -> DataPlaneClient:
    """A client of the existing plane at ``url``. Raises ``NoPlaneError`` at once if there is none."""
    return _open(url, lease_s, {"linger_s": linger_s, "timeout_s": timeout_s}, make=False)


def rollout_filter(name: str, *arguments: Any, **settings: Any) -> BaseRolloutFilter:
    """A filter by its name: ``staleness``, ``tags``, ``all``, or one of an entry point."""
    return find("filters", name)(*arguments, **settings)


def find(group: Group, name: str) -> Any:
    """A built-in or installed backend, storage or filter.

    Raises:
        SpecError: the name is unknown.
        UnresolvedReferenceError: an installed one can't be imported.
    """
    if name in BUILT_IN[group]:
        return resolve(BUILT_IN[group][name])
    installed = {point.name: point for point in entry_points(group=f"tunegym.{group}")}
    if name in installed:
        return resolve(installed[name].value)
    known = ", ".join([*BUILT_IN[group], *installed])
    raise SpecError(f"unknown name {name!r:.60} of {group}", hint=f"known: {known}")


def _open(url: str, lease_s: float | None, times: Mapping[str, float], *, make: bool) -> DataPlaneClient:
    scheme, separator, address = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or not scheme or not is_unicode(url):
        raise SpecError(f"{url!r:.200} is not a plane's URL", hint="write memory://name or mmap:///folder")
    given = times if lease_s is None else {**times, "lease_s": lease_s}
    for name, seconds in given.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_S:
            raise SpecError(f"{name} is {seconds!r:.60}", hint=f"give seconds above 0, at most {_LONGEST_S:g}")
    try:
        opener: Opener = find("planes", scheme)
    except SpecError as error:
        raise SpecError(f"{url!r:.200} has an unknown scheme", hint=error.hint) from None
    plane = opener(address, make=make, **times)
    try:
        return DataPlaneClient(plane.host, plane.storage, plane.owner, lease_s, plane.url or url)
    except BaseException:
        plane.host.close()
        raise
