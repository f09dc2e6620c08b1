"""The folder and the process of a ledger host: refused folders, hostile input, damage and full disks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import MISSING
from tests.dataplane.durable import hosts_of, kill_host, without_hosts

from tunegym.core.wire import ConnectionClosedError, pack
from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import DataPlaneError, HostTimeoutError, NoPlaneError, StorageError
from tunegym.dataplane.hosts import client
from tunegym.dataplane.hosts import folder as starting
from tunegym.dataplane.hosts.folder import FORMAT, bootstrap
from tunegym.testing.dataplane import until

pytestmark = pytest.mark.invariant  # P3, P16
slow = pytest.mark.slow  # starts a host

PLANE = {"plane.json": f'{{"format": {FORMAT}}}', "ledger-00000000.journal": "planted"}
OTHER = 65534
KB = 1 << 10
Join = Callable[..., DataPlaneClient]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with without_hosts(tmp_path):
        yield tmp_path / "plane"


@pytest.fixture
def join(folder: Path) -> Iterator[Join]:
    """Connects clients, and closes them in the end."""
    with contextlib.ExitStack() as clients:
        yield lambda how=connect: clients.enter_context(how(f"mmap://{folder}", linger_s=0.2))


@pytest.fixture
def plane(join: Join) -> DataPlaneClient:
    """A plane with a partition."""
    plane = join()
    plane.register_partition("p", ["x", "y"], ["train", "judge"])
    return plane


def give_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip(f"{MISSING}the right to give files to another user")
    os.chown(path, OTHER, OTHER)


# folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [connect, attach])
@pytest.mark.parametrize(
    ("files", "owner", "mode", "message", "hint"),
    [
        (PLANE, OTHER, 0o700, f"belongs to another user \\({OTHER}\\)", "your own folder"),
        (PLANE, OTHER, 0o777, f"belongs to another user \\({OTHER}\\)", "your own folder"),
        (PLANE, None, 0o720, "others may write to", "chmod go-w"),
        (PLANE, None, 0o702, "others may write to", "chmod go-w"),
        ({"plane.json.new": None, "start.lock": ""}, None, 0o777, "others may write to", "chmod go-w"),
        ({"plane.json": '{"format": 3}'}, None, 0o700, f"has format 3, this tunegym knows {FORMAT}", "the version of"),
        ({"plane.json": "{"}, None, 0o700, "plane.json is damaged", ""),
        ({"thesis.txt": "mine"}, None, 0o700, "is not empty|there is no plane", ""),
    ],
)
def test_refused_folder_is_left_alone(
    folder: Path, how: Any, files: dict[str, str | None], owner: int | None, mode: int, message: str, hint: str
) -> None:
    folder.mkdir()
    for name, content in files.items():
        if content is None:
            (folder / name).symlink_to(folder.parent / "victim")
        else:
            (folder / name).write_text(content)
    if owner is not None:
        give_away(folder)
    folder.chmod(mode)
    before = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(DataPlaneError, match=message) as error:
        how(f"mmap://{folder}")
    assert hint in (error.value.hint or "")
    after = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}
    assert {**after, "start.lock": 0} == {**before, "start.lock": 0}
    assert not (folder.parent / "victim").exists()


def test_empty_folder_is_closed_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    bootstrap(folder, 60)
    assert folder.stat().st_mode & 0o777 == 0o700


@slow
@pytest.mark.parametrize("name", ["host.log", "start.lock"])
def test_links_are_not_followed(folder: Path, name: str) -> None:
    bootstrap(folder, 60)
    victim = folder.parent / "victim"
    victim.write_bytes(b"precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(StorageError, match=f"{name} is a symbolic link"):
        connect(f"mmap://{folder}")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("how", [connect, attach])
def test_socket_of_another_user_is_refused(folder: Path, how: Any) -> None:
    """It may be there since others could write to the folder."""
    bootstrap(folder, 60)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "host.sock"))
        listening.listen()
        give_away(folder / "host.sock")
        with pytest.raises(StorageError, match="is another user's"):
            how(f"mmap://{folder}")


@slow
def test_removing_the_folder_ends_the_plane(plane: DataPlaneClient, folder: Path, join: Join) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(plane.claim_meta, "p", "train", ["x"], 1, timeout_s=None)
        shutil.rmtree(folder)
        with pytest.raises(NoPlaneError):
            waiting.result(30)
        until(lambda: not hosts_of(folder), "the host ends")
        other = join()
        assert other.stats() == {}
        assert not folder.stat().st_mode & 0o77
        assert not (folder / "host.sock").stat().st_mode & 0o77
        until(lambda: len(hosts_of(folder)) == 1, "the host of the new plane stays")
        other.register_partition("q", ["x"], ["train"])


# starts -----------------------------------------------------------------------------------------------


@slow
def test_damaged_or_missing_journal_is_told_at_once(plane: DataPlaneClient, folder: Path, join: Join) -> None:
    plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
    plane.close()
    kill_host(folder)
    journal = folder / "ledger-00000000.journal"
    content = journal.read_bytes()
    for damaged, message in (
        (content[:50] + bytes([content[50] ^ 1]) + content[51:], f"{journal} is damaged at byte 23"),
        (content[:50], f"{journal} is cut short at byte 23"),
        (b"", f"{journal} is cut short"),
        (None, f"{journal} is missing"),
    ):
        journal.unlink()
        if damaged is not None:
            journal.write_bytes(damaged)
        for how in (connect, attach):
            with pytest.raises(StorageError, match=message) as error:
                join(how)
            assert error.value.hint
        assert journal.exists() == (damaged is not None)
        journal.touch()
    until(lambda: not hosts_of(folder), "the host ends")
    journal.write_bytes(content)
    assert join().stats()["p"]["alive"] == 2


@slow
def test_host_that_dies_while_it_starts_is_started_again(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    real, targets = starting.start_python, ["no.such.module:main", "os:abort"]

    def dying(target: str, *arguments: str, **options: Any) -> Any:
        return real(*([targets.pop()] if targets else [target, *arguments]), **options)

    monkeypatch.setattr(starting, "start_python", dying)
    assert join().stats() == {}
    assert targets == []


# clients ----------------------------------------------------------------------------------------------


@slow
def test_client_of_another_format_is_told(plane: DataPlaneClient, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(client, "FORMAT", 99)
        with pytest.raises(DataPlaneError, match=f"has format {FORMAT}, this client 99"):
            join(attach)
    assert set(plane.stats()) == {"p"}


@slow
def test_hostile_messages_and_calls_hurt_no_other_client(plane: DataPlaneClient, folder: Path, join: Join) -> None:
    hosts = hosts_of(folder)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(join(attach).claim_meta, "p", "train", ["x"], 1)
        until(lambda: plane.stats()["p"]["waiting"]["claims"] == 1, "it waits")
        greetings = [[1], "hello", None, {"format": FORMAT}, {"format": FORMAT, "client": {"name": "x"}}]
        for message in [b"\xff" * 100, pack([1])[:16] + b"[1}", *map(pack, greetings)]:
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(folder / "host.sock"))
                other.settimeout(30)
                other.sendall(message)
                assert other.recv(1000) == b""
        for operation, arguments in (("claim", {"partition_id": "p"}), ("put", {}), ("ack", {"partition_id": ["p"]})):
            with pytest.raises(DataPlaneError, match="failed at this call"):
                plane._host.call(operation, arguments)
        plane.put_samples("p", ["a"], {"x": [1]})
        assert waiting.result(30).sample_ids == ("a",)
    assert hosts_of(folder) == hosts


TROUBLES = ["stopped", "start lock held", "host lock held", "can't be started"]


@contextlib.contextmanager
def trouble(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plane's host does not answer, or is killed and can't be started again."""
    with contextlib.ExitStack() as stack:
        if kind == "stopped":
            (host,) = hosts_of(folder)
            stack.callback(os.kill, host, signal.SIGCONT)
            os.kill(host, signal.SIGSTOP)
        else:
            if kind == "can't be started":
                patched = stack.enter_context(monkeypatch.context())
                real = starting.start_python
                patched.setattr(starting, "start_python", lambda *_, **options: real("os:abort", **options))
            else:
                held = stack.enter_context((folder / kind.replace(" lock held", ".lock")).open("a"))
                if kind == "start lock held":
                    fcntl.flock(held, fcntl.LOCK_EX)
            kill_host(folder)
            if kind == "host lock held":
                fcntl.flock(held, fcntl.LOCK_EX)
        yield


