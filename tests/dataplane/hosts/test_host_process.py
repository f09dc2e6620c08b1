"""The process of a ledger host: start, hostile input, other users, damage and full disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dataplane.durable import hosts_of, kill_host, without_hosts

from tunegym.core.wire import pack
from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import ClaimTimeoutError, DataPlaneError, NoPlaneError, SampleError, StorageError
from tunegym.dataplane.hosts import client
from tunegym.dataplane.hosts import folder as starting
from tunegym.dataplane.hosts.folder import FORMAT, bootstrap
from tunegym.testing.dataplane import until

pytestmark = [pytest.mark.slow, pytest.mark.invariant]  # every test starts a host; P3, P16

MISSING = "missing component: "
KB = 1 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with without_hosts(tmp_path):
        yield tmp_path / "plane"


def joined(folder: Path, how: Callable[..., DataPlaneClient] = connect) -> DataPlaneClient:
    return how(f"mmap://{folder}", linger_s=0.2)


def filled(folder: Path) -> None:
    with joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        plane.commit("p", "train", 0)
    kill_host(folder)


# beginnings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [connect, attach])
def test_a_damaged_journal_is_told_at_once(folder: Path, how: Callable[..., DataPlaneClient]) -> None:
    filled(folder)
    journal = folder / "ledger-00000000.journal"
    content = bytearray(journal.read_bytes())
    content[20] ^= 1
    journal.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StorageError, match="is damaged at byte 0") as error:
            joined(folder, how)
        assert "keep a copy" in (error.value.hint or "")
    until(lambda: not hosts_of(folder), "the host ends")
    content[20] ^= 1
    journal.write_bytes(content)
    with joined(folder, how) as plane:
        assert plane.stats()["p"]["alive"] == 2


def test_a_host_that_dies_while_it_starts_is_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, targets = starting.start_python, ["no.such.module:main", "os:abort"]

    def dying(target: str, *arguments: str, **options: Any) -> Any:
        return real(*([targets.pop()] if targets else [target, *arguments]), **options)

    monkeypatch.setattr(starting, "start_python", dying)
    with joined(folder) as plane:
        assert targets == []
        assert plane.stats() == {}


# whom it hears ----------------------------------------------------------------------------------------

IMPOSTOR = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


def test_a_host_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """It could only listen there while others might write to the folder."""
    if os.geteuid():
        pytest.skip(f"{MISSING}the right to become another user")
    with tempfile.TemporaryDirectory() as above, without_hosts(Path(above)):
        folder = Path(above) / "plane"
        bootstrap(folder)
        for path in (folder.parent, folder):
            path.chmod(0o777)
        command = [sys.executable, "-c", IMPOSTOR, str(folder / "host.sock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as impostor:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == "listens\n"
            folder.chmod(0o700)
            for how in (connect, attach):
                with pytest.raises(StorageError, match="is another user's"):
                    joined(folder, how)


def test_a_client_of_another_format_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(folder) as plane:
        with monkeypatch.context() as patched:
            patched.setattr(client, "FORMAT", 99)
            with pytest.raises(DataPlaneError, match=f"has format {FORMAT}, this client 99"):
                joined(folder, attach)
        assert plane.stats() == {}


def test_claims_that_wait_while_there_is_no_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P16: waits go on at the next host; a claim with a timeout ends in time even if no host comes."""
    may_start, real = threading.Event(), starting.start_python

    def held_up(*arguments: str, **options: Any) -> Any:
        assert may_start.wait(60)
        return real(*arguments, **options)

    monkeypatch.setattr(client, "GRACE_S", 0.1)
    with joined(folder) as plane, joined(folder, attach) as other, ThreadPoolExecutor() as pool:
        plane.register_partition("p", ["x", "y"], ["train", "judge"])
        waits = [(plane, "train", "x", None), (other, "judge", "y", 600)]
        waiting = [pool.submit(who.claim_meta, "p", task, [name], 2, timeout_s=s) for who, task, name, s in waits]
        until(lambda: plane.stats()["p"]["waiting"]["claims"] == 2, "both wait")
        monkeypatch.setattr(starting, "start_python", held_up)
        kill_host(folder)
        try:
            with pytest.raises(ClaimTimeoutError, match="did not answer"):
                plane.claim_meta("p", "train", ["x"], 1, timeout_s=0.1)
            put = pool.submit(plane.put_samples, "p", ["a", "b"], {"x": [1, 2]})
            assert not hosts_of(folder)
        finally:
            may_start.set()
        put.result(60)
        other.put_samples("p", ["a", "b"], {"y": [3, 4]})
        for one, (who, _, name, _) in zip(waiting, waits, strict=True):
            claimed = one.result(60)
            assert (claimed.sample_ids, len(who.get_data(claimed)[name].to_list())) == (("a", "b"), 2)
            who.ack(claimed)
        assert plane.stats()["p"]["waiting"]["claims"] == 0


