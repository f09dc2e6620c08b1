"""A ledger in a Ray actor, for the processes of a cluster: ``tq://name``.

The actor is detached and named, so that clients find it, and Ray restarts it when its process dies: it recovers from
its journal. It runs on the cluster's head, where the journal is. It serves the ledger on a socket, like the host of a
plane in a folder; Ray itself only carries the address. The bytes are in ``storage.transfer_queue``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tunegym.core.ray_cluster import RayConnection, import_extra
from tunegym.core.wire import keep_alive
from tunegym.dataplane.connect import Plane, find
from tunegym.dataplane.errors import NoPlaneError, SpecError, StorageError
from tunegym.dataplane.hosts.client import SocketHost
from tunegym.dataplane.hosts.folder import Stop, bootstrap, check, open_file, take_lock
from tunegym.dataplane.hosts.journal import LedgerJournal
from tunegym.dataplane.hosts.operations import BEGAN, WAITING
from tunegym.dataplane.hosts.server import Server
from tunegym.dataplane.hosts.service import LedgerService
from tunegym.dataplane.model import checked_name
from tunegym.dataplane.storage.transfer_queue import NAMESPACE, START_S, Layout, StorageUnits, TransferQueueStorage

logger = logging.getLogger(__name__)

TAKEN_S = 10.0
"""How long a new plane waits for one that ends to leave its journal's folder."""


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
    kinds: dict[str, Any] = {"address": str, "journal": str, "storage_units": int, "num_cpus": float}
    try:
        given = {key: kinds[key](value) for key, value in parse_qsl(query)}
        settings = Settings(checked_name("the name of a plane", name or "default"), **given)
        if settings.storage_units < 1 or not 0 <= settings.num_cpus < math.inf or settings.journal[:1] not in ("", "/"):
            raise ValueError("a number is out of range, or journal is not an absolute folder")
    except (KeyError, ValueError) as error:
        hint = "write for example tq://name?address=HOST:PORT&storage_units=2&num_cpus=1&journal=/folder"
        raise SpecError(f"tq://{address:.200} can't be used: {error}", hint=hint) from None
    return settings


# the actor --------------------------------------------------------------------------------------------


class LedgerActor(Server):
    """The Ray actor of a plane, with a unique name. Without a setting the journal is in Ray's folder of its session."""

    def __init__(self, plane: str, settings: Settings, linger_s: float) -> None:
        import ray

        self._ray, self._plane, self._settings = ray, plane, settings
        context: Any = ray.get_runtime_context()
        own = Path(context.get_temp_dir(), context.get_session_name(), f"tunegym-{plane}")
        folder, again = Path(settings.journal or own), bool(context.was_current_actor_reconstructed)
        if again:
            check(folder)  # it must be there: never start over with an empty plane
        else:
            bootstrap(folder, START_S)
        until = time.monotonic() + (START_S if again else TAKEN_S)
        if not take_lock(open_file(folder / "host.lock", os.O_RDWR), lambda: time.monotonic() > until):
            raise StorageError(f"another plane uses {folder}", hint="give each its own journal")
        self._units = StorageUnits(plane, settings.storage_units, settings.num_cpus, again=again)
        self._known: set[str] = set()  # the clients at the last look
        super().__init__(folder, linger_s)
        threading.Thread(target=self._serve, name="tunegym-dataplane-ledger", daemon=True).start()

    def address(self) -> tuple[str, tuple[str, int]]:
        """The plane's unique name, and where it is served."""
        return self._plane, self._listener.getsockname()[:2]

    def layout(self) -> Layout:
        """Where the bytes are."""
        return self._units.layout

    def _serve(self) -> None:
        """Serve until no client has needed the plane for a while. Then the plane ends."""
        try:
            self.run()
        except BaseException:
            logger.exception("the ledger fails: it starts again from its journal")
            os._exit(1)
        self._units.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ray.kill(self._ray.get_actor(f"plane/{self._settings.name}", NAMESPACE))

    def _recover(self) -> LedgerService:
        service = LedgerService(LedgerJournal(self._folder), self._units)
        logger.info("the ledger is recovered: %d changes were replayed", service.recover())
        for unit in self._units.recover(service.ledger.locations()):
            service.lose({"unit": unit})
        return service

    def _listen(self) -> socket.socket:
        listener = socket.create_server((self._ray.util.get_node_ip_address(), 0), backlog=128)
        keep_alive(listener)  # accepted connections inherit it
        listener.setblocking(False)
        return listener

    def _present(self) -> bool:
        return self._folder.is_dir()

    def _in_use(self) -> bool:
        return super()._in_use() or bool(self._service.callers)  # these come back after a restart

    def _tidy(self) -> None:
        """Clear the samples of units that are gone, and free what clients that are gone have left."""
        for unit in self._units.look():
            self._service.lose({"unit": unit})
        callers = set(self._service.callers)
        for name in self._known - callers:
            self._units.free_of(name)
        self._known = callers

    def _handle(self, peer: Any, message: Any) -> None:
        if peer.name and message[2] in WAITING:
            message[3].pop(BEGAN, None)  # the clock of another machine
        super()._handle(peer, message)


# the client -------------------------------------------------------------------------------------------


