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
import queue
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
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
LOOK_S = 1.0
"""How often units are looked at, and how long a call to one takes before its caller asks whether it is gone."""
START_S = 120.0
"""How long the controller and the units may take to start."""
REPLACED_S = 60.0
"""How long a put waits for a storage unit in place of those that are gone."""
_HEAD = 8


def import_transfer_queue() -> None:
    """Raise ``StorageError`` if the package, or one that it needs, isn't installed."""
    try:
        importlib.import_module("transfer_queue")
    except ImportError as error:
        what = f"tq:// needs the package TransferQueue: {error}"
        raise StorageError(what, hint="pip install 'tunegym[cluster]'") from None


@dataclass(frozen=True)
class Layout:
    """Where the controller and the units are, as TransferQueue describes them. A row is in unit ``index % len(units)``.

    Attributes:
        lost: the ids of units that are gone and not replaced yet.
    """

    controller: Any
    units: tuple[Any, ...]
    lost: frozenset[str]

    def unit(self, index: int) -> str:
        """The id of the unit of a row; empty if it is gone."""
        found = str(self.units[index % len(self.units)].id)
        return "" if found in self.lost else found

    @property
    def ids(self) -> tuple[str, ...]:
        """Names this layout."""
        return str(self.controller.id), *(self.unit(at) for at in range(len(self.units)))


class _UnitLostError(Exception):
    """The unit of a call is gone."""


