"""The rollout buffer of asynchronous RL: claims are leases, and no sample is lost.

``connect(url)`` returns a client of a plane.
"""

from __future__ import annotations

from tunegym.dataplane.client import DataPlaneClient, Producer, RolloutToken
from tunegym.dataplane.columns import cut, kv_first_write, read_columns, write_columns
from tunegym.dataplane.connect import attach, connect, rollout_filter
from tunegym.dataplane.errors import (
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    EndOfStreamError,
    EpochError,
    FieldError,
    FullError,
    HostTimeoutError,
    LeaseLostError,
    LostError,
    NoPlaneError,
    SampleError,
    SealedError,
    SpecError,
    StorageError,
    TagError,
    UnknownPartitionError,
)
from tunegym.dataplane.filters import (
    All,
    BaseRolloutFilter,
    DropCounts,
    GroupFilter,
    StalenessFilter,
    TagFilter,
    claim_groups,
)
from tunegym.dataplane.model import BatchMeta, PartitionSpec
from tunegym.dataplane.predicate import Tag
from tunegym.dataplane.sharding import Shard, shard_meta_for_dp
from tunegym.dataplane.staleness import Admission, StalenessPolicy

__all__ = [
    "Admission",
    "All",
    "BaseRolloutFilter",
    "BatchMeta",
    "ClaimTimeoutError",
    "ClosedError",
    "DataPlaneClient",
    "DataPlaneError",
    "DropCounts",
    "EndOfStreamError",
    "EpochError",
    "FieldError",
    "FullError",
    "GroupFilter",
    "HostTimeoutError",
    "LeaseLostError",
    "LostError",
    "NoPlaneError",
    "PartitionSpec",
    "Producer",
    "RolloutToken",
    "SampleError",
    "SealedError",
    "Shard",
    "SpecError",
    "StalenessFilter",
    "StalenessPolicy",
    "StorageError",
    "Tag",
    "TagError",
    "TagFilter",
    "UnknownPartitionError",
    "attach",
    "claim_groups",
    "connect",
    "cut",
    "kv_first_write",
    "read_columns",
    "rollout_filter",
    "shard_meta_for_dp",
    "write_columns",
]
