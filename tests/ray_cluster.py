"""A real Ray cluster of three simulated nodes on loopback, one for each process of the tests."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

IP = "127.0.0.2"
"""Ray would replace 127.0.0.1 by the host's address."""


class ThreeNodes:
    """The cluster: a head and two more nodes of one CPU each. ``address`` is for drivers."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._node(include_dashboard=False))
        self.address: str = self._cluster.address
        self.nodes = [self.add_node() for _ in range(2)]

    @staticmethod
    def _node(**options: Any) -> dict[str, Any]:
        return {"num_cpus": 1, "node_ip_address": IP, "object_store_memory": 80 * 1024 * 1024, **options}

    @property
    def all_nodes(self) -> list[Any]:
        return list(self._cluster.list_all_nodes())

    def add_node(self, **options: Any) -> Any:
        return self._cluster.add_node(**self._node(**options))

    def remove_node(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the process that knows the cluster, as if its machine was gone."""
        self._cluster.head_node.kill_gcs_server()

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def three_nodes() -> Iterator[ThreeNodes]:
    """Start the cluster, and end it; nothing is left in the system's temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))  # short: sockets lie below it
    (folder / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = ThreeNodes()
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
