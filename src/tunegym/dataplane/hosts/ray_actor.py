"""A ledger in a Ray actor, for the processes of a cluster: ``tq://name``.

The actor is detached and named, so that clients find it, and Ray restarts it when its process dies: it recovers from
its journal. It runs on the cluster's head, where the journal is. It serves the ledger on a socket, like the host of a
plane in a folder; Ray itself only carries the address. The bytes are in ``storage.transfer_queue``.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import logging
import math
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tunegym.core.ray_cluster import RayConnection, import_ray
from tunegym.core.wire import keep_alive
from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import DataPlaneError, NoPlaneError, SpecError, StorageError
from tunegym.dataplane.hosts.client import SocketHost
from tunegym.dataplane.hosts.folder import Stop, bootstrap, check, open_file, take_lock
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.operations import BEGAN, WAITING
from tunegym.dataplane.hosts.server import Server
from tunegym.dataplane.hosts.service import LedgerService
from tunegym.dataplane.model import checked_name
from tunegym.dataplane.storage.transfer_queue import (
    NAMESPACE,
    START_S,
    Layout,
    StorageUnits,
    TransferQueueStorage,
    import_transfer_queue,
)

logger = logging.getLogger(__name__)

FREE_S = 10.0
"""How long ``connect`` waits for CPUs that are in use."""


@dataclass(frozen=True)
class Settings:
    """What the URL of a plane says: ``tq://name?address=...&journal=...&storage_units=2&num_cpus=1``."""

    name: str = "default"
    address: str | None = None  # of the Ray cluster; None for the one of this process, or one on this machine
    journal: str = ""  # the folder of the journal on the cluster's head; by default a temporary one
    storage_units: int = 2  # processes that hold the bytes, spread over the nodes
    num_cpus: float = 1.0  # that each of them, and their controller, reserves

    @property
    def needs(self) -> float:
        """The CPUs of all."""
        return (self.storage_units + 1) * self.num_cpus


def parse(address: str) -> Settings:
    """The settings of a URL without its scheme. Raises ``SpecError``."""
    name, _, query = address.partition("?")
    given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    known = Settings.__dataclass_fields__.keys() - {"name"}
    if given.keys() - known:
        wrong = ", ".join(sorted(given.keys() - known))
        raise SpecError(f"tq://{address:.200} has unknown settings: {wrong}", hint=f"known: {', '.join(sorted(known))}")
    try:
        given |= {key: kind(given[key]) for key, kind in (("storage_units", int), ("num_cpus", float)) if key in given}
    except ValueError as error:
        raise SpecError(f"tq://{address:.200}: {error}", hint="storage_units and num_cpus are numbers") from None
    settings = Settings(checked_name("the name of a plane", name or "default"), **given)
    if settings.storage_units < 1 or not 0 <= settings.num_cpus <= 1024:
        raise SpecError(f"tq://{address:.200} has a number out of range", hint="use at least one storage unit")
    if settings.journal and not Path(settings.journal).is_absolute():
        raise SpecError(f"journal={settings.journal!r:.200} is no absolute folder", hint="write journal=/folder")
    return settings


# the actor --------------------------------------------------------------------------------------------


class _Server(Server):
    """Serves the ledger to the nodes of the cluster. A client proves with a token that Ray told it the address."""

    def __init__(self, folder: Path, linger_s: float, units: StorageUnits) -> None:
        self._units = units
        self.token = secrets.token_hex(16)
        self._known: set[str] = set()  # the clients at the last look
        super().__init__(folder, linger_s)
        self.address = self._listener.getsockname()[:2]

    def _recover(self) -> LedgerService:
        service = LedgerService(LedgerJournal(self._folder), self._units)
        logger.info("the ledger is recovered: %d changes were replayed", service.recover())
        for unit in self._units.recover(service.ledger.locations()):
            service.lose({"unit": unit})
        return service

    def _listen(self) -> socket.socket:
        import ray

        listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=128)
        keep_alive(listener)  # accepted connections inherit it
        listener.setblocking(False)
        return listener

    def _present(self) -> bool:
        return self._folder.is_dir()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _in_use(self) -> bool:
        return super()._in_use() or bool(self._service.callers)  # these come back after a restart

    def _tidy(self) -> None:
        """Clear the samples of units that are gone, and free what clients that are gone have left."""
        for unit in self._units.take_lost():
            self._service.lose({"unit": unit})
            self._deliver()  # it is in the journal before any client can know
            self._units.bury(unit)
        callers = set(self._service.callers)
        for name in self._known - callers:
            self._units.free_of(name)
        self._known = callers

    def _greet(self, peer: Any, message: Any) -> None:
        if not hmac.compare_digest(str(message["client"].pop("token", "")), self.token):
            raise DataPlaneError("a client without the token of this plane")
        super()._greet(peer, message)

    def _handle(self, peer: Any, message: Any) -> None:
        if peer.name and message[2] in WAITING:
            message[3].pop(BEGAN, None)  # the clock of another machine
        super()._handle(peer, message)


