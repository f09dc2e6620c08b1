"""Every plane keeps the contract; URLs, folders and forks lead to a plane or to a clear refusal (P13)."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import raising
from tests.dataplane.durable import DurablePlaneSuite, without_hosts

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import ClosedError, DataPlaneError, SpecError, StorageError
from tunegym.dataplane.hosts import client
from tunegym.testing.dataplane import DataPlaneSuite


@pytest.mark.invariant
class TestMemory(DataPlaneSuite):
    def url(self, folder: Path) -> str:
        return f"memory://{folder.parent.name}"


@pytest.mark.invariant
@pytest.mark.slow  # every test starts a host
class TestMmap(DurablePlaneSuite):
    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A host on a busy machine may answer late."""
        monkeypatch.setattr(client, "GRACE_S", 60.0)
        monkeypatch.setattr(client, "ABANDON_S", 60.0)

    def url(self, folder: Path) -> str:
        return f"mmap://{folder}"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        where = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
        with tempfile.TemporaryDirectory(prefix="tunegym-test-", dir=where) as folder, without_hosts(Path(folder)):
            yield Path(folder) / "plane"  # clients are closed by then


@pytest.fixture(params=["memory", "mmap"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with without_hosts(tmp_path):
        yield "memory://planes" if request.param == "memory" else f"mmap://{tmp_path / 'plane'}"


@pytest.mark.parametrize("how", [connect, attach])
def test_wrong_urls_are_refused(how: Callable[..., DataPlaneClient]) -> None:
    wrong: dict[str, list[Any]] = {
        "write memory://name": [None, b"memory://x", "", "/tmp/plane", "mmap:///\ud800"],
        "known: memory, mmap, tq": ["nope://x"],
        "write for example memory://rollouts": ["memory://"],
        "three slashes": ["mmap://", "mmap://plane", "mmap://host/plane", "mmap:///a\0b"],
    }
    for hint, urls in wrong.items():
        for one in urls:
            with pytest.raises(SpecError) as told:
                how(one)
            assert hint in (told.value.hint or "")


@pytest.mark.parametrize("how", [connect, attach])
def test_unusable_folders_are_refused(
    how: Callable[..., DataPlaneClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for place in ("file", "file/below"):
        with pytest.raises(StorageError) as told:
            how(f"mmap://{tmp_path / place}")
        assert told.value.hint
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    refused = raising(PermissionError, 13, "Permission denied")
    (tmp_path / "plane").mkdir(mode=0o700)
    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(StorageError, match="Permission denied"):
        how(f"mmap://{tmp_path / 'plane'}")


def in_a_fork(do: Callable[[], Any]) -> Any:
    """The result or the error's message in a forked child."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            there.send(do())
        except DataPlaneError as error:
            there.send(error.message)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert here.poll(60), "the child says nothing"
        return here.recv()
    finally:
        process.kill()
        process.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_makes_its_own_client(url: str) -> None:
    """Also while other threads of the parent use theirs; the parent's claims stay the parent's."""
    over = threading.Event()
    with connect(url, linger_s=0.5) as plane:
        plane.register_partition("p", ["x"], ["train", "judge"])
        plane.put_samples("p", ["a", "b"], {"x": np.arange(2)})
        claimed = plane.claim_meta("p", "train", ["x"], 2)

        def look() -> None:
            while not over.is_set():
                plane.stats()

        def use() -> Any:
            with pytest.raises(ClosedError, match="this process is a fork"):
                plane.put_samples("p", ["c"], {"x": np.arange(1)})
            plane.close()
            return plane.stats()

        def join() -> Any:
            with attach(url) as own:
                own.put_samples("p", ["c"], {"x": np.arange(1)})
                return own.durable

        busy = threading.Thread(target=look)
        busy.start()
        try:
            for _ in range(5):
                assert "this process is a fork" in in_a_fork(use)
        finally:
            over.set()
            busy.join()
        found = in_a_fork(join)
        plane.ack(claimed)
        if plane.durable:
            assert found is True
            assert plane.claim_meta("p", "train", ["x"], 1).sample_ids == ("c",)
        else:
            assert "there is no plane memory://planes in this process" in found
