"""``tunegym serve`` as a user sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunegym.core.errors import ServerLostError
from tunegym.tuning.servers.remote import TcpHost

pytestmark = pytest.mark.slow  # each starts a Python or two

TOKEN = "a token of the tests"
MODULE = """
import time
from gymnasium import spaces

class Counter:
    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(10)
    def __init__(self, slow=0.0):
        self.slow = slow
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        if action:
            time.sleep(1000)
        print("a step was made")
        return 1, 1.0, False, False, {}
    def close(self):
        time.sleep(self.slow)
        print("closed in good order", flush=True)

class NoClose:
    reset, step = Counter.reset, Counter.step
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "counting.py").write_text(MODULE)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tunegym", "serve", *arguments]


def environment(token: str | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "TUNEGYM_SERVER_TOKEN"}
    return env if token is None else {**env, "TUNEGYM_SERVER_TOKEN": token}


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    running: list[subprocess.Popen[str]] = []

    def go(*arguments: str, token: str | None = TOKEN) -> tuple[subprocess.Popen[str], int]:
        with (folder / "err").open("w") as err:
            process = subprocess.Popen(
                command("counting:Counter", *arguments),
                cwd=folder,
                env=environment(token),
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"serving counting:Counter on tcp://127\.0\.0\.1:(\d+)\n", line)
        assert found, (folder / "err").read_text()
        return process, int(found[1])

    yield go
    for process in running:
        process.kill()
        process.communicate()


def refused(folder: Path, *arguments: str, token: str | None = TOKEN) -> tuple[int, str]:
    done = subprocess.run(
        command(*arguments), cwd=folder, env=environment(token), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("reference", "lines"),
    [
        (
            "Counter",
            ["MODULE:CLASS: 'Counter' is a bare name", "found:   Counter", 'hint: write "package.module:Class"'],
        ),
        ("nowhere:Counter", ["there is no module 'nowhere'", "hint: put nowhere.py"]),
        ("counting:Count", ["counting.py has no 'Count'", "hint: did you mean 'Counter'?"]),
        ("counting:spaces", ["counting:spaces is no class", "hint: name a class"]),
        ("counting:NoClose", ["NoClose has no close()", "hint: "]),
    ],
)
def test_a_wrong_class_is_refused_at_once(folder: Path, reference: str, lines: list[str]) -> None:
    code, said = refused(folder, reference)
    assert code == 2
    for line in lines:
        assert line in said


def test_a_wrong_token_file_is_refused(folder: Path) -> None:
    code, said = refused(folder, "counting:Counter", "--token-file", "nothing")
    assert code == 1
    assert "the token file nothing can't be read: No such file" in said
    (folder / "empty").write_text(" \n")
    code, said = refused(folder, "counting:Counter", "--token-file", "empty")
    assert code == 1
    assert "the token file empty is empty" in said
    (folder / "short").write_text("0123456789abcde\n")
    code, said = refused(folder, "counting:Counter", "--token-file", "short")
    assert code == 1
    assert "the token in short is shorter than 16 characters, and could be guessed" in said
    assert "hint: make one with" in said
    code, said = refused(folder, "counting:Counter", token="t")
    assert code == 1
    assert "the token in TUNEGYM_SERVER_TOKEN is shorter than 16 characters" in said


def test_a_port_that_is_taken(folder: Path, start: Callable) -> None:
    _, port = start()
    code, said = refused(folder, "counting:Counter", "--port", str(port))
    assert code == 1
    assert f"127.0.0.1:{port} can't be listened on: Address already in use" in said
    assert "hint: choose another --port" in said


def test_a_fresh_token_is_shown(folder: Path, start: Callable) -> None:
    _, port = start(token=None)
    said = (folder / "err").read_text()
    found = re.search(r"^export TUNEGYM_SERVER_TOKEN=([0-9a-f]{32})$", said, re.MULTILINE)
    assert found, said
    host = TcpHost(("127.0.0.1", port), found[1])
    host.start()
    host.close()
    with pytest.raises(ServerLostError, match="token is wrong"):
        TcpHost(("127.0.0.1", port), TOKEN).start()


def test_a_token_from_a_file_is_not_shown(folder: Path, start: Callable) -> None:
    (folder / "token").write_text("this is from a file\n")
    _, port = start("--token-file", "token")
    host = TcpHost(("127.0.0.1", port), "this is from a file")
    host.start()
    host.close()
    assert "this is from a file" not in (folder / "err").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_in_good_order(folder: Path, start: Callable, number: signal.Signals) -> None:
    process, port = start()
    host = TcpHost(("127.0.0.1", port), TOKEN, arguments={"slow": 0.3})
    host.start()
    host.reset(None, None)
    host.step(0)
    process.send_signal(number)
    assert process.wait(30) == 0
    said = (folder / "err").read_text()
    assert "a step was made" in said
    assert "closed in good order" in said
    assert "stopping" in said
    assert process.stdout is not None
    assert process.stdout.read() == ""
    host.close()


def test_a_second_signal_waits_for_nobody(folder: Path, start: Callable) -> None:
    process, port = start()
    host = TcpHost(("127.0.0.1", port), TOKEN)
    host.start()
    host.reset(None, None)
    host.send(1)
    process.send_signal(signal.SIGINT)
    while "stopping" not in (folder / "err").read_text():  # two signals at once would count as one
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    host.close()