class _Link:
    """A client of TransferQueue, with its event loop in a thread."""

    def __init__(self, layout: Layout) -> None:
        from transfer_queue.client import AsyncTransferQueueClient

        self.layout = layout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tunegym-dataplane-tq", daemon=True)
        self._thread.start()
        self.client: Any = AsyncTransferQueueClient(f"tunegym-{uuid.uuid4().hex}", layout.controller, zmq_io_threads=1)
        units = {"zmq_info": {unit.id: unit for unit in layout.units}}
        self.client.initialize_storage_manager("SimpleStorage", units)

    def start(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a call of the client."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Close. Calls that are under way never end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self.client.close()


class TransferQueueStorage:
    """A ``Storage`` of one client.

    Args:
        find: finds out the layout, at the ledger's actor.
        owner: the name of the client.
    """

    def __init__(self, find: Callable[[], Layout], owner: str) -> None:
        self._find = find
        self._owner = owner
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._links: list[_Link] = []  # the last one is in use; calls may still be under way in the others
        self._closed = False

    def write(self, partition_id: str, columns: Mapping[str, Column]) -> tuple[Location, int]:
        """See ``Storage.write``."""
        from tensordict import TensorDict

        link, until = self._link(), time.monotonic() + REPLACED_S
        while time.monotonic() < until:
            key = f"{self._owner}-{next(self._numbers)}"
            try:
                found = self._run(link, link.client.async_kv_retrieve_meta([key], partition_id, create=True))
                if found.size != 1:
                    raise StorageError(f"TransferQueue made {found.size} rows for one key")
                index = int(found.global_indexes[0])
                unit = link.layout.unit(index)
                if unit:
                    rows = TensorDict({name: _pack(key, one) for name, one in columns.items()}, batch_size=[1])
                    self._run(link, link.client.storage_manager.put_data(rows, found), unit)
                    nbytes = sum(rows[name].numel() for name in columns)
                    place = {"partition": partition_id, "key": key, "index": index, "unit": unit}
                    return {**place, "owner": self._owner}, nbytes
            except _UnitLostError:
                pass
            link = self._link(renew=True)
            if not any(link.layout.ids[1:]):
                time.sleep(LOOK_S)
        raise StorageError("the plane's storage units are gone", hint="has a node a free CPU for another one?")

    def settle(self, location: Location) -> None:
        """See ``Storage.settle``."""

    def read_many(self, wanted: Sequence[tuple[Location, Sequence[str]]]) -> list[Mapping[str, Column]]:
        """See ``Storage.read_many``: one call for all rows with the same fields."""
        link = self._link()
        groups: dict[tuple[str, ...], list[int]] = {}
        for at, (location, fields) in enumerate(wanted):
            if location["unit"] != link.layout.unit(location["index"]):
                link = self._link(renew=True)
            if location["unit"] != link.layout.unit(location["index"]):
                raise _gone()
            groups.setdefault((location["partition"], *sorted(fields)), []).append(at)
        found: list[Mapping[str, Column]] = [{} for _ in wanted]
        for (partition_id, *fields), places in groups.items():
            locations = [wanted[at][0] for at in places]
            for at, columns in zip(places, self._read(link, partition_id, locations, fields), strict=True):
                found[at] = columns
        return found

    def _read(
        self, link: _Link, partition_id: str, locations: Sequence[Location], fields: Sequence[str]
    ) -> list[dict[str, Column]]:
        from transfer_queue import BatchMeta, StorageKeyNotFoundError

        indexes = [location["index"] for location in locations]
        meta = BatchMeta(indexes, [partition_id] * len(indexes), {name: {} for name in fields})
        try:
            units = {location["unit"] for location in locations}
            rows = self._run(link, link.client.storage_manager.get_data(meta), *units)
        except (StorageKeyNotFoundError, _UnitLostError):
            raise _gone() from None
        found: list[dict[str, Column]] = [{} for _ in locations]
        for name in fields:
            values = rows[name].unbind() if name in rows.keys() else ()  # noqa: SIM118 - a TensorDict
            if len(values) != len(locations):
                raise StorageError(f"TransferQueue has {len(values)} of {len(locations)} rows of {name!r}")
            for columns, location, value in zip(found, locations, values, strict=True):
                columns[name] = _unpack(location["key"], value.numpy())
        return found

    def free(self, locations: Iterable[Location]) -> None:
        """See ``Storage.free``. The ledger frees them: it knows what it refused, and what a client left."""

    def trim(self) -> None:
        """See ``Storage.trim``."""

    def close(self) -> None:
        """See ``Storage.close``."""
        with self._lock:
            self._closed, links, self._links = True, self._links, []
        for link in links:
            link.close()

    def _link(self, *, renew: bool = False) -> _Link:
        """The link to the units; with ``renew`` to those that are there now."""
        with self._lock:
            if self._closed:
                raise ClosedError("the storage is closed")
            if renew or not self._links:
                layout = self._find()
                if not self._links or self._links[-1].layout.ids != layout.ids:
                    self._links.append(_Link(layout))
            return self._links[-1]

    def _run(self, link: _Link, call: Coroutine[Any, Any, Any], *units: str) -> Any:
        """The result of a call to units. Raises ``_UnitLostError`` and ``StorageError``."""
        from transfer_queue import StorageKeyNotFoundError

        future = link.start(call)
        while True:
            try:
                return future.result(LOOK_S)
            except StorageKeyNotFoundError:
                raise
            except Exception as error:
                if self._closed:
                    raise ClosedError("the storage is closed") from None
                if future.done():
                    raise StorageError(f"TransferQueue: {type(error).__name__}: {error}") from error
            with contextlib.suppress(DataPlaneError):  # the ledger is restarted now
                layout = self._find()
                if layout.controller.id != link.layout.controller.id or not {*units} <= {*layout.ids}:
                    future.cancel()
                    raise _UnitLostError


def _gone() -> BlockGoneError:
    return BlockGoneError("the bytes are gone", hint="the samples were cleared, lost, or written again: locate them")


def _pack(key: str, column: Column) -> Any:
    """A column as a row of bytes."""
    import torch

    head = orjson.dumps({"key": key, "column": column.describe()})
    first = aligned(_HEAD + len(head))
    memory = np.zeros(first + column.nbytes, dtype=np.uint8)
    memory[: _HEAD + len(head)] = np.frombuffer(len(head).to_bytes(_HEAD, "big") + head, dtype=np.uint8)
    at = first
    for piece in column.pieces():
        raw = np.frombuffer(piece, np.uint8) if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8)
        memory[at : at + len(raw)] = raw
        at += len(raw)
    return torch.from_numpy(memory)[None]


