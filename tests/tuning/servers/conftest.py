"""A server that does whatever it is told, and a ``tunegym serve`` of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tunegym.core.processes import Tree, end_tree, marked

TROUBLE = '''
import os, re, signal, subprocess, sys, time
import numpy as np
from gymnasium import spaces

DEEDS = ("fine", "raise", "exit", "leave", "hang", "spin", "stop", "die", "fork", "mute", "odd_info", "four",
         "odd_observation", "print", "large", "garbage")


class Trouble:
    """Does as the action says."""

    def __init__(self, size=2, closes="", breaks=False, child=False):
        if breaks:
            raise ValueError("no such thing")
        self.action_space = spaces.Discrete(len(DEEDS))
        self.observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (size,), np.float32), "n": spaces.Discrete(1000)})
        self.closes, self.steps, self.params = closes, 0, {}

    def _seen(self):
        shape = self.observation_space["x"].shape
        return {"x": np.full(shape, self.steps % 9, np.float32), "n": np.int64(self.steps % 1000)}

    def apply_env_params(self, params):
        if params.get("load") == "bad":
            raise KeyError("load")
        self.params = params

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen(), {"seed": seed, "options": options, "params": self.params}

    def step(self, action):
        self.steps += 1
        return getattr(self, DEEDS[int(action)])()

    def _five(self, **info):
        info = {"steps": self.steps, "pid": os.getpid(), **info}
        return self._seen(), np.float32(0.5), np.bool_(self.steps == 7), False, info

    def fine(self):
        return self._five()

    def raise_(self):
        raise RuntimeError("as told")

    def exit(self):
        os._exit(3)

    def leave(self):
        sys.exit("enough")

    def hang(self):
        time.sleep(1000)

    def spin(self):
        re.match("(a*)*b", "a" * 100)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        return self._five()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def fork(self):
        if os.fork() == 0:
            time.sleep(1000)
        subprocess.Popen(["setsid", "sleep", "1000"])
        return self._five()

    def mute(self):
        os.closerange(3, 100)
        time.sleep(1000)

    def odd_info(self):
        return self._five(thing=object(), nested={"f": print}, fine=1.5, **{"ok": (1, 2)})

    def four(self):
        return self._seen(), 0.0, False, {}

    def odd_observation(self):
        return object(), 0.0, False, False, {}

    def print(self):
        print("x" * 1_000_000)
        return self._five()

    def large(self):
        return self._five(large=np.zeros(70 << 20, np.uint8))

    def garbage(self):
        for fd in range(3, 1000):  # its number is what it was in the driver, which may have many
            try:
                os.write(fd, b"GET / HTTP/1.0\\r\\n\\r\\n........")
            except OSError:
                pass
        return self._five()

    def close(self):
        if self.closes == "raises":
            raise OSError("it sticks")
        if self.closes:
            with open(self.closes, "a") as file:
                file.write("closed\\n")


setattr(Trouble, "raise", Trouble.raise_)


class Other(Trouble):
    """Another class with another space."""

    def __init__(self, size=3):
        super().__init__(size)


class Fickle(Trouble):
    """Its spaces are others every time."""

    def __init__(self, counter):
        with open(counter, "a") as file:
            file.write("x")
        super().__init__(size=os.path.getsize(counter))
'''

DEEDS = (
    *("fine", "raise", "exit", "leave", "hang", "spin", "stop", "die", "fork", "mute", "odd_info", "four"),
    *("odd_observation", "print", "large", "garbage"),
)


def deed(name: str) -> int:
    return DEEDS.index(name)


@pytest.fixture
def do() -> Callable[[str], int]:
    """The action that makes the server do something."""
    return deed


@pytest.fixture
def wait() -> Callable[[Callable[[], object]], None]:
    """Wait until something is true, but not for ever."""

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.01)

    return until


@pytest.fixture
def token() -> Iterator[str]:
    """Names what a test starts; nothing of it may be left."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    left = marked(name)
    end_tree(Tree(name), grace_s=0.0)
    assert left == []


@pytest.fixture
def trouble(tmp_path: Path) -> Path:
    """A folder with the module ``trouble``."""
    (tmp_path / "trouble.py").write_text(TROUBLE)
    return tmp_path


@dataclass
class Serve:
    """A running ``tunegym serve``."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def children(self) -> list[int]:
        """Pids of the processes that it started and that are alive."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]


SECRET = "a secret of the tests"


@pytest.fixture
def secret() -> str:
    return SECRET


@pytest.fixture
def serve(trouble: Path, token: str, wait: Callable) -> Iterator[Callable[..., Serve]]:
    """Start a ``tunegym serve`` of the troublesome class."""
    running: list[Serve] = []

    def start(*options: str, reference: str = "trouble:Trouble", port: int = 0) -> Serve:
        log = trouble / f"serve-{len(running)}.log"
        with log.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "tunegym", "serve", reference, "--port", str(port), *options],
                cwd=trouble,
                env={**os.environ, "TUNEGYM_SERVER_TOKEN": SECRET, "TUNEGYM_MARK": f"{token}/serve"},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {reference} on tcp://127.0.0.1:"), log.read_text()
        running.append(Serve(process, int(line.rsplit(":", 1)[1]), log))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()
        wait(lambda one=one: not marked_by(one))


def marked_by(one: Serve) -> list[int]:
    """Server processes carry a mark of their serve's own: they are known by the folder they were started in."""
    folder = str(one.log.parent)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd") == folder and b"servers.serve:main" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
