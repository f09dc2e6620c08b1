"""P16: a plane that outlives its processes, including the host of its ledger."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import LeaseLostError, StorageError
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
    """At the end, wait until the hosts of planes below the folder have ended by themselves."""
    try:
        yield
        until(lambda: not hosts_of(folder), "the host ends when its last client is gone")
    finally:
        _kill(hosts_of(folder))


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_host(folder: Path) -> None:
    """Kill the host of the plane in a folder, and wait for its death. A waiting client may start another at once."""
    killed = hosts_of(folder)
    _kill(killed)
    until(lambda: set(killed).isdisjoint(hosts_of(folder)), "the host is dead")


def claim_and_stay(url: str, count: int, forks: bool) -> None:
    """In another process: claim, put, report, and wait until killed. A child lives on until its input ends."""
    client = attach(url)
    client.claim_meta(P, "train", ["tokens"], count)
    client.put_samples(P, ["s-1000"], {"tokens": tokens(["s-1000"])})
    if forks and not os.fork():
        sys.stdin.read()
        os._exit(0)
    print("claimed", flush=True)  # noqa: T201 - the starter reads it
    client.claim_meta(P, "judge", ["reward"], 1, timeout_s=None)


def connect_and_name(url: str, name: str) -> None:
    """In another process: connect when told to, and register a partition."""
    sys.stdin.readline()
    with connect(url, linger_s=1.0) as client:
        client.register_partition(name, ["tokens"], ["train"])
        print("done", flush=True)  # noqa: T201 - the starter reads it
        sys.stdin.readline()


@contextlib.contextmanager
def running(function: str, *arguments: object, contained: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A function of this module in another process, perhaps in its own pid namespace, which is killed at the end."""
    code = f"import runpy; runpy.run_path({__file__!r})[{function!r}](*{list(arguments)!r})"
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if contained else []
    if contained and (not shutil.which("unshare") or subprocess.run([*container, "true"], check=False).returncode):
        pytest.skip("missing component: the right to make a pid namespace")
    command = [*container, sys.executable, "-c", code]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def answer_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class DurablePlaneSuite(DataPlaneSuite):
    """P16, and how a plane in a folder begins and ends. ``url`` is of a plane in ``folder``."""

    durable = True

    def test_killed_host_loses_nothing(self, plane: DataPlaneClient, folder: Path, join: Join, begin: Begin) -> None:
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

    def test_plane_outlives_its_processes(self, plane: DataPlaneClient, folder: Path, join: Join) -> None:
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        plane.ack(plane.claim_meta(P, "train", ["tokens"], 2))
        plane.close()
        until(lambda: not hosts_of(folder), "the host ends")
        again = join(attach)
        claimed = again.claim_meta(P, "train", ["tokens"], 4, min_batch=1)
        assert claimed.sample_ids == ("s-2", "s-3")
        assert again.get_data(claimed)["tokens"].lengths == [len(row) for row in tokens(claimed.sample_ids)]

    @pytest.mark.parametrize(
        ("with_host", "child_lives", "contained"),
        [(False, False, False), (False, True, False), (True, False, False), (False, False, True)],
    )
    def test_killed_client_gives_back(
        self, plane: DataPlaneClient, folder: Path, with_host: bool, child_lives: bool, contained: bool
    ) -> None:
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))})
        with running("claim_and_stay", self.url(folder), 3, child_lives, contained=contained) as other:
            assert answer_of(other) == "claimed"
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the other client waits")
            other.kill()
            if with_host:
                kill_host(folder)
            other.wait()
            assert set(plane.claim_meta(P, "train", ["tokens"], 4).sample_ids) == {*named(3), "s-1000"}
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 0, "the dead client waits no longer")

    def test_client_in_another_container_keeps_its_claim(self, plane: DataPlaneClient, folder: Path) -> None:
        """The new host can't see its process, whose pid may be another's here."""
        plane.put_samples(P, named(3), {"tokens": tokens(named(3))})
        with running("claim_and_stay", self.url(folder), 2, False, contained=True) as other:
            assert answer_of(other) == "claimed"
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the other client waits")
            kill_host(folder)
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the other client has come back")
            assert plane.stats()[P]["tasks"]["train"]["leased"] == 2
            assert len(plane.claim_meta(P, "train", ["tokens"], 4, min_batch=1)) == 2

    def test_processes_that_race_to_start_get_one_host(self, folder: Path, join: Join) -> None:
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(running("connect_and_name", self.url(folder), f"of-{at}")) for at in range(4)]
            for one in others:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            assert [answer_of(one) for one in others] == ["done"] * 4
            assert len(hosts_of(folder)) == 1
            assert set(join(attach).stats()) == {f"of-{at}" for at in range(4)}

    def test_no_room_for_the_journal(self, plane: DataPlaneClient, folder: Path, join: Join, begin: Begin) -> None:
        """The host may not make files longer. A change that it can't write has no effect, and every caller is told."""
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