def hammer(clients: list[DataPlaneClient], claimed: Any, timeout_s: float) -> list[tuple[str, float]]:
    """20 threads: every kind of call, at clients whose host is in trouble; by kind, the seconds each took."""
    calls: list[tuple[str, Callable[[int], Any]]] = [
        ("put", lambda at: clients[at % 4].put_samples("p", [f"new-{at}"], {"x": [1]}, timeout_s=timeout_s)),
        ("large put", lambda at: clients[at % 4].put_samples("p", large(at), {"x": [1] * LARGE}, timeout_s=timeout_s)),
        ("claim", lambda at: clients[at % 4].claim_meta("p", "judge", ["x"], 9, timeout_s=timeout_s)),
        ("ack", lambda at: clients[0].ack(claimed)),
        ("close", lambda at: clients[4 + at % 4].close()),
    ]

    def timed(at: int) -> tuple[str, float]:
        name, call = calls[at % 5]
        begun = time.monotonic()
        with contextlib.suppress(DataPlaneError):
            call(at)
        return name, time.monotonic() - begun

    with ThreadPoolExecutor(20) as threads:
        return list(threads.map(timed, range(20), timeout=240))


LARGE = 20_000


def large(at: int) -> list[str]:
    """Names that fill a socket's buffer."""
    return [f"large-{at}-{number}" for number in range(LARGE)]


