"""Every plane keeps the contract."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dataplane.durable import DurablePlaneSuite, hosts_of, without_hosts

from tunegym.testing.dataplane import DataPlaneSuite

pytestmark = pytest.mark.invariant

SHARED_MEMORY = Path("/dev/shm")


class TestMemory(DataPlaneSuite):
    def url(self, folder: Path) -> str:
        return f"memory://{folder.parent.name}"


@pytest.mark.slow  # every test starts a host; what all planes have in common is quick to see above
class TestMmap(DurablePlaneSuite):
    def url(self, folder: Path) -> str:
        return f"mmap://{folder}"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
        with tempfile.TemporaryDirectory(prefix="tunegym-test-", dir=where) as folder, without_hosts(Path(folder)):
            yield Path(folder) / "plane"
            # clients are closed by now


def test_no_host_where_there_was_none(tmp_path: Path) -> None:
    assert hosts_of(tmp_path) == []