@pytest.mark.parametrize("name", ["host.log", "start.lock"])
def test_links_are_not_followed(folder: Path, name: str) -> None:
    filled(folder)
    until(lambda: not hosts_of(folder), "the host ends")
    victim = folder.parent / "victim"
    victim.write_bytes(bytes(2 << 20))
    (folder / name).unlink()
    (folder / name).symlink_to(victim)
    with pytest.raises(StorageError, match=f"{name} is a symbolic link"):
        joined(folder)
    assert victim.read_bytes() == bytes(2 << 20)


FORKS = """
import os, sys, time
from tunegym.dataplane import attach
plane = attach(sys.argv[1])
plane.claim_meta("p", "train", ["x"], 2)
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def test_what_a_dead_client_claimed_is_given_back_though_its_child_lives(folder: Path) -> None:
    with joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        command = [sys.executable, "-c", FORKS, f"mmap://{folder}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            child = int(owner.stdout.readline())
            try:
                owner.kill()
                assert plane.claim_meta("p", "train", ["x"], 2, timeout_s=30).sample_ids == ("a", "b")
            finally:
                os.kill(child, 9)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 100,
        pack([1])[:16] + b"[1}",
        pack([1]),
        pack("hello"),
        pack(None),
        pack({"format": FORMAT}),
        pack({"format": FORMAT, "client": {"name": "x"}}),
        pack({"format": FORMAT, "client": []}),
    ],
)
def test_somebody_who_speaks_another_language_hurts_nobody(folder: Path, message: bytes) -> None:
    with joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        hosts = hosts_of(folder)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(folder / "host.sock"))
            other.settimeout(10)
            other.sendall(message)
            assert other.recv(1000) == b""
        plane.put_samples("p", ["a"], {"x": [1]})
        assert hosts_of(folder) == hosts


def test_a_call_that_the_host_fails_at_is_an_error_for_its_caller_only(folder: Path) -> None:
    """And not one that is asked again for ever; others, who wait, notice nothing."""
    with joined(folder) as plane, joined(folder, attach) as other, ThreadPoolExecutor(1) as threads:
        plane.register_partition("p", ["x"], ["train"])
        waiting = threads.submit(other.claim_meta, "p", "train", ["x"], 1)
        until(lambda: plane.stats()["p"]["waiting"]["claims"] == 1, "it waits")
        hosts = hosts_of(folder)
        for operation, arguments in (("claim", {"partition_id": "p"}), ("put", {}), ("ack", {"partition_id": ["p"]})):
            with pytest.raises(DataPlaneError, match="failed at this call"):
                plane._host.call(operation, arguments)
        plane.put_samples("p", ["a"], {"x": [1]})
        assert waiting.result(30).sample_ids == ("a",)
        assert hosts_of(folder) == hosts


def test_what_a_stopped_host_was_asked_for_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim ends in time, and what it got when the host goes on is others'."""
    monkeypatch.setattr(client, "GRACE_S", 0.2)
    with joined(folder) as plane, joined(folder, attach) as other:
        plane.register_partition("p", ["x"], ["train"])
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        (host,) = hosts_of(folder)
        os.kill(host, 19)
        try:
            with pytest.raises(ClaimTimeoutError, match="did not answer"):
                plane.claim_meta("p", "train", ["x"], 2, timeout_s=0.1)
        finally:
            os.kill(host, 18)
        assert other.claim_meta("p", "train", ["x"], 2, timeout_s=30).sample_ids == ("a", "b")


# damage -----------------------------------------------------------------------------------------------


