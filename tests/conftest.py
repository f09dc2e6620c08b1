"""Fixtures of all tests."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from gymnasium.utils import seeding
from hypothesis import HealthCheck, settings
from typer.testing import CliRunner

from tunegym.cli.main import app
from tunegym.core.processes import Tree, end_tree, marked
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE

if TYPE_CHECKING:
    from tests.ray_cluster import ThreeNodes

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

TESTS = Path(__file__).parent
SECRET = "a secret of the tests"
"""The token of every ``serve``."""
MISSING = "missing component: "
"""How a skip begins when what the test needs is not installed. In CI such a skip is a failure."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a cluster run in one process: each would start its own."""
    for item in items:
        for cluster in {"slurm", "ray_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(cluster))


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """In CI, turn a skip for a missing component into a failure: everything can be installed there."""
    skipped = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
    if os.environ.get("CI") and skipped and str(call.excinfo.value).startswith(MISSING):
        reason = f"{call.excinfo.value} (in CI a missing component is a failure)"
        try:
            pytest.fail(reason, pytrace=False)
        except pytest.fail.Exception as failure:
            call.excinfo = pytest.ExceptionInfo.from_exception(failure)


def raising(error: type[BaseException], *arguments: object) -> Callable[..., Any]:
    """A function that takes anything, and raises."""

    def call(*_: object, **__: object) -> Any:
        raise error(*arguments)

    return call


no_space = raising(OSError, errno.ENOSPC, os.strerror(errno.ENOSPC))


Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-c", "from tunegym.cli.main import main; main()"]
DEFAULT_SIGNALS = ["env", "--default-signal=HUP"]  # these tests may run under nohup, and children inherit its choice


@pytest.fixture(autouse=True)
def _own_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves results in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _same_chances(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed the generators that get no seed, differently at each place and equally in each run.

    Two generators of a test never agree, so code that ignores its seed is still found.
    """
    seeds = random.Random(request.node.nodeid)
    seeded = seeding.np_random
    monkeypatch.setattr(seeding, "np_random", lambda seed=None: seeded(seeds.getrandbits(64) if seed is None else seed))
    random.seed(seeds.getrandbits(64))
    np.random.seed(seeds.getrandbits(32))
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seeds.getrandbits(32))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file into the test's folder; the text may be indented."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def mount() -> Iterator[Callable[[Path, str], Path]]:
    """Mount a small file system at a folder, with options such as ``size=1m``, for as long as the test."""
    with contextlib.ExitStack() as mounted:

        def mount_at(folder: Path, options: str) -> Path:
            folder.mkdir(exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip(f"{MISSING}mount")
            if done.returncode:
                pytest.skip(f"{MISSING}the right to mount a tmpfs ({done.stderr.strip()})")
            mounted.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
            return folder

        yield mount_at


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[ThreeNodes]:
    """A Ray cluster of three nodes, for drivers of their own. A module may kill parts of it, so each has another."""
    from tests.ray_cluster import three_nodes

    with three_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray_connected(ray_cluster: ThreeNodes) -> Iterator[str]:
    """The address of the cluster that this process is connected to: runners needn't connect again."""
    import ray

    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield ray_cluster.address
    ray.shutdown()


@pytest.fixture
def command_line() -> list[str]:
    """How the command line is called, without arguments."""
    return [*DEFAULT_SIGNALS, *COMMAND]


@pytest.fixture
def cli() -> Cli:
    """Call the command line in this process, which must end with ``code``. What it doesn't handle is raised."""

    def call(*arguments: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(app, [str(one) for one in arguments], prog_name="tunegym")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert code in (None, done.exit_code), done.stderr
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def tunegym() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line to its end, which must have ``code``."""

    def call(*arguments: str | Path, code: int | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            **{"timeout": 120, **options},
        )
        assert code in (None, done.returncode), done.stderr
        return done

    return call


@pytest.fixture
def start_tunegym() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line, or another command, and leave it running; what it prints goes to a file."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, log: Path, command: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
        with log.open("a") as file:
            line = [*DEFAULT_SIGNALS, *command, *map(str, arguments)]
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:  # a test failed: the second signal also ends what the run has started
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture
def token() -> Iterator[str]:
    """Marks the processes of a test; none may be left."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    left = marked(name)
    end_tree(Tree(name), grace_s=0.0)
    assert left == []


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for something to become true, with a deadline."""

    def wait(condition: Callable[[], object], what: str = "a condition", deadline_s: float = 60) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, f"waited in vain for: {what}"
            time.sleep(0.01)

    return wait


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

    def start(*arguments: str, log: Path, token: str | None = SECRET, cwd: Path = TESTS) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        env |= {} if token is None else {TOKEN_VARIABLE: token}
        line = [sys.executable, "-m", "tunegym", "serve", *arguments]
        with log.open("w") as errors:
            return subprocess.Popen(line, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)

    return start


@pytest.fixture
def serve(tmp_path: Path, command: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., Serve]]:
    """Start a ``tunegym serve`` of a class; its server processes must end with it."""
    running: list[Serve] = []
    servers: set[psutil.Process] = set()

    def start(*options: str, reference: str = "sample_servers:Trouble", port: int = 0, **where: Any) -> Serve:
        log = tmp_path / f"serve-{len(running)}.log"
        process = command(reference, "--port", str(port), *options, log=log, **where)
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
