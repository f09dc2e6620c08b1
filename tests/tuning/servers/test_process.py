"""Servers in another process: whatever they do, the run continues and nothing is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TESTS
from tests.sample_servers import deed

from tunegym.core.errors import ServerLostError, StoreError
from tunegym.core.processes import living_processes, marked
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.process import BoundedLog, ProcessHost

pytestmark = pytest.mark.slow  # every server is a process


@pytest.fixture
def make(tmp_path: Path, token: str) -> Iterator[Callable[..., ProcessHost]]:
    """Hosts of the troublesome server, all closed in the end; then there is no zombie."""
    with contextlib.ExitStack() as stack:

        def make(reference: str = "sample_servers:Trouble", *, started: Any = None, **given: Any) -> ProcessHost:
            options = {name: given.pop(name) for name in ("step_timeout_s", "lane", "folder") if name in given}
            setup = reference, given, (str(TESTS), str(tmp_path))
            made = ProcessHost(*setup, token=token, started=started, **{"folder": tmp_path, **options})
            stack.callback(made.close)
            return made

        yield make
    with contextlib.suppress(ChildProcessError):
        assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("exit", "the server died: exited with 3"),
        ("leave", "the server died: exited with 1: enough"),
        ("die", "the server died: killed by SIGKILL"),
        ("garbage", "the server sent something that is no message: this is no message of tunegym's"),
        ("hang", "no answer within step_timeout_s = 3 s"),
        ("spin", "no answer within step_timeout_s = 3 s"),
        ("stop", "no answer within step_timeout_s = 3 s"),
        ("mute", ("the server hung up", "no answer within step_timeout_s = 3 s")),
    ],
)
def test_a_lost_server_is_started_again(
    started: Callable[..., ProcessHost], token: str, what: str, reason: str | tuple[str, ...]
) -> None:
    host = started(step_timeout_s=3.0 if what in ("hang", "spin", "stop", "mute") else None)
    host.step(deed("fork"))  # what it forked holds the connection open
    with pytest.raises(ServerFailure) as failure:
        host.step(deed(what))
    assert failure.value.lost
    assert str(failure.value).startswith(reason)
    assert marked(token) == []
    host.start()
    host.reset(None, None)
    assert host.step(deed("fine"))[1] == 1.0


def test_a_death_is_not_blamed_on_earlier_output(started: Callable[..., ProcessHost]) -> None:
    host = started()
    with pytest.raises(ServerFailure, match="step: ValueError: boom"):
        host.step(deed("raise"))
    for _ in range(2):
        with pytest.raises(ServerFailure) as failure:
            host.step(deed("exit"))
        assert str(failure.value) == "the server died: exited with 3"
        host.start()


def test_servers_that_can_not_be_built(make: Callable[..., ProcessHost], token: str, tmp_path: Path) -> None:
    (tmp_path / "blank.py").write_text(
        "class Blank:\n    action_space = observation_space = 3\n    def step(self): pass\n    close = step\n"
    )
    for host, reason in (
        (make(sise=3), "it could not be built: TypeError: .*sise"),
        (make("nothing:Here"), "it could not be built: UnresolvedReferenceError: there is no module"),
        (make("blank:Blank"), "it can't be used: its action_space: 3 is no space"),
        (make(folder=tmp_path / "gone"), "no process can be started for the server: .*No such file"),
    ):
        with pytest.raises(ServerFailure, match=reason) as failure:
            host.start()
        assert failure.value.lost
    with pytest.raises(ServerLostError, match="arguments of sample_servers:Trouble can't be sent"):
        make(size=object()).start()
    assert marked(token) == []


def test_nothing_is_left_if_the_start_can_not_be_recorded(make: Callable[..., ProcessHost], token: str) -> None:
    def record(handle: JobHandle) -> None:
        assert living_processes([handle])
        raise StoreError("the disk is full")

    host = make(started=record)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            host.start()
        assert marked(token) == []
        assert set(os.listdir("/proc/self/fd")) == before
        assert host.pid is None


def test_a_large_answer_survives_the_wait_for_another_server(started: Callable[..., ProcessHost]) -> None:
    """It doesn't fit into the connection, so that only a part of it is there when the other one's time is over."""
    hanging, fine = started(step_timeout_s=3.0, lane=0), started(size=2_000_000, step_timeout_s=3.0, lane=1)
    hanging.send(deed("hang"))
    fine.send(deed("fine"))
    with pytest.raises(ServerFailure, match="no answer within"):
        hanging.receive()
    assert fine.receive()[1] == 1.0
    assert "large" not in fine.step(deed("large"))[4], "70 MiB are over the limit"


DRIVER = """
import sys
from pathlib import Path
from tunegym.tuning.servers.process import ProcessHost

tests, folder, token, deed = sys.argv[1:]
host = ProcessHost("sample_servers:Trouble", {}, (tests,), folder=Path(folder), token=token)
host.start()
host.reset(None, None)
print(host.pid, flush=True)
host.step(int(deed))
sys.stdin.read()
"""


@pytest.mark.invariant
@pytest.mark.parametrize("what", ["fine", "hang", "spin"])
def test_a_server_ends_with_its_driver(tmp_path: Path, token: str, wait_until: Callable, what: str) -> None:
    command = [sys.executable, "-c", DRIVER, str(TESTS), str(tmp_path), token, str(deed(what))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert int(driver.stdout.readline()) > 0
        driver.kill()
        driver.wait()
    wait_until(lambda: marked(token) == [])


def test_a_server_does_not_see_the_token(make: Callable[..., ProcessHost], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEGYM_SERVER_TOKEN", "secret")
    host = make()
    host.start()
    assert host.reset(None, None)[1] == {"token": None}


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "a.log", limit=1000)
    os.write(log.fd, b"old\n" * 500 + b"new\n")
    log.shorten()
    assert (tmp_path / "a.log").stat().st_size == 0
    assert (tmp_path / "a.log.1").stat().st_size == 500
    assert (tmp_path / "a.log.1").read_text().endswith("new\n")
    log.close()
    log.close()
    log.shorten()