def test_a_corrupt_segment_is_an_error_for_its_samples_only(folder: Path) -> None:
    with joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        plane.put_samples("p", ["a", "b"], {"x": np.arange(2)})
        (segment,) = (folder / "segments").iterdir()
        with segment.open("r+b") as file:
            file.seek(64)
            file.write(b"not a block")
        plane.put_samples("p", ["c"], {"x": np.arange(1)})
        kill_host(folder)
        claimed = plane.claim_meta("p", "train", ["x"], 3)
        with pytest.raises(StorageError, match="is damaged at 64") as error:
            plane.get_data(claimed)
        assert "clear these samples" in (error.value.hint or "")
        assert plane.get_data(claimed.drop(["a", "b"]))["x"].dense().tolist() == [0]
        assert plane.clear_samples("p", ["a", "b"], "damaged") == 2
        plane.ack(claimed.drop(["a", "b"]))
        with pytest.raises(SampleError, match="ids are used once"):
            plane.put_samples("p", ["a"], {"x": np.arange(1)})
        plane.put_samples("p", ["a2", "b2"], {"x": np.arange(2)})
        assert plane.get_data(plane.claim_meta("p", "train", ["x"], 2))["x"].dense().tolist() == [0, 1]


# a full disk ------------------------------------------------------------------------------------------


def test_a_small_disk_that_is_full(tmp_path: Path, mount: Callable[[Path, str], Path]) -> None:
    """A clear error, nothing acknowledged is lost, and clearing makes room again."""
    folder = mount(tmp_path / "disk", "size=8m") / "plane"
    with without_hosts(folder), joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        there: list[str] = []

        def fill(size: int) -> None:
            while True:
                name = f"s{len(there)}-{size}"
                plane.put_samples("p", [name], {"x": np.full((1, size), len(there), dtype=np.uint8)})
                there.append(name)

        size = 256 * KB
        while size >= 8:  # until there is no room for anything
            with pytest.raises(StorageError, match="No space left"):
                fill(size)
            size //= 2
        stats = plane.stats()["p"]
        assert (stats["produced"], stats["alive"]) == (len(there), len(there))
        kill_host(folder)
        assert plane.stats()["p"]["alive"] == len(there)
        assert plane.clear_samples("p", there[:16], "no room") == 16
        left = plane.claim_meta("p", "train", ["x"], len(there) - 16)
        assert left.sample_ids == tuple(there[16:])
        for at, row in enumerate(plane.get_data(left)["x"].to_list(), 16):
            assert (row == at).all()
        plane.ack(left)
        plane.put_samples("p", ["more"], {"x": np.zeros((1, 256 * KB), dtype=np.uint8)})


def test_a_disk_without_room_for_a_claim_or_a_new_client(tmp_path: Path, mount: Callable[[Path, str], Path]) -> None:
    """The last of the journal's reserve is for clearing; with room again everything goes on."""
    disk = mount(tmp_path / "disk", "size=8m")
    folder, ballast = disk / "plane", disk / "ballast"
    with without_hosts(folder), joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        plane.put_samples("p", [f"s{at}" for at in range(50)], {"x": np.arange(50)})
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

        def use_up() -> None:
            while True:
                plane.release(plane.claim_meta("p", "train", ["x"], 50))

        for call in (use_up, lambda: joined(folder, attach)):
            with pytest.raises(StorageError, match="No space left") as error:
                call()
            assert "make room" in (error.value.hint or "")
        assert plane.clear_samples("p", ["s0"]) == 1
        ballast.unlink()
        with joined(folder, attach) as other:
            assert other.claim_meta("p", "train", ["x"], 49).size == 49
            plane.put_samples("p", ["more"], {"x": np.arange(1)})


def test_whoever_removes_the_folder_ends_the_plane(folder: Path) -> None:
    """Nothing is acknowledged that nobody will find, and another plane in its place is left alone."""
    with joined(folder) as plane, ThreadPoolExecutor() as pool:
        plane.register_partition("p", ["x"], ["train"])
        waiting = pool.submit(plane.claim_meta, "p", "train", ["x"], 1, timeout_s=None)
        shutil.rmtree(folder)
        with pytest.raises(NoPlaneError):
            waiting.result(30)
        until(lambda: not hosts_of(folder), "the host ends")
        with joined(folder) as other:
            assert other.stats() == {}
            other.register_partition("q", ["x"], ["train"])
            other.put_samples("q", ["a"], {"x": [1]})
            assert other.stats()["q"]["alive"] == 1