def _unpack(key: str, memory: np.ndarray) -> Column:
    """The column of ``_pack``. Raises ``BlockGoneError`` if the row is used for another key by now."""
    length = int.from_bytes(memory[:_HEAD].tobytes(), "big")
    head = orjson.loads(memory[_HEAD : _HEAD + length].tobytes())
    if head["key"] != key:
        raise _gone()
    memory.flags.writeable = False
    return restore(head["column"], memory[aligned(_HEAD + length) :])


class StorageUnits:
    """The storage of a plane, at its ledger: a ``BlockUsage``. A thread watches the units, another one frees rows.

    Args:
        plane: the unique name of the plane.
        count: the number of units.
        num_cpus: of the controller and of each unit.

    Raises:
        StorageError: they can't be started.
    """

    def __init__(self, plane: str, count: int, num_cpus: float) -> None:
        import ray
        from transfer_queue.controller import TransferQueueController
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        self._ray: Any = ray
        options = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": num_cpus}

        def make_unit(slot: int) -> Any:
            named: Any = SimpleStorageUnit
            return named.options(**options, name=f"{plane}/unit-{slot}", scheduling_strategy="SPREAD").remote({})

        def make_controller() -> Any:
            named: Any = TransferQueueController
            return named.options(**options, name=f"{plane}/controller").remote(polling_mode=True)

        self._make_unit, self._make_controller = make_unit, make_controller
        self._controller = make_controller()
        self._units = [make_unit(slot) for slot in range(count)]
        calls = [actor.get_zmq_server_info.remote() for actor in (self._controller, *self._units)]
        try:
            controller, *units = ray.get(calls, timeout=START_S)
        except self._ray.exceptions.RayError as error:
            self.end()
            raise StorageError(
                f"the plane's storage does not start: {str(error).strip().splitlines()[-1]}",
                hint=f"its controller and its {count} units take {num_cpus:g} CPU each: are they free?",
            ) from error
        self.layout = Layout(controller, tuple(units), frozenset())
        self.dead_bytes: dict[str, int] = {}
        self._live: set[str] = set()  # the keys of the bytes that are in use
        self._found_lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._garbage: queue.SimpleQueue[list[Location] | str] = queue.SimpleQueue()  # rows, or the name of an owner
        for work in (self._watch, self._clean):
            threading.Thread(target=work, name="tunegym-dataplane-units", daemon=True).start()

    # the usage ----------------------------------------------------------------------------------------

    def keep(self, location: Location) -> None:
        """See ``BlockUsage.keep``."""
        if location["unit"] not in self.layout.ids:
            raise StorageError("the storage unit of this put is gone", hint="put the samples again")
        self._live.add(location["key"])

    def free(self, locations: Iterable[Location]) -> None:
        """See ``BlockUsage.free``."""
        mine = [location for location in locations if location["key"] in self._live]
        self._live -= {location["key"] for location in mine}
        if mine:
            self._garbage.put(mine)

    def free_of(self, owner: str) -> None:
        """Free the rows of a client that is gone which the ledger does not know."""
        self._garbage.put(owner)

    def recover(self, locations: Iterable[Location]) -> list[str]:
        """See ``BlockUsage.recover``: the units that are gone."""
        known = list(locations)
        self._live = {location["key"] for location in known}
        return sorted({location["unit"] for location in known} - {*self.layout.ids})

    def sweep(self) -> None:
        """See ``BlockUsage.sweep``: ``free_of`` does it."""

    def moves(self, ledger: Any) -> None:
        """See ``BlockUsage.moves``: none, a put is freed as a whole."""

    def take_lost(self) -> list[str]:
        """The ids of units that are found to be gone, each once. Then ``bury`` them."""
        return [self._found_lost.get() for _ in range(self._found_lost.qsize())]

    def bury(self, unit: str) -> None:
        """The samples of a unit are cleared: readers and producers may know that it is gone."""
        layout = self.layout
        self.layout = Layout(layout.controller, layout.units, layout.lost | {unit})

    def end(self) -> None:
        """End the controller and the units, and with them all bytes."""
        for actor in (*self._units, self._controller):
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    # threads ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after the units: report those that are gone, and start others in their place."""
        reported: set[str] = set()
        fresh: dict[int, Any] = {}  # the first answers of new units, by slot
        while True:
            time.sleep(LOOK_S)
            if self._is_gone(self._controller):
                self._replace_controller()
            for slot, unit in enumerate(self.layout.units):
                if slot in fresh:
                    self._admit(slot, fresh)
                elif unit.id in self.layout.lost:
                    self._units[slot] = self._make_unit(slot)
                    fresh[slot] = self._units[slot].get_zmq_server_info.remote()
                elif unit.id not in reported and self._is_gone(self._units[slot]):
                    logger.error("a storage unit on %s is gone, and the bytes in it", unit.ip)
                    reported.add(unit.id)
                    self._found_lost.put(unit.id)

    def _replace_controller(self) -> None:
        """Start over: another controller would hand out rows that are in use."""
        logger.error("TransferQueue's controller is gone, and all bytes")
        for unit in self._units:
            self._ray.kill(unit)
        self._controller = self._make_controller()
        with contextlib.suppress(self._ray.exceptions.RayError):  # then it is gone, too
            info = self._ray.get(self._controller.get_zmq_server_info.remote(), timeout=START_S)
            self.layout = Layout(info, self.layout.units, self.layout.lost)

    def _is_gone(self, actor: Any) -> bool:
        try:
            self._ray.get(actor.get_zmq_server_info.remote(), timeout=10 * LOOK_S)
        except self._ray.exceptions.ActorDiedError:
            return True
        except self._ray.exceptions.RayError:  # it can't be asked now
            pass
        return False

    def _admit(self, slot: int, fresh: dict[int, Any]) -> None:
        """Use a new unit, if it answers by now."""
        if not self._ray.wait([fresh[slot]], timeout=0)[0]:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):  # it is gone, too: start another one
            info, layout = self._ray.get(fresh[slot]), self.layout
            units = (*layout.units[:slot], info, *layout.units[slot + 1 :])
            self.layout = Layout(layout.controller, units, layout.lost - {layout.units[slot].id})
        del fresh[slot]

    def _clean(self) -> None:
        """Free rows. What fails stays in its unit until the plane ends."""
        link: _Link | None = None
        while True:
            garbage = self._garbage.get()
            try:
                if link is None or link.layout.ids != self.layout.ids:
                    link = _Link(self.layout)
                if isinstance(garbage, str):
                    there = link.start(link.client.async_kv_list()).result(START_S)
                    keys = {name: [key for key in of if self._is_left(key, garbage)] for name, of in there.items()}
                else:
                    keys = {}
                    for location in garbage:
                        if location["unit"] in link.layout.ids:
                            keys.setdefault(location["partition"], []).append(location["key"])
                for partition_id, some in keys.items():
                    if some:
                        link.start(_clear(link.client, partition_id, some)).result(START_S)
            except Exception as error:
                logger.warning("rows could not be freed: %s: %s", type(error).__name__, error)

    def _is_left(self, key: str, owner: str) -> bool:
        return key.startswith(f"{owner}-") and key not in self._live


async def _clear(client: Any, partition_id: str, keys: list[str]) -> None:
    found = await client.async_kv_retrieve_meta(keys, partition_id)
    if found.size:
        await client.async_clear_samples(found)
