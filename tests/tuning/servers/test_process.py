"""A server in a process of its own: it may do what it likes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import ServerLostError, StoreError
from tunegym.core.processes import living_processes, marked
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.process import BoundedLog, ProcessHost

pytestmark = pytest.mark.slow  # every server is a process of its own


@pytest.fixture
def host(trouble: Path, token: str) -> Iterator[Callable[..., ProcessHost]]:
    """Hosts of the troublesome server, all closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(
            arguments: dict[str, Any] | None = None, reference: str = "trouble:Trouble", **options: Any
        ) -> ProcessHost:
            made = ProcessHost(reference, arguments or {}, (str(trouble),), folder=trouble, token=token, **options)
            stack.callback(made.close)
            return made

        yield make


def no_zombie() -> bool:
    """Whether this process has no child that it hasn't waited for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
    except ChildProcessError:
        return True


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("exit", "the server died: exited with 3"),
        ("leave", "the server died: exited with 1: enough"),
        ("die", "the server died: killed by SIGKILL"),
        ("garbage", "the server sent something that is no message: this is no message of tunegym's"),
    ],
)
def test_one_that_dies_is_started_again(
    host: Callable[..., ProcessHost], do: Callable, token: str, what: str, reason: str
) -> None:
    held = host()
    held.start()
    held.reset(None, None)
    held.step(do("fork"))  # what it forked holds the connection open
    with pytest.raises(ServerFailure) as failure:
        held.step(do(what))
    assert failure.value.lost
    assert str(failure.value).startswith(reason)
    assert marked(token) == []
    assert no_zombie()
    with pytest.raises(ServerFailure, match="there is no server") as failure:
        held.step(do("fine"))
    assert failure.value.lost
    held.start()
    held.reset(None, None)
    assert held.step(do("fine"))[4]["steps"] == 1


def test_a_death_is_not_blamed_on_what_was_printed_before(host: Callable[..., ProcessHost], do: Callable) -> None:
    held = host()
    held.start()
    held.reset(None, None)
    with pytest.raises(ServerFailure, match="step: RuntimeError: as told"):
        held.step(do("raise"))
    with pytest.raises(ServerFailure) as failure:
        held.step(do("exit"))
    assert str(failure.value) == "the server died: exited with 3"
    held.start()
    with pytest.raises(ServerFailure) as failure:  # nor on what the process before it printed
        held.step(do("exit"))
    assert str(failure.value) == "the server died: exited with 3"


@pytest.mark.parametrize("what", ["hang", "spin", "stop", "mute"])
def test_one_that_hangs_is_ended(host: Callable[..., ProcessHost], do: Callable, token: str, what: str) -> None:
    held = host(step_timeout_s=2.0)
    held.start()
    held.reset(None, None)
    held.step(do("fork"))
    with pytest.raises(ServerFailure) as failure:
        held.step(do(what))
    assert failure.value.lost
    assert str(failure.value) in ("no answer within step_timeout_s = 2 s", "the server hung up")
    assert marked(token) == []
    assert no_zombie()
    held.start()
    assert held.reset(None, None)[1]["seed"] is None


def test_killed_at_any_moment(host: Callable[..., ProcessHost], do: Callable, token: str) -> None:
    """The budget is met whenever the process is killed, from outside, in and between steps."""
    dice = random.Random(5)
    held = host()
    steps = 0
    losses: list[tuple[bool, str]] = []
    running = False
    while steps < 300:
        try:
            if not running:
                held.start()
                running = True
                held.reset(None, None)
            if dice.random() < 0.03:
                held.send(do("fine"))
                for _ in range(dice.randrange(2000)):
                    pass
                os.kill(held.pid, signal.SIGKILL)
                held.receive()
            else:
                held.step(do("fine"))
            steps += 1
        except ServerFailure as failure:
            losses.append((failure.lost, str(failure)))
            running = False
    held.close()
    assert len(losses) > 3
    assert set(losses) == {(True, "the server died: killed by SIGKILL")}
    assert marked(token) == []
    assert no_zombie()


def test_one_that_can_not_be_built(host: Callable[..., ProcessHost], token: str, trouble: Path) -> None:
    with pytest.raises(ServerFailure, match="it could not be built: ValueError: no such thing") as failure:
        host({"breaks": True}).start()
    assert failure.value.lost
    with pytest.raises(ServerFailure, match=r"it could not be built: TypeError: .*sise") as failure:
        host({"sise": 3}).start()
    with pytest.raises(ServerFailure, match="it could not be built: UnresolvedReferenceError: there is no module"):
        host(reference="nothing:Here").start()
    with pytest.raises(ServerLostError, match="arguments of trouble:Trouble can't be sent"):
        host({"size": object()}).start()
    (trouble / "blank.py").write_text("class Blank:\n    action_space = 3\n    def close(self): pass\n")
    with pytest.raises(ServerFailure, match="its action_space: 3 is no space that can be passed on"):
        host(reference="blank:Blank").start()
    assert marked(token) == []
    assert no_zombie()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_nothing_is_left_if_nobody_can_write_down_that_it_was_started(
    host: Callable[..., ProcessHost], token: str
) -> None:
    def started(handle: JobHandle) -> None:
        assert living_processes([handle])
        raise StoreError("the disk is full")

    held = host(started=started)
    before = descriptors()
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            held.start()
        assert marked(token) == []
        assert descriptors() == before
        assert held.pid is None
    assert no_zombie()


def test_a_log_that_can_not_be_written_is_a_failure(trouble: Path, token: str) -> None:
    held = ProcessHost("trouble:Trouble", {}, (str(trouble),), folder=trouble / "gone", token=token)
    before = descriptors()
    with pytest.raises(ServerFailure, match=r"no process can be started for the server: .*No such file") as failed:
        held.start()
    assert failed.value.lost
    assert descriptors() == before
    (trouble / "gone").mkdir()
    held.start()
    held.close()


def test_a_large_answer_is_not_lost_because_another_server_hangs(
    host: Callable[..., ProcessHost], do: Callable
) -> None:
    """It doesn't fit into the connection, so that only a part of it is there when the other one's time is over."""
    hanging, fine = host(step_timeout_s=3.0, lane=0), host({"size": 2_000_000}, step_timeout_s=3.0, lane=1)
    for held in (hanging, fine):
        held.start()
        held.reset(None, None)
    hanging.send(do("hang"))
    fine.send(do("fine"))
    with pytest.raises(ServerFailure, match="no answer within"):
        hanging.receive()
    assert fine.receive()[4]["steps"] == 1


def test_kill_ends_the_wait_and_everything(
    host: Callable[..., ProcessHost], do: Callable, token: str, trouble: Path
) -> None:
    """From a signal handler, in the middle of waiting."""
    held = host()
    held.start()
    held.reset(None, None)
    held.step(do("fork"))
    before = signal.signal(signal.SIGALRM, lambda *_: held.kill())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ServerFailure, match="told to stop at once") as failure:
            held.step(do("hang"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert failure.value.lost
    assert marked(token) == []
    with pytest.raises(ServerFailure, match="told to stop"):
        held.start()
    assert marked(token) == []
    assert no_zombie()


DRIVER = """
import sys
from pathlib import Path
from tunegym.tuning.servers.process import ProcessHost