@pytest.mark.parametrize(
    ("timeout_s", "call_s"), [pytest.param(1.0, 0.5, marks=slow), pytest.param(2.0, 2.0, marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("kind", TROUBLES)
def test_every_call_ends_whatever_the_host_does(
    plane: DataPlaneClient,
    folder: Path,
    kind: str,
    timeout_s: float,
    call_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And when the trouble is over, nothing that was acknowledged before is lost, and the claims are given back.

    On a calm machine it ends a second after its time.
    """
    url = f"mmap://{folder}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(attach(url, linger_s=0.2, timeout_s=timeout_s)) for _ in range(8)]
        plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
        claimed = clients[0].claim_meta("p", "train", ["x"], 2)
        with trouble(kind, folder, monkeypatch):
            took = hammer(clients, claimed, call_s)
            late = [(name, seconds) for name, seconds in took if seconds > (1.0 if name == "close" else 3.0)]
            assert call_s < 1.0 or not late
            with pytest.raises(DataPlaneError):
                attach(url, linger_s=0.2, timeout_s=0.5)
        until(lambda: plane.stats()["p"]["waiting"] == {"puts": 0, "claims": 0}, "waits are given up")
        left = plane.claim_meta("p", "judge", ["x"], 100_000, min_batch=2, timeout_s=60)
        assert {"a", "b"} <= set(left.sample_ids)


@slow
def test_interrupted_reader_hands_over(plane: DataPlaneClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(client.SocketHost, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plane.stats()
    assert set(plane.stats()) == {"p"}


@slow
def test_claim_whose_answer_is_lost_with_its_host_is_given_back(
    plane: DataPlaneClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.put_samples("p", ["a"], {"x": [1]})
    with attach(f"mmap://{folder}", linger_s=0.2, timeout_s=1.0) as other, contextlib.ExitStack() as stack:

        def lose(*_: Any) -> Any:
            until(lambda: plane.stats()["p"]["tasks"]["train"]["leased"] == 1, "the claim takes effect")
            monkeypatch.undo()
            stack.enter_context(trouble("start lock held", folder, monkeypatch))
            raise ConnectionClosedError("the answer is lost")

        monkeypatch.setattr(other._host._connection, "receive_some", lose)  # type: ignore[attr-defined]
        with pytest.raises(NoPlaneError):
            other.claim_meta("p", "train", ["x"], 1, timeout_s=None)
        stack.close()

        def answers() -> bool:
            with contextlib.suppress(NoPlaneError, HostTimeoutError):  # a busy machine starts a host slowly
                other.stats()
                return True
            return False

        until(answers, "the host is back")
        assert plane.claim_meta("p", "train", ["x"], 1, timeout_s=60).sample_ids == ("a",)


@slow
def test_wait_for_is_honoured(plane: DataPlaneClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(plane.claim_meta_async("p", "train", ["x"], 2, timeout_s=None), 0.2)

    with trouble("stopped", folder, monkeypatch):
        asyncio.run(asyncio.wait_for(wait(), 60))
    plane.put_samples("p", ["a", "b"], {"x": [1, 2]})
    assert plane.claim_meta("p", "train", ["x"], 2, timeout_s=60).sample_ids == ("a", "b")


@slow
def test_permanent_errors_are_told_at_once(
    plane: DataPlaneClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refused(*_: Any, **__: Any) -> Any:
        tried.append(1)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(starting, "start_python", refused)
        kill_host(folder)
        with pytest.raises(StorageError, match="Permission denied"):
            plane.stats()
    assert tried == [1]
    assert set(plane.stats()) == {"p"}
    shutil.rmtree(folder / "segments")
    with pytest.raises(StorageError, match="does the folder exist"):
        plane.put_samples("p", ["a"], {"x": [1]})


# full disks -------------------------------------------------------------------------------------------


@slow
def test_full_disk(tmp_path: Path, mount: Callable[[Path, str], Path]) -> None:
    """A clear error, nothing acknowledged is lost, and clearing makes room again."""
    folder = mount(tmp_path / "disk", "size=8m") / "plane"
    with without_hosts(folder), connect(f"mmap://{folder}", linger_s=0.2) as plane:
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
        assert plane.stats()["p"]["produced"] == len(there)
        kill_host(folder)
        assert plane.stats()["p"]["alive"] == len(there)
        assert plane.clear_samples("p", there[:16], "no room") == 16
        left = plane.claim_meta("p", "train", ["x"], len(there) - 16)
        assert left.sample_ids == tuple(there[16:])
        for at, row in enumerate(plane.get_data(left)["x"].to_list(), 16):
            assert (row == at).all()
        plane.ack(left)
        plane.put_samples("p", ["more"], {"x": np.zeros((1, 256 * KB), dtype=np.uint8)})
