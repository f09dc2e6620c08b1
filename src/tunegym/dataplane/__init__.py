"""The rollout buffer of asynchronous RL: claims that are leases, nothing lost, nobody waits.

``connect(url)`` gives a client of a plane; names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunegym.dataplane.client import DataPlaneClient
    from tunegym.dataplane.columns import cut, kv_first_write, read_columns, write_columns
    from tunegym.dataplane.drops import DropCounts
    from tunegym.dataplane.filters import All, BaseRolloutFilter, StalenessFilter, TagFilter
    from tunegym.dataplane.model import BatchMeta, PartitionSpec
    from tunegym.dataplane.planes import attach, connect
    from tunegym.dataplane.predicate import Tag
    from tunegym.dataplane.sharding import Shard, shard_meta_for_dp
    from tunegym.dataplane.staleness import Admission, StalenessPolicy

_EXPORTS = {
    "Admission": "staleness",
    "All": "filters",
    "BaseRolloutFilter": "filters",
    "BatchMeta": "model",
    "DataPlaneClient": "client",
    "DropCounts": "drops",
    "PartitionSpec": "model",
    "Shard": "sharding",
    "StalenessFilter": "filters",
    "StalenessPolicy": "staleness",
    "Tag": "predicate",
    "TagFilter": "filters",
    "attach": "planes",
    "connect": "planes",
    "cut": "columns",
    "kv_first_write": "columns",
    "read_columns": "columns",
    "shard_meta_for_dp": "sharding",
    "write_columns": "columns",
}

__all__ = [
    "Admission",
    "All",
    "BaseRolloutFilter",
    "BatchMeta",
    "DataPlaneClient",
    "DropCounts",
    "PartitionSpec",
    "Shard",
    "StalenessFilter",
    "StalenessPolicy",
    "Tag",
    "TagFilter",
    "attach",
    "connect",
    "cut",
    "kv_first_write",
    "read_columns",
    "shard_meta_for_dp",
    "write_columns",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tunegym.dataplane' has no attribute {name!r}")
    value = getattr(import_module(f"tunegym.dataplane.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
