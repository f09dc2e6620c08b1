"""This process's connection to a Ray cluster: the one at an address, or one that is started on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import TunegymError


class RayConnection:
    """Connects to the cluster at ``address``, or starts one for this process alone.

    A process has one connection to Ray. All objects of this class share it, and the last one that closes ends it.

    Args:
        scratch: the folder of a cluster that is started here, with what removes it.
        error: the class of errors.
        num_cpus: of a cluster that is started here; None for those of the machine.

    Attributes:
        ray: the package, once connected.
        head: the address of the cluster's head.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _cleanup: ClassVar[contextlib.ExitStack] = contextlib.ExitStack()  # ends the connection, if it is ours
    _users: ClassVar[int] = 0

    def __init__(
        self,
        address: str | None,
        scratch: Callable[[], contextlib.AbstractContextManager[Path | str]],
        error: type[TunegymError],
        num_cpus: int | None = None,
    ) -> None:
        self.ray: Any = None
        self.head = ""
        self._address, self._scratch, self._error, self._num_cpus = address, scratch, error, num_cpus

    def connect(self) -> None:
        """Connect, if that wasn't done. Raises the error: the cluster can't be reached."""
        with self._lock:
            if self.ray is not None:
                return
            ray = import_extra("ray", "ray", self._error)
            if is_first := not ray.is_initialized():
                RayConnection._users = 0  # if somebody else ended it, nobody has one
                self._cleanup.close()
                with contextlib.ExitStack() as cleanup:
                    # A thread for the life of the connection: the processes of a cluster of our own end with the thread
                    # that started them.
                    keeper = cleanup.enter_context(ThreadPoolExecutor(1, "tunegym-ray"))
                    keeper.submit(_own_sigterm()(self._begin), ray, cleanup).result()
                    cleanup.callback(lambda: keeper.submit(_own_sigterm()(ray.shutdown)).result())
                    self._cleanup.push(cleanup.pop_all())
            self.head = str(ray.get_runtime_context().gcs_address)
            if not is_first and self._address not in (None, "auto", self.head):
                what = f"this process is connected to the Ray cluster at {self.head}, not to {self._address}"
                raise self._error(what, hint="call ray.shutdown() before, or name the same cluster")
            self.ray = ray
            RayConnection._users += 1

    def _begin(self, ray: Any, cleanup: contextlib.ExitStack) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)  # it would complain that this isn't the main thread
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is not None:
            what = f"the Ray cluster at {self._address} can't be reached"
            hint = "is it up? needs it a token? `ray status --address ADDRESS` must answer here, on one of its nodes"
            options["address"] = self._address
        else:
            folder = Path(cleanup.enter_context(self._scratch()))
            what = "no Ray cluster can be started on this machine"
            hint = f"is there room in {folder.parent}? its path must be short, too"
            # "local" whatever RAY_ADDRESS and running clusters say
            options |= {"address": "local", "include_dashboard": False, "_temp_dir": str(folder)}
            options |= {} if self._num_cpus is None else {"num_cpus": self._num_cpus}
            if sys.platform == "linux":
                options["_node_ip_address"] = "127.0.0.2"
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            if re.fullmatch(r"[^/]+:\d+", options["address"]):
                call_at(options["address"], 10.0)  # Ray itself would try for a minute
            ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._error(f"{what}: {error}", hint=hint) from error

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started for us and nobody else uses it. Twice is fine."""
        with self._lock:
            RayConnection._users -= self.ray is not None
            self.ray = None
            if not self._users:
                self._cleanup.close()

    def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]


def import_extra(package: str, extra: str, error: type[TunegymError]) -> Any:
    """A package. Raises the error, which names the extra, if it isn't installed."""
    try:
        return importlib.import_module(package)
    except ImportError as missing:
        raise error(f"this needs the package {package}: {missing}", hint=f"pip install 'tunegym[{extra}]'") from None


def call_at(address: str, timeout_s: float) -> None:
    """Raises ``OSError``: nothing listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep our handler of SIGTERM: Ray puts in its own, and at its end takes out any.

    In C, since ``signal.signal`` works in the main thread only.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    put.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = get(signal.SIGTERM)
    try:
        yield
    finally:
        put(signal.SIGTERM, handler)
