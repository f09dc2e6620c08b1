"""The process of a ledger host: how it begins, whom it hears, and what it says when it can't go on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import DataPlaneError, SampleError, StorageError
from tunegym.dataplane.hosts import starting
from tunegym.dataplane.hosts.frames import LENGTH, pack
from tunegym.testing.dataplane import until
from tunegym.testing.durable_planes import hosts_of, kill_host, without_hosts

pytestmark = pytest.mark.slow  # every test starts a host

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


def test_a_snapshot_of_another_time_is_told(folder: Path) -> None:
    filled(folder)
    (folder / "ledger-00000001.journal").write_bytes(b"changes after a snapshot that is not there")
    with pytest.raises(StorageError, match="snapshot is missing"):
        joined(folder)


def test_whoever_waits_is_told_that_the_ledger_is_lost(folder: Path) -> None:
    with joined(folder) as plane:
        plane.register_partition("p", ["x"], ["train"])
        (host,) = hosts_of(folder)
        os.kill(host, 19)  # it can't go on, and so can't write
        (folder / "ledger-00000000.journal").write_bytes(b"damaged" * 100)
        os.kill(host, 9)
        with pytest.raises(StorageError, match="is damaged"):
            plane.put_samples("p", ["a"], {"x": [1]})


def test_a_host_that_dies_while_it_starts_is_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, commands = subprocess.Popen, [["false"], ["sh", "-c", "exit 3"]]

    def dying(command: list[str], **options: Any) -> Any:
        return real(commands.pop() if commands else command, **options)

    monkeypatch.setattr(starting.subprocess, "Popen", dying)
    with joined(folder) as plane:
        assert commands == []
        assert plane.stats() == {}


def test_what_a_host_says_does_not_fill_the_disk(folder: Path) -> None:
    filled(folder)
    log = folder / "host.log"
    log.write_bytes(bytes(2 << 20))
    with joined(folder):
        assert log.stat().st_size < 10 * KB
        assert b"the ledger is there" in log.read_bytes()


# whom it hears ----------------------------------------------------------------------------------------

STRANGER = """
import os, socket, sys
from tunegym.dataplane import attach
from tunegym.dataplane.hosts import connection, starting
from tunegym.dataplane.storage import mmap
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    attach("mmap://" + sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
with socket.socket(socket.AF_UNIX) as connected:
    connected.connect(sys.argv[1] + "/host.sock")
    connected.sendall(b"\\0" * 100)
    heard = b""
    while more := connected.recv(1000):
        heard += more
    print(heard)
"""


def test_another_user_is_not_heard() -> None:
    """Even where the folder lets everybody in."""
    if os.geteuid():
        pytest.skip(f"{MISSING}the right to become another user")
    with tempfile.TemporaryDirectory() as above, without_hosts(Path(above)):
        folder = Path(above) / "plane"
        with joined(folder) as plane:
            plane.register_partition("p", ["x"], ["train"])
            for path in (folder.parent, folder, *folder.iterdir()):
                path.chmod(0o777)
            told = subprocess.check_output([sys.executable, "-c", STRANGER, str(folder)], text=True, cwd="/")
            assert told.startswith("StorageError the plane is somebody else's\nhint: only processes of the user who")
            assert "StorageError" in told.splitlines()[-1]
            assert set(plane.stats()) == {"p"}


MANY_FILES = """
import os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
import numpy as np
from tunegym.dataplane import connect
with connect(sys.argv[1], linger_s=0.2) as plane:
    plane.register_partition("p", ["x"], ["t"])
    plane.put_samples("p", ["a"], {"x": np.ones(1)})
    print(plane.claim_meta("p", "t", ["x"], 1).sample_ids)
"""


def test_whoever_has_very_many_files_open_is_heard(folder: Path) -> None:
    command = [sys.executable, "-c", MANY_FILES, f"mmap://{folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "('a',)\n", done.stderr


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 100,
        LENGTH.pack(3) + b"{]}",
        pack([1]),
        pack("hello"),
        pack(None),
        pack({"format": 1}),
        pack({"format": 1, "client": {"name": "x"}}),
        pack({"format": 1, "client": []}),
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


def test_a_client_of_another_format_is_told(folder: Path) -> None:
    with joined(folder), socket.socket(socket.AF_UNIX) as other:
        other.connect(str(folder / "host.sock"))
        other.sendall(pack({"format": 99}))
        assert b"speaks format 1, this client 99" in other.recv(1000)


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
