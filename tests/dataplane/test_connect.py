"""Finding a plane: URLs, folders, and forks."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dataplane.durable import without_hosts

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import ClosedError, DataPlaneError, SpecError, StorageError


@pytest.fixture(params=["memory", "mmap"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with without_hosts(tmp_path):
        yield "memory://planes" if request.param == "memory" else f"mmap://{tmp_path / 'plane'}"


@pytest.mark.parametrize("how", [connect, attach])
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (None, "write memory://name"),
        (b"memory://x", "write memory://name"),
        ("", "write memory://name"),
        ("/tmp/plane", "write memory://name"),
        ("tq://x", "known: memory, mmap"),
        ("memory://", "write for example memory://rollouts"),
        ("mmap://", "three slashes"),
        ("mmap://plane", "three slashes"),
        ("mmap://host/plane", "three slashes"),
        ("mmap:///a\0b", "three slashes"),
        ("mmap:///\ud800", "write memory://name"),
    ],
)
def test_a_url_that_is_none(how: Callable[..., DataPlaneClient], given: Any, hint: str) -> None:
    with pytest.raises(SpecError) as told:
        how(given)
    assert hint in (told.value.hint or "")


def test_a_folder_that_can_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for how in (connect, attach):
        for place in ("file", "file/below"):
            with pytest.raises(StorageError) as told:
                how(f"mmap://{tmp_path / place}")
            assert told.value.hint
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "plane").mkdir(mode=0o700)
    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    for how in (connect, attach):
        with pytest.raises(StorageError, match="Permission denied"):
            how(f"mmap://{tmp_path / 'plane'}")


def in_a_fork(do: Callable[[], Any]) -> Any:
    """What it gives, or the error, in a forked child."""
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
def test_a_client_in_a_fork_says_so(url: str) -> None:
    """Also while other threads of the parent use it; and the parent's claims stay the parent's."""
    over = threading.Event()
    with connect(url, linger_s=0.5) as plane:
        plane.register_partition("p", ["x"], ["train", "judge"])
        plane.put_samples("p", ["a", "b"], {"x": np.arange(2)})
        claimed = plane.claim_meta("p", "train", ["x"], 2)

        def look() -> None:
            while not over.is_set():
                plane.stats()

        busy = threading.Thread(target=look)
        busy.start()

        def use() -> Any:
            with pytest.raises(ClosedError, match="this process is a fork"):
                plane.put_samples("p", ["c"], {"x": np.arange(1)})
            plane.close()
            return plane.stats()

        try:
            for _ in range(5):
                assert "this process is a fork" in in_a_fork(use)
        finally:
            over.set()
            busy.join()
        plane.ack(claimed)
        assert plane.stats()["p"]["produced"] == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_connects_by_itself(url: str) -> None:
    with connect(url, linger_s=0.5) as plane:
        plane.register_partition("p", ["x"], ["train"])

        def join() -> Any:
            with attach(url) as own:
                own.put_samples("p", ["c"], {"x": np.arange(1)})
                return own.durable

        found = in_a_fork(join)
        if plane.durable:
            assert found is True
            assert plane.claim_meta("p", "train", ["x"], 1).sample_ids == ("c",)
        else:
            assert "there is no plane memory://planes in this process" in found