class _Cluster:
    """The actor of a plane, as a client sees it. Raises ``NoPlaneError``, or ``StorageError`` if it can't start."""

    def __init__(self, settings: Settings, linger_s: float, *, make: bool) -> None:
        self._settings, self._linger_s = settings, linger_s
        self.ray = _connected(settings, make=make)
        self._options = {"namespace": NAMESPACE, "name": f"plane/{settings.name}"}
        until = time.monotonic() + 2 * START_S
        while True:
            actor = self._make() if make else self._find()
            try:
                self._plane, *_ = self._ask(actor.address, START_S)
            except ConnectionError as error:  # an ending plane, or one that can't start
                if not make or "creation task" in str(error) or time.monotonic() > until:
                    told, _, hint = str(error).strip().partition("\nhint: ")
                    told = told.splitlines()[-1].rpartition("Error: ")[2]
                    what = f"the plane {settings.name!r} can't be used: {told}"
                    raise StorageError(what, hint=hint or None) from error
                time.sleep(1.0)
            else:
                return

    @property
    def url(self) -> str:
        """By which processes outside of the cluster's jobs attach."""
        return f"tq://{self._settings.name}?address={self.ray.get_runtime_context().gcs_address}"

    def reach(self, stop: Stop) -> tuple[socket.socket, dict[str, Any]]:
        """See ``hosts.client.Reach``. Raises ``NoPlaneError`` and ``ConnectionError``."""
        plane, address = self._ask(self._find().address, 5.0)
        if plane != self._plane:
            raise NoPlaneError(f"the plane {self._settings.name!r} has ended", hint="connect again")
        connected = socket.create_connection(address, 5.0)
        keep_alive(connected)
        return connected, {"boot": ""}

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
        import_extra("transfer_queue", "cluster", StorageError)
        self._check_room()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        plane = f"{self._settings.name}-{uuid.uuid4().hex[:12]}"
        heads = [one["NodeID"] for one in self.ray.nodes() if "node:__internal_head__" in one["Resources"]]
        options = {**self._options, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        options |= {"max_restarts": -1, "max_task_retries": -1}
        options |= {"scheduling_strategy": NodeAffinitySchedulingStrategy(heads[0], soft=False)}
        return self.ray.remote(LedgerActor).options(**options).remote(plane, self._settings, self._linger_s)

    def _check_room(self) -> None:
        """Raise ``StorageError`` if the plane doesn't fit: Ray would wait for ever. CPUs may get free in a moment."""
        needs, each, until = self._settings.needs, self._settings.num_cpus, time.monotonic() + 10.0
        nodes = [node["Resources"].get("CPU", 0.0) for node in self.ray.nodes() if node["Alive"]]
        fits = not each or sum(int(cpus / each + 1e-6) for cpus in nodes) > self._settings.storage_units
        while True:
            has, free = (of().get("CPU", 0.0) for of in (self.ray.cluster_resources, self.ray.available_resources))
            if fits and free >= needs:
                return
            if not fits or time.monotonic() > until:
                what = f"the plane's storage takes {needs:g} CPUs, {each:g} of a node for each actor, and {free:g} of"
                what += f" the cluster's {has:g} are free"
                raise StorageError(what, hint="add nodes, or give a smaller storage_units or num_cpus in the URL")
            time.sleep(0.2)

    def _ask(self, method: Any, timeout_s: float) -> Any:
        """The answer of the actor. Raises ``ConnectionError``."""
        try:
            return self.ray.get(method.remote(), timeout=timeout_s)
        except self.ray.exceptions.RayError as error:
            raise ConnectionError(str(error)) from error


_LOCK = threading.Lock()
_CONNECTIONS: list[RayConnection] = []  # for the life of the process: other code in it may use Ray, too


def _connected(settings: Settings, *, make: bool) -> Any:
    """Ray, connected to the cluster; without an address and a connection one is started on this machine."""
    ray = import_extra("ray", "cluster", StorageError)
    if settings.address is None and not make and not ray.is_initialized():
        what = "this process is in no Ray cluster, so there is no plane to attach to"
        raise NoPlaneError(what, hint="name the cluster: tq://name?address=HOST:PORT")
    with _LOCK:
        folder = functools.partial(tempfile.TemporaryDirectory, prefix="tunegym-", ignore_cleanup_errors=True)
        cpus = math.ceil(settings.needs) + (os.cpu_count() or 1)
        _CONNECTIONS.append(RayConnection(settings.address, folder, NoPlaneError, cpus))
        _CONNECTIONS[-1].connect()
        atexit.register(ray.shutdown)  # before Python removes the folder
    return ray


def open_plane(address: str, *, make: bool, linger_s: float, timeout_s: float) -> Plane:
    """The backend of ``tq://name``: see ``tunegym.dataplane.connect.Opener``."""
    cluster = _Cluster(parse(address), linger_s, make=make)
    host = SocketHost(f"tq://{address}", cluster.reach, timeout_s, durable=False)
    threading.Thread(target=host.stay_connected, name="tunegym-dataplane-stay", daemon=True).start()
    storage: type[TransferQueueStorage] = find("storages", "tq")
    return Plane(host, storage(cluster.layout, host.name), host.name, cluster.url)