folder, token, deed = sys.argv[1:]
host = ProcessHost("trouble:Trouble", {}, (folder,), folder=Path(folder), token=token)
host.start()
host.reset(None, None)
print(host.pid, flush=True)
host.step(int(deed))
sys.stdin.read()
"""


@pytest.mark.invariant
@pytest.mark.parametrize("what", ["fine", "hang", "spin"])
def test_it_ends_with_its_driver(trouble: Path, token: str, wait: Callable, do: Callable, what: str) -> None:
    command = [sys.executable, "-c", DRIVER, str(trouble), token, str(do(what))]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with driver:
        assert driver.stdout is not None
        assert int(driver.stdout.readline()) > 0
        driver.kill()
        driver.wait()
    wait(lambda: marked(token) == [])


def test_the_token_of_others_is_not_the_servers_business(
    host: Callable[..., ProcessHost], trouble: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEGYM_SERVER_TOKEN", "secret")
    (trouble / "spy.py").write_text(
        "import os\nfrom trouble import Trouble\nclass Spy(Trouble):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return self._seen(), {'found': os.environ.get('TUNEGYM_SERVER_TOKEN')}\n"
    )
    held = host(reference="spy:Spy")
    held.start()
    assert held.reset(None, None)[1] == {"found": None}


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "a.log", limit=1000)
    os.write(log.fd, b"old\n" * 500 + b"new\n")
    log.shorten()
    assert (tmp_path / "a.log").stat().st_size == 0
    assert (tmp_path / "a.log.1").stat().st_size == 500
    assert (tmp_path / "a.log.1").read_text().endswith("new\n")
    os.write(log.fd, b"newest\n\n")
    assert (tmp_path / "a.log").read_text() == "newest\n\n"
    assert log.last_line() == "newest"
    log.mark()
    assert log.last_line() == ""
    os.write(log.fd, b"after")
    assert log.last_line() == "after"
    log.close()
    log.close()
    log.shorten()