class LedgerActor:
    """The Ray actor of a plane.

    Args:
        plane: the unique name of the plane.
        settings: of the plane.
        folder: of the journal, on this node.
        linger_s: how long the plane stays without clients.
    """

    def __init__(self, plane: str, settings: Settings, folder: str, linger_s: float) -> None:
        import ray

        self._plane, self._settings, self._folder = plane, settings, Path(folder)
        if ray.get_runtime_context().was_current_actor_reconstructed:
            check(self._folder)  # it must be there: never start over with an empty plane
        else:
            bootstrap(self._folder, START_S)
        lock = open_file(self._folder / "host.lock", os.O_RDWR)
        until = time.monotonic() + START_S
        if not take_lock(lock, lambda: time.monotonic() > until):
            raise StorageError(f"another plane uses {folder}", hint="give each its own journal")
        self._units = StorageUnits(plane, settings.storage_units, settings.num_cpus)
        self._server = _Server(self._folder, linger_s, self._units)
        threading.Thread(target=self._serve, name="tunegym-dataplane-ledger", daemon=True).start()

    def address(self) -> tuple[str, tuple[str, int], str]:
        """The plane's unique name, where it is served, and the token for its clients."""
        return self._plane, self._server.address, self._server.token

    def layout(self) -> Layout:
        """Where the bytes are."""
        return self._units.layout

    def _serve(self) -> None:
        """Serve until no client has needed the plane for a while. Then the plane ends."""
        import ray

        try:
            self._server.run()
        except BaseException:
            logger.exception("the ledger fails: it starts again from its journal")
            os._exit(1)
        self._server.close()
        self._units.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        ray.kill(ray.get_actor(_actor_name(self._settings.name), NAMESPACE))


def _actor_name(name: str) -> str:
    return f"plane/{name}"


# the client -------------------------------------------------------------------------------------------


