"""A storage in the memory of a Ray cluster's nodes: the storage units of TransferQueue.

A write is one row of TransferQueue, under a key that is used once, with one field for each column. A field holds the
bytes of an encoded column with its description and its key, so that every dtype comes back exactly, and a read
notices when it got another row. Producers and readers exchange bytes with the units directly. TransferQueue's
controller only hands out rows; the plane's ledger decides which of them exist, and who may claim them.

``StorageUnits``, at the ledger, starts the controller and the units as detached actors, so that they outlive the
ledger's process. It notices when a unit is gone, and starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tunegym.dataplane.encoding import Column, aligned, restore
from tunegym.dataplane.errors import ClosedError, DataPlaneError, StorageError
from tunegym.dataplane.storage import BlockGoneError, Location

logger = logging.getLogger(__name__)

NAMESPACE = "tunegym"
"""Ray's namespace of all actors of planes."""
PARTITION = "plane"
"""TransferQueue's partition of all rows."""
LOOK_S = 1.0
"""How often units are looked at, and how long a call to one takes before its caller asks whether it is gone."""
START_S = 120.0
"""How long the controller and the units may take to start."""
AGAIN_S = 10.0
"""How long they may take to answer a ledger that was restarted."""
REPLACED_S = 60.0
"""How long a put waits for a storage unit in place of those that are gone."""
_HEAD = 8


@dataclass(frozen=True)
class Layout:
    """Where the controller is, and by id the units that are there, as TransferQueue describes them."""

    controller: Any
    units: Mapping[str, Any]


class _UnitLostError(Exception):
    """The unit of a call is gone, or the controller."""


