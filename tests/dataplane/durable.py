"""P16: a plane that outlives its processes, including the host of its ledger."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import EndOfStreamError, LeaseLostError, NoPlaneError, StorageError
from tunegym.testing.dataplane import PATIENCE_S, Begin, DataPlaneSuite, Join, P, named, tokens, until

_HOST = "tunegym.dataplane.hosts.server:main"


def hosts_of(folder: Path) -> list[int]:
    """The processes that host planes in or below a folder."""
    commands = [(one.pid, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    return [
        pid
        for pid, command in commands
        if _HOST in command and any(one.startswith(str(folder)) for one in command[command.index(_HOST) :])
    ]


@contextlib.contextmanager
def without_hosts(folder: Path) -> Iterator[None]:
    """When it ends, so have the hosts of planes below the folder: by themselves, since nobody needs them."""
    try:
        yield
        until(lambda: not hosts_of(folder), "the host ends when its last client is gone")
    finally:
        for pid in hosts_of(folder):
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_host(folder: Path) -> None:
    """Kill the host of the plane in a folder, and see it dead. Whoever waits may have started another by then."""
    killed = set(hosts_of(folder))
    for pid in killed:
        _kill(pid)
    until(lambda: killed.isdisjoint(hosts_of(folder)), "the host is dead")


def claim_and_stay(url: str, count: int) -> None:
    """In a process of its own: claim, put, say so, and stay until killed."""
    client = attach(url)
    client.claim_meta(P, "train", ["tokens"], count)
    client.put_samples(P, ["s-1000"], {"tokens": tokens(["s-1000"])})
    print("claimed", flush=True)  # noqa: T201 - whoever started this reads it
    client.claim_meta(P, "judge", ["reward"], 1, timeout_s=None)


def connect_and_name(url: str, name: str) -> None:
    """In a process of its own: connect as soon as told to, and leave a partition there."""
    sys.stdin.readline()
    with connect(url, linger_s=1.0) as client:
        client.register_partition(name, ["tokens"], ["train"])
        print("done", flush=True)  # noqa: T201 - whoever started this reads it
        sys.stdin.readline()


@contextlib.contextmanager
def running(function: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A function of this module in a process of its own, which is killed at the end."""
    code = f"import runpy; runpy.run_path({__file__!r})[{function!r}](*{list(arguments)!r})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