class _Cluster:
    """The actor of a plane, as a client sees it.

    Raises:
        NoPlaneError: there is no cluster, or no plane of this name in it.
        StorageError: the plane does not fit into the cluster, or can't be started.
    """

    def __init__(self, settings: Settings, linger_s: float, *, make: bool) -> None:
        self._settings, self._linger_s = settings, linger_s
        self.ray = _connected(settings, make=make)
        self._options = {"namespace": NAMESPACE, "name": _actor_name(settings.name)}
        until = time.monotonic() + 2 * START_S
        while True:
            actor = self._make() if make else self._find()
            try:
                self._plane, *_ = self._ask(actor.address, START_S)
            except ConnectionError as error:  # an ending plane, or one that can't start
                if not make or "creation task" in str(error) or time.monotonic() > until:
                    told = str(error).strip().splitlines()[-1]
                    raise StorageError(f"the plane {settings.name!r} can't be used: {told}") from error
                time.sleep(1.0)
            else:
                return

    def reach(self, stop: Stop) -> tuple[socket.socket, dict[str, Any]]:
        """A connection to the ledger; see ``hosts.client.Reach``. Raises ``NoPlaneError`` and ``ConnectionError``."""
        plane, address, token = self._ask(self._find().address, 5.0)
        if plane != self._plane:
            raise NoPlaneError(f"the plane {self._settings.name!r} has ended", hint="connect again")
        connected = socket.create_connection(address, 5.0)
        keep_alive(connected)
        return connected, {"token": token, "boot": ""}

    def layout(self) -> Layout:
        """Where the bytes are. Raises ``DataPlaneError``."""
        try:
            return self._ask(self._find().layout, START_S)
        except ConnectionError as error:
            raise StorageError(f"the plane's ledger does not answer: {error}") from error

    def _find(self) -> Any:
        if not self.ray.is_initialized():  # Ray would start another cluster
            raise NoPlaneError("this process has left the Ray cluster", hint="call ray.shutdown() after plane.close()")
        try:
            return self.ray.get_actor(**self._options)
        except ValueError:
            what = f"there is no plane {self._settings.name!r} in the Ray cluster"
            raise NoPlaneError(what, hint="connect() makes one, attach() only joins") from None

    def _make(self) -> Any:
        """The actor, which is created if there is none."""
        with contextlib.suppress(NoPlaneError):
            return self._find()
        import_transfer_queue()
        self._check_room()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        plane = f"{self._settings.name}-{uuid.uuid4().hex[:12]}"
        folder = self._settings.journal or str(Path(tempfile.gettempdir()) / f"tunegym-tq-{plane}")
        nodes = [one for one in self.ray.nodes() if one["Alive"]]
        heads = [one["NodeID"] for one in nodes if "node:__internal_head__" in one["Resources"]]
        options = {**self._options, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        options |= {"max_restarts": -1, "max_task_retries": -1}
        strategy = NodeAffinitySchedulingStrategy(heads[0], soft=False) if heads else "DEFAULT"
        actor = self.ray.remote(LedgerActor).options(**options, scheduling_strategy=strategy)
        return actor.remote(plane, self._settings, folder, self._linger_s)

    def _check_room(self) -> None:
        """Raise ``StorageError`` if the controller and the units don't fit: Ray would wait for ever."""
        needs, until = self._settings.needs, time.monotonic() + FREE_S
        while True:
            has, free = (of().get("CPU", 0.0) for of in (self.ray.cluster_resources, self.ray.available_resources))
            if free >= needs:
                return
            if has < needs or time.monotonic() > until:
                raise StorageError(
                    f"the plane takes {needs:g} CPUs, {self._settings.num_cpus:g} for each of its"
                    f" {self._settings.storage_units} storage units and for their controller, and {free:g} of the"
                    f" cluster's {has:g} are free",
                    hint="add nodes, or write fewer storage_units or a smaller num_cpus in the URL",
                )
            time.sleep(0.2)

    def _ask(self, method: Any, timeout_s: float) -> Any:
        """The answer of the actor. Raises ``ConnectionError``."""
        try:
            return self.ray.get(method.remote(), timeout=timeout_s)
        except self.ray.exceptions.RayError as error:
            raise ConnectionError(str(error)) from error


_LOCK = threading.Lock()


def _connected(settings: Settings, *, make: bool) -> Any:
    """Ray, connected to the cluster; without an address and a connection one is started on this machine.

    The connection is for the life of the process: other code in it may use Ray, too.
    """
    ray = import_ray(StorageError)
    if settings.address is None and not make and not ray.is_initialized():
        what = "this process is in no Ray cluster, so there is no plane to attach to"
        raise NoPlaneError(what, hint="name the cluster: tq://name?address=HOST:PORT")
    with _LOCK:
        is_ours = not ray.is_initialized()
        cpus = math.ceil(settings.needs) + (os.cpu_count() or 1)
        connection = RayConnection(settings.address, _scratch, NoPlaneError, cpus)
        connection.connect()
        if is_ours:
            atexit.register(_disconnect, connection)
        return ray


def _disconnect(connection: RayConnection) -> None:
    """At the end of the process, when no thread can be asked any more to disconnect."""
    if connection.ray.is_initialized():
        connection.ray.shutdown()
    with contextlib.suppress(RuntimeError):
        connection.close()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tunegym-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def open_plane(address: str, *, make: bool, linger_s: float, timeout_s: float) -> Plane:
    """The backend of ``tq://name``: see ``tunegym.dataplane.connect.Opener``."""
    cluster = _Cluster(parse(address), linger_s, make=make)
    host = SocketHost(f"tq://{address}", cluster.reach, timeout_s, durable=False)
    host.stay_connected()
    storage: type[TransferQueueStorage] = find("storages", "tq")
    return Plane(host, storage(cluster.layout, host.name), host.name)
