"""What tests of servers share: a token that marks their processes, and a ``tunegym serve``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunegym.core.processes import Tree, end_tree, marked
from tunegym.tuning.servers.host import ServerHost

TESTS = Path(__file__).resolve().parents[2]
TROUBLE = "sample_servers:Trouble"
SECRET = "a secret of the tests"


@pytest.fixture
def secret() -> str:
    """The token of every ``serve``."""
    return SECRET


@pytest.fixture
def wait() -> Callable[[Callable[[], object]], None]:
    """Wait until something is true, but not for ever."""

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.01)

    return until


@pytest.fixture
def started(make: Callable[..., ServerHost]) -> Callable[..., ServerHost]:
    """As the test file's ``make``, started and reset."""

    def start(*arguments: Any, **options: Any) -> ServerHost:
        host = make(*arguments, **options)
        host.start()
        host.reset(None, None)
        return host

    return start


@pytest.fixture
def token() -> Iterator[str]:
    """Marks the processes of a test; none may be left."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    left = marked(name)
    end_tree(Tree(name), grace_s=0.0)
    assert left == []


@dataclass
class Serve:
    """A running ``tunegym serve``."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def said(self) -> str:
        return self.log.read_text()

    def servers(self) -> list[psutil.Process]:
        """The living server processes that it started."""
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def command() -> Callable[..., subprocess.Popen[str]]:
    """Start ``tunegym serve`` with these arguments; its stderr is in the file ``log``."""

    def start(*arguments: str, log: Path, token: str | None = SECRET) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if name != "TUNEGYM_SERVER_TOKEN"}
        env |= {} if token is None else {"TUNEGYM_SERVER_TOKEN": token}
        line = [sys.executable, "-m", "tunegym", "serve", *arguments]
        with log.open("w") as errors:
            return subprocess.Popen(line, cwd=TESTS, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)

    return start


@pytest.fixture
def serve(tmp_path: Path, command: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., Serve]]:
    """Start a ``tunegym serve`` of a class; its server processes must end with it."""
    running: list[Serve] = []
    servers: set[psutil.Process] = set()

    def start(*options: str, reference: str = TROUBLE, port: int = 0, token: str | None = SECRET) -> Serve:
        log = tmp_path / f"serve-{len(running)}.log"
        process = command(reference, "--port", str(port), *options, log=log, token=token)
        running.append(Serve(process, 0, log))
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {reference} on tcp://127.0.0.1:"), log.read_text()
        running[-1].port = int(line.rsplit(":", 1)[1])
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            servers.update(one.servers())
        one.process.kill()
        one.process.communicate()
    assert psutil.wait_procs(servers, timeout=60)[1] == []