class DurablePlaneSuite(DataPlaneSuite):
    """P16, and how a plane in a folder begins and ends. ``url`` is of a plane in ``folder``."""

    durable = True

    # the host dies ------------------------------------------------------------------------------------

    def test_a_killed_host_loses_nothing(self, plane: DataPlaneClient, folder: Path, join: Join, begin: Begin) -> None:
        plane.put_samples(P, named(6), {"tokens": tokens(named(6))}, tags={"weight_version": 1})
        other = join(attach)
        claimed = plane.claim_meta(P, "train", ["tokens"], 2)
        plane.ack(other.claim_meta(P, "train", ["tokens"], 2), version=2)
        waiting = begin(other.claim_meta, P, "judge", ["reward"], 1, timeout_s=None)
        kill_host(folder)
        assert other.claim_meta(P, "train", ["tokens"], 6, min_batch=1).sample_ids == ("s-4", "s-5")
        plane.ack(claimed)
        with pytest.raises(LeaseLostError):
            plane.ack(claimed)
        assert plane.stats()[P]["tasks"]["train"]["acked"] == 4
        read = plane.get_samples(claimed, ["tokens"])["tokens"].to_list()
        assert [row.tolist() for row in read] == [row.tolist() for row in tokens(claimed.sample_ids)]
        plane.put_samples(P, ["s-0"], {"reward": np.ones(1)})
        assert waiting.result(PATIENCE_S).sample_ids == ("s-0",)

    def test_hosts_killed_at_any_moment(self, plane: DataPlaneClient, folder: Path, join: Join) -> None:
        """Each id is consumed once by each task, whenever the host dies; repeated calls take effect once."""
        producers, kills, size = 2, 5, 5
        rng = random.Random(7)
        over = threading.Event()

        def produce(part: int) -> list[str]:
            client, mine = join(attach), []
            while not over.wait(0.005):
                ids = named(size, part * 1_000_000 + len(mine))
                client.put_samples(P, ids, {"tokens": tokens(ids)})
                mine += ids
            return mine

        def consume(task: str) -> list[str]:
            client, mine = join(attach), []
            while True:
                try:
                    claimed = client.claim_meta(P, task, ["tokens"], 8, min_batch=1, timeout_s=None)
                except EndOfStreamError:
                    return mine
                rows = client.get_samples(claimed, ["tokens"])["tokens"].to_list()
                assert [row[0] for row in rows] == [int(one[2:]) for one in claimed.sample_ids]
                client.ack(claimed)
                mine += claimed.sample_ids

        def kill() -> None:
            try:
                for _ in range(kills):
                    until(lambda: bool(hosts_of(folder)), "there is a host")
                    over.wait(0.7 * rng.random())
                    for pid in hosts_of(folder):
                        _kill(pid)
            finally:
                over.set()

        with ThreadPoolExecutor(8) as threads:
            consuming = {task: [threads.submit(consume, task) for _ in range(2)] for task in ("train", "judge")}
            producing = [threads.submit(produce, part) for part in range(producers)]
            killing = threads.submit(kill)
            try:
                killing.result()
                ids = [one for part in producing for one in part.result(PATIENCE_S)]
            finally:
                plane.seal(P)
            for parts in consuming.values():
                assert Counter(one for part in parts for one in part.result(PATIENCE_S)) == Counter(ids)
        found = plane.stats()[P]
        assert found["produced"] == len(ids)
        consumed = found["gone"].get("consumed", 0)
        assert [one["acked"] + consumed for one in found["tasks"].values()] == [len(ids)] * 2
        assert [one["claimed"] for one in found["tasks"].values()] == [len(ids)] * 2
        assert plane.check_consumption_status(P, ["train", "judge"])

    def test_the_plane_outlives_all_of_its_processes(self, plane: DataPlaneClient, folder: Path, join: Join) -> None:
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        plane.ack(plane.claim_meta(P, "train", ["tokens"], 2))
        plane.close()
        until(lambda: not hosts_of(folder), "the host ends")
        again = join(attach)
        claimed = again.claim_meta(P, "train", ["tokens"], 4, min_batch=1)
        assert claimed.sample_ids == ("s-2", "s-3")
        assert again.get_data(claimed)["tokens"].lengths == [len(row) for row in tokens(claimed.sample_ids)]

    # clients die --------------------------------------------------------------------------------------

    def test_a_killed_client_gives_back(self, plane: DataPlaneClient, folder: Path, begin: Begin) -> None:
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))})
        with running("claim_and_stay", self.url(folder), 3) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "claimed\n"
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the other waits for its second claim")
            waiting = begin(plane.claim_meta, P, "train", ["tokens"], 4, timeout_s=None)
            assert not waiting.done()
            other.kill()
            assert set(waiting.result(PATIENCE_S).sample_ids) == {*named(3), "s-1000"}
        until(lambda: plane.stats()[P]["waiting"]["claims"] == 0, "the dead wait for nothing")

    def test_both_die(self, plane: DataPlaneClient, folder: Path) -> None:
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))})
        with running("claim_and_stay", self.url(folder), 3) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "claimed\n"
            other.kill()
            kill_host(folder)
            other.wait()
        assert plane.claim_meta(P, "train", ["tokens"], 4).size == 4

    # beginnings ---------------------------------------------------------------------------------------

    def test_processes_that_race_to_start_get_one_host(self, folder: Path, join: Join) -> None:
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(running("connect_and_name", self.url(folder), f"of-{at}")) for at in range(4)]
            for one in others:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            for one in others:
                assert one.stdout is not None
                assert one.stdout.readline() == "done\n"
            assert len(hosts_of(folder)) == 1
            assert set(join(attach).stats()) == {f"of-{at}" for at in range(4)}

    def test_a_stale_socket_is_in_nobodys_way(self, plane: DataPlaneClient, folder: Path, join: Join) -> None:
        plane.close()
        kill_host(folder)
        place = folder / "host.sock"
        place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(place))
        assert set(join(attach).stats()) == {P}

    def test_a_folder_of_other_things_is_left_alone(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine", encoding="utf-8")
        with pytest.raises(StorageError, match="not empty"):
            connect(self.url(folder))
        with pytest.raises(NoPlaneError):
            attach(self.url(folder))
        assert (folder / "thesis.txt").read_text(encoding="utf-8") == "mine"

    def test_only_its_user_gets_in(self, plane: DataPlaneClient, folder: Path) -> None:
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        assert not folder.stat().st_mode & 0o77
        assert not (folder / "host.sock").stat().st_mode & 0o77

    # a full disk --------------------------------------------------------------------------------------

    def test_no_room_for_the_journal(self, plane: DataPlaneClient, folder: Path, join: Join, begin: Begin) -> None:
        """The host may not make files longer: what it can't write down has not happened, and everybody is told."""
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        claimed = plane.claim_meta(P, "train", ["tokens"], 2)
        waiting = begin(join(attach).claim_meta, P, "judge", ["reward"], 1, timeout_s=None)
        (host,) = hosts_of(folder)
        _, most = resource.prlimit(host, resource.RLIMIT_FSIZE)
        resource.prlimit(host, resource.RLIMIT_FSIZE, (1, most))
        for call in (
            lambda: plane.put_samples(P, named(2, 4), {"tokens": tokens(named(2, 4))}),
            lambda: plane.ack(claimed),
            lambda: plane.claim_meta(P, "train", ["tokens"], 1),
        ):
            with pytest.raises(StorageError, match="can't be written"):
                call()
        with pytest.raises(StorageError):
            waiting.result(PATIENCE_S)
        for pid in hosts_of(folder):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        assert plane.stats()[P]["produced"] == 4
        plane.ack(claimed)
        plane.put_samples(P, named(2, 4), {"tokens": tokens(named(2, 4))})
        rest = plane.claim_meta(P, "train", ["tokens"], 4)
        assert Counter(claimed.sample_ids + rest.sample_ids) == Counter(named(6))