class _Link:
    """A client of TransferQueue, with its event loop in a thread. Raises ``StorageError``."""

    def __init__(self, controller: Any) -> None:
        from transfer_queue.client import AsyncTransferQueueClient

        self.controller = controller
        self.client: Any = AsyncTransferQueueClient(f"tunegym-{uuid.uuid4().hex}", controller, zmq_io_threads=1)
        self._managers: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tunegym-dataplane-tq", daemon=True)
        self._thread.start()

    def manager(self, unit: Any) -> Any:
        """TransferQueue's storage manager for one unit: with several it would choose the unit, also one that is gone.

        Not the client's own calls: these change the number of torch's threads in this process.
        """
        from transfer_queue.storage.managers.base import StorageManagerFactory

        with self._lock:
            if unit.id not in self._managers:
                units, context = {"zmq_info": {unit.id: unit}}, self.client.zmq_context
                try:
                    made = StorageManagerFactory.create("SimpleStorage", self.controller, units, zmq_context=context)
                except Exception as error:
                    raise StorageError(f"TransferQueue can't be reached: {type(error).__name__}: {error}") from error
                self._managers[unit.id] = made
            return self._managers[unit.id]

    def start(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a call of the client or a manager."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Close. Calls that are under way never end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        for manager in self._managers.values():
            manager.close()
        self.client.close()


class TransferQueueStorage:
    """A ``Storage`` of one client, the ``owner``. ``find`` asks the ledger's actor for the layout."""

    def __init__(self, find: Callable[[], Layout], owner: str) -> None:
        self._find, self._owner = find, owner
        self._numbers = itertools.count(hash(owner) % 1000)
        self._lock = threading.Lock()
        self._layout: Layout | None = None
        self._link: _Link | None = None
        self._closed = False

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        from tensordict import TensorDict

        link, layout = self._here()
        until = time.monotonic() + REPLACED_S
        while time.monotonic() < until:
            number = next(self._numbers)
            key, units = f"{self._owner}-{number}", list(layout.units.values())
            with contextlib.suppress(_UnitLostError):
                if units:
                    unit = units[number % len(units)]
                    found = self._wait(
                        link, link.start(link.client.async_kv_retrieve_meta([key], PARTITION, create=True))
                    )
                    if found.size != 1:
                        raise StorageError(f"TransferQueue made {found.size} rows for one key")
                    rows = TensorDict({name: _pack(key, one) for name, one in columns.items()}, batch_size=[1])
                    self._wait(link, link.start(link.manager(unit).put_data(rows, found)), unit.id)
                    place = {"key": key, "index": int(found.global_indexes[0]), "unit": unit.id, "owner": self._owner}
                    return place, sum(rows[name].numel() for name in columns)
                time.sleep(LOOK_S)
            link, layout = self._here(renew=True)
        raise StorageError("the plane's storage units are gone", hint="has a node a free CPU for another one?")

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""

    def read_many(self, wanted: Sequence[tuple[Location, Sequence[str]]]) -> list[Mapping[str, Column]]:
        """See ``Storage.read_many``: one call for all rows of a unit with the same fields, all at once."""
        from transfer_queue import BatchMeta, StorageKeyNotFoundError

        link, layout = self._here()
        if not {location["unit"] for location, _ in wanted} <= layout.units.keys():
            link, layout = self._here(renew=True)
        calls: dict[tuple[str, ...], list[int]] = {}
        for at, (location, fields) in enumerate(wanted):
            if location["unit"] not in layout.units:
                raise _gone()
            calls.setdefault((location["unit"], *sorted(fields)), []).append(at)
        started: list[Future[Any]] = []
        for (unit, *fields), places in calls.items():
            indexes = [wanted[at][0]["index"] for at in places]
            meta = BatchMeta(indexes, [PARTITION] * len(indexes), {name: {} for name in fields})
            started.append(link.start(link.manager(layout.units[unit]).get_data(meta)))
        read: list[dict[str, Column]] = [{} for _ in wanted]
        for ((unit, *fields), places), call in zip(calls.items(), started, strict=True):
            try:
                rows = self._wait(link, call, unit)
            except (StorageKeyNotFoundError, _UnitLostError):
                raise _gone() from None
            for name in fields:
                values = rows[name].unbind() if name in rows.keys() else ()  # noqa: SIM118 - a TensorDict
                if len(values) != len(places):
                    raise StorageError(f"TransferQueue has {len(values)} of {len(places)} rows of {name!r}")
                for at, value in zip(places, values, strict=True):
                    read[at][name] = _unpack(wanted[at][0]["key"], value.numpy())
        return list(read)

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``. The ledger frees them: it knows what it refused, and what a client left."""

    def trim(self) -> None:
        """See ``Storage.trim``."""

    def close(self) -> None:
        """See ``Storage.close``."""
        with self._lock:
            self._closed, link, self._link = True, self._link, None
        if link is not None:
            link.close()

    def _here(self, *, renew: bool = False) -> tuple[_Link, Layout]:
        """The link and the layout; with ``renew`` as they are now."""
        with self._lock:
            if self._closed:
                raise ClosedError("the storage is closed")
            if renew or self._layout is None:
                self._layout = self._find()
            if self._link is None or self._link.controller.id != self._layout.controller.id:
                self._link = _Link(self._layout.controller)
            return self._link, self._layout

    def _wait(self, link: _Link, call: Future[Any], *units: str) -> Any:
        """The result of a call to units. Raises ``_UnitLostError`` and ``StorageError``."""
        from transfer_queue import StorageKeyNotFoundError

        while True:
            try:
                return call.result(LOOK_S)
            except StorageKeyNotFoundError:
                raise
            except Exception as error:
                if self._closed:
                    raise ClosedError("the storage is closed") from None
                if call.done():
                    raise StorageError(f"TransferQueue: {type(error).__name__}: {error}") from error
            with contextlib.suppress(DataPlaneError):  # the ledger is restarted now
                layout = self._find()
                if layout.controller.id != link.controller.id or not {*units} <= layout.units.keys():
                    call.cancel()
                    raise _UnitLostError


def _gone() -> BlockGoneError:
    return BlockGoneError("the bytes are gone", hint="the samples were cleared, lost, or written again: locate them")


def _pack(key: str, column: Column) -> Any:
    """A column as a row of bytes."""
    import torch

    head = orjson.dumps({"key": key, "column": column.describe()})
    head = len(head).to_bytes(_HEAD, "big") + head
    pieces = [head, bytes(aligned(len(head)) - len(head)), *column.pieces()]
    raw = [np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one.reshape(-1).view(np.uint8) for one in pieces]
    return torch.from_numpy(np.concatenate(raw))[None]


def _unpack(key: str, memory: np.ndarray) -> Column:
    """The column of ``_pack``. Raises ``BlockGoneError`` if the row is used for another key by now."""
    length = int.from_bytes(memory[:_HEAD].tobytes(), "big")
    head = orjson.loads(memory[_HEAD : _HEAD + length].tobytes())
    if head["key"] != key:
        raise _gone()
    memory.flags.writeable = False
    return restore(head["column"], memory[aligned(_HEAD + length) :])


class StorageUnits:
    """The storage of a plane, at its ledger: a ``BlockUsage``. One thread calls it.

    Args:
        plane: its unique name.
        count: the number of units.
        num_cpus: of the controller and of each unit.
        again: whether an earlier process of the ledger has started them. Otherwise it raises ``StorageError`` if they
            don't start.
    """

    def __init__(self, plane: str, count: int, num_cpus: float, *, again: bool) -> None:
        ray: Any = importlib.import_module("ray")
        from transfer_queue.controller import TransferQueueController
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        options = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": num_cpus}
        names = [f"{plane}/controller", *(f"{plane}/unit-{place}" for place in range(1, count + 1))]

        def make(place: int) -> Any:
            """The controller at place 0, or a unit."""
            kind: Any = SimpleStorageUnit if place else TransferQueueController
            spread = {"scheduling_strategy": "SPREAD"} if place else {}
            named = kind.options(name=names[place], **options, **spread)
            return named.remote({}) if place else named.remote(polling_mode=True)

        self._ray, self._make = ray, make
        self.layout = Layout(None, {})
        self.dead_bytes: dict[str, int] = {}
        self._live: set[str] = set()  # the keys of the bytes that are in use
        self._cleaner, self._link = ThreadPoolExecutor(1, "tunegym-dataplane-cleaner"), None
        there = {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
        self._actors = [make(place) for place in range(count + 1)]
        if again and names[0] not in there:  # the rows in its units are of a controller that is gone
            self._kill(self._actors[1:])
        self._units: dict[int, str] = {}  # the ids of the units by place
        self._asked = {actor.get_zmq_server_info.remote(): place for place, actor in enumerate(self._actors)}
        begun = time.monotonic()
        while self.layout.controller is None or len(self._units) < count:
            waited = time.monotonic() - begun
            if again and waited > AGAIN_S and self.layout.controller is not None:
                break  # ``look`` takes in the others
            if waited > START_S:
                self.end()
                what = f"the plane's storage does not start: {len(self._units)} of {count} units are there"
                raise StorageError(what, hint=f"each unit, and the controller, takes {num_cpus:g} CPU of a node")
            time.sleep(0.05)
            self.look()

    def look(self) -> list[str]:
        """Take in units that are there, and start others for those that are gone; the ids of these, each once.

        Without its controller all bytes are lost: another one would hand out rows that are in use.
        """
        lost: list[str] = []
        for answer in self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)[0]:
            place = self._asked.pop(answer)
            try:
                info = self._ray.get(answer)
                self._units |= {place: info.id} if place else {}
                units = {**self.layout.units, info.id: info} if place else self.layout.units
                self.layout = Layout(self.layout.controller if place else info, units)
            except self._ray.exceptions.ActorDiedError:
                logger.error("TransferQueue's %s is gone", self._units.get(place, "controller, or a new unit,"))  # noqa: TRY400
                lost += [self._units.pop(place)] if place in self._units else []
                if not place:
                    self._kill(self._actors[1:])
                self._actors[place] = self._make(place)
            except self._ray.exceptions.RayError:
                pass  # it can't be asked now
            self._asked[self._actors[place].get_zmq_server_info.remote()] = place
        left = {unit: info for unit, info in self.layout.units.items() if unit not in lost}
        self.layout = Layout(self.layout.controller, left)
        return lost

    def end(self) -> None:
        """End the controller and the units, and with them all bytes."""
        self._kill(self._actors)

    def _kill(self, actors: Iterable[Any]) -> None:
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    # usage --------------------------------------------------------------------------------------------

    def keep(self, location: Location) -> None:
        """See ``BlockUsage.keep``."""
        if location["unit"] not in self.layout.units:
            raise StorageError("the storage unit of this put is gone", hint="put the samples again")
        self._live.add(location["key"])

    def free(self, locations: Iterable[Location]) -> None:
        """See ``BlockUsage.free``."""
        keys = [location["key"] for location in locations if location["key"] in self._live]
        self._live.difference_update(keys)
        if keys:
            self._cleaner.submit(self._clear, keys)

    def free_of(self, owner: str) -> None:
        """Free the rows of a client that is gone which the ledger does not know."""
        self._cleaner.submit(self._clear, owner)

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """See ``BlockUsage.recover``: the units that are gone."""
        units = {location["key"]: location["unit"] for location in locations}
        self._live = set(units)
        return sorted({*units.values()} - self.layout.units.keys())

    def sweep(self) -> None:
        """See ``BlockUsage.sweep``: ``free_of`` does it."""

    def moves(self, ledger: Any) -> None:
        """See ``BlockUsage.moves``: none, a put is freed as a whole."""

    def _clear(self, garbage: list[str] | str) -> None:
        """Free rows by their keys, or those of an owner. What fails stays in its unit until the plane ends."""
        layout, link = self.layout, self._link
        try:
            if link is None or link.controller.id != layout.controller.id:
                link = self._link = _Link(layout.controller)
            managers = [link.manager(unit) for unit in layout.units.values()]
            link.start(self._clear_in(link.client, managers, garbage)).result(START_S)
        except Exception as error:
            logger.warning("rows could not be freed: %s: %s", type(error).__name__, error)

    async def _clear_in(self, client: Any, managers: Sequence[Any], garbage: list[str] | str) -> None:
        if isinstance(garbage, str):
            there = (await client.async_kv_list(PARTITION)).get(PARTITION, ())
            garbage = [key for key in there if key.startswith(f"{garbage}-") and key not in self._live]
        found = await client.async_kv_retrieve_meta(garbage, PARTITION) if garbage else None
        if found is not None and found.size and managers:
            *others, client.storage_manager = managers
            for manager in others:
                await manager.clear_data(found)
            await client.async_clear_samples(found)  # the last unit, and then the rows can be used again
