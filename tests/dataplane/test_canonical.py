"""The canonical flow: rollouts from another process, two weight versions, four ranks, two tasks, nothing lost."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.dataplane.durable import without_hosts

from tunegym.dataplane import (
    BatchMeta,
    DataPlaneClient,
    StalenessFilter,
    Tag,
    attach,
    connect,
    read_columns,
    shard_meta_for_dp,
    write_columns,
)
from tunegym.dataplane.errors import EndOfStreamError, SampleError

SHARED_MEMORY = Path("/dev/shm")
FIELDS = ["tokens", "logprobs", "mask", "messages"]
VERSIONS, PER_VERSION, RANKS = (3, 5), 24, 4

PRODUCER = """
import sys
import numpy as np
from tunegym.dataplane import attach, kv_first_write

plane = attach(sys.argv[1])
for version in (3, 5):
    lengths = [5 + (7 * at) % 11 for at in range(24)]
    kv_first_write(
        plane,
        "rollouts",
        [f"v{version}-{at}" for at in range(24)],
        {
            "tokens": [np.arange(length) + 1000 * version + at for at, length in enumerate(lengths)],
            "logprobs": [np.full(length, -0.5 * version, dtype=np.float32) for length in lengths],
            "mask": [np.arange(length) >= 2 for length in lengths],
            "messages": [[{"role": "user", "content": f"question {at}"}] for at in range(24)],
        },
        tags=[{"weight_version": version, "prompt": at} for at in range(24)],
    )
plane.seal("rollouts")
plane.close()
"""


@pytest.mark.slow
def test_the_canonical_flow(tmp_path: Path) -> None:
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
    with tempfile.TemporaryDirectory(prefix="tunegym-test-", dir=where) as folder, without_hosts(Path(folder)):
        url = f"mmap://{folder}/plane"
        with connect(url, linger_s=0.5) as driver:
            flow(url, driver)


def flow(url: str, driver: DataPlaneClient) -> None:
    driver.register_partition("rollouts", [*FIELDS, "advantages"], ["score", "train"])
    producer = subprocess.Popen([sys.executable, "-c", PRODUCER, url])
    produced = [f"v{version}-{at}" for version in VERSIONS for at in range(PER_VERSION)]
    kept: list[str] = []
    dropped: list[str] = []
    while True:
        try:
            claimed = driver.claim_meta("rollouts", "score", FIELDS, 16, min_batch=RANKS)
        except EndOfStreamError:
            break
        keep, drop = StalenessFilter(max_staleness=1).split(claimed, current_weight_version=5)
        for part, version in ((keep, 5), (drop, 3)):
            assert all(tags["weight_version"] == version for tags in part.tags or ())
            prompts = [int(one.partition("-")[2]) for one in part.sample_ids]
            assert [tags["prompt"] for tags in part.tags or ()] == prompts
        if keep.size:
            shards, inverse = shard_meta_for_dp(keep, RANKS, allow_empty=True)
            sums = [rank(url, shard.meta, shard.pad_to) for shard in shards if shard.size]
            write_columns(driver, keep, {"advantages": np.concatenate(sums)[inverse]})
            driver.ack(keep)
        if drop.size:
            assert driver.clear_samples("rollouts", drop.sample_ids, "stale") == drop.size
            with pytest.raises(SampleError):
                driver.get_samples(drop, ["tokens"])
        kept += keep.sample_ids
        dropped += drop.sample_ids
    assert producer.wait() == 0
    assert Counter(kept + dropped) == Counter(produced)
    assert all(one.startswith("v3-") for one in dropped)
    assert driver.check_consumption_status("rollouts", ["score"])
    assert not driver.check_consumption_status("rollouts", ["score", "train"])

    trained = driver.claim_meta("rollouts", "train", ["tokens", "advantages"], len(kept), where=Tag("prompt") >= 0)
    columns = read_columns(driver, trained, ["tokens", "advantages"], pad_values={"tokens": 0})
    np.testing.assert_array_equal(columns["advantages"], columns["tokens"].sum(axis=1))
    driver.ack(trained, version=6)
    assert Counter(trained.sample_ids) == Counter(kept)
    assert driver.check_consumption_status("rollouts", ["score", "train"])

    stats = driver.stats()["rollouts"]
    assert stats["produced"] == len(produced)
    assert stats["gone"] == {"stale": len(dropped)}
    assert {name: task["acked"] for name, task in stats["tasks"].items()} == {"score": len(kept), "train": len(kept)}


def rank(url: str, meta: BatchMeta, pad_to: int | None) -> np.ndarray:
    """What one rank does: it attaches, reads its columns at the common length, and gives a number for each sample."""
    with attach(url) as plane:
        read = read_columns(plane, meta, ["tokens", "logprobs", "mask"], pad_to=pad_to)
        assert {name: column.dtype for name, column in read.items()} == {
            "tokens": np.dtype(np.int64),
            "logprobs": np.dtype(np.float32),
            "mask": np.dtype(bool),
        }
        assert {column.shape for column in read.values()} == {(meta.size, pad_to)}
        lengths = np.asarray(meta.sequence_lengths)
        np.testing.assert_array_equal((read["logprobs"] != 0).sum(axis=1), lengths)
        np.testing.assert_array_equal(read["mask"].sum(axis=1), lengths - 2)
        for tags, log in zip(meta.tags or (), plane.get_samples(meta, ["messages"])["messages"], strict=True):
            assert log == [{"role": "user", "content": f"question {tags['prompt']}"}]
        return read["tokens"].sum(axis=1)
