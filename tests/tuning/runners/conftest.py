from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MISSING
from tools import slurm_cluster
from tools.slurm_cluster import SlurmCluster

from tunegym.tuning.runners.local import LocalRunner
from tunegym.tuning.runners.slurm import SlurmConfig, SlurmRunner


@pytest.fixture
def runner(token: str) -> Iterator[LocalRunner]:
    local = LocalRunner(token, slots=2)
    yield local
    local.close()


@pytest.fixture(scope="session")
def slurm_cluster_of_worker() -> Iterator[SlurmCluster]:
    """A Slurm of three nodes for all tests of this worker."""
    if (lacking := slurm_cluster.missing()) is not None:
        pytest.skip(f"{MISSING}{lacking}")
    folder = Path(tempfile.mkdtemp(prefix="tg-slurm-"))  # a short path, for munge's socket
    with slurm_cluster.running(SlurmCluster(folder / "c")) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_cluster_of_worker: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, whose commands work in this test; at its end no job of ours may be left."""
    for name, value in slurm_cluster_of_worker.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm_cluster_of_worker
    slurm_cluster.wait_for(lambda: not slurm_cluster_of_worker.queue(), "an empty queue")


def runner_on(token: str | None = None, slots: int = 1, **settings: Any) -> SlurmRunner:
    """A runner that asks the queue often."""
    config = SlurmConfig(**{"poll_interval_s": 0.5, **settings})
    return SlurmRunner(token or uuid.uuid4().hex, slots, config)
